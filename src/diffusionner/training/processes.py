"""Training on one device or, through accelerate, in several processes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from diffusionner.batching import EncodedCorpus
from diffusionner.inference.decoding import DecodedEntity, ScoreRule
from diffusionner.inference.documents import document_blocks
from diffusionner.inference.stream import PredictionTask, predict
from diffusionner.inference.torch_engine import engine_in_training
from diffusionner.model.base import Network
from diffusionner.settings import InferenceSettings

try:
    from accelerate import Accelerator
    from accelerate.utils import gather_object
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "training needs the package 'accelerate'; in a clone, install it with: "
        "pip install '.[train]'",
        name=error.name,
    ) from error


def make_accelerator(precision: str) -> Accelerator:
    if precision == "auto":
        has_bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        precision = "bf16" if has_bf16 else "float32"
    # Without a GPU, accelerate recognises several processes only with cpu=True.
    on_cpu = not torch.accelerator.is_available()
    return Accelerator(cpu=on_cpu, mixed_precision="bf16" if precision == "bf16" else "no")


def no_sync(model: torch.nn.Module, synchronise: bool) -> AbstractContextManager[None]:
    """Postpone the exchange of gradients between processes to the last micro-batch."""
    if synchronise or not isinstance(model, DistributedDataParallel):
        return nullcontext()
    return model.no_sync()


def predict_shared(
    accelerator: Accelerator,
    network: Network,
    corpus: EncodedCorpus,
    count: int,
    inference: InferenceSettings,
    rule: ScoreRule,
) -> list[list[DecodedEntity]]:
    """Return the predictions for all `count` sentences; each process predicts a part of them."""
    # Each process gets whole blocks, whose candidates are denoised together.
    blocks = document_blocks(corpus, range(count))
    mine = np.flatnonzero(blocks % accelerator.num_processes == accelerator.process_index)
    task = PredictionTask(corpus, mine.tolist(), blocks[mine])
    found = predict(engine_in_training(network), task, inference, rule)
    if accelerator.num_processes == 1:
        return found
    merged = dict(gather_object(list(zip(mine.tolist(), found, strict=True))))
    return [merged[number] for number in range(count)]
