"""The state of a run on disk, from which it can be resumed exactly: one safetensors file.

Order, noise and dropout are functions of seed and step, so no generator needs saving.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from diffusionner.errors import CheckpointError
from diffusionner.files import write_atomically
from diffusionner.model.base import Network
from diffusionner.storage.checkpoint import tensor_writer
from diffusionner.storage.packing import read_tensors


@dataclass
class Progress:
    """Where a run stands."""

    epoch: int = 0  # epochs finished
    batch: int = 0  # updates done of the epoch under way
    step: int = 0  # updates done in all
    best_f1: float = -1.0
    best_epoch: int = 0
    seconds: float = 0.0  # spent so far
    fingerprint: str = ""  # of settings and data: a state only continues the same run


def save_state(
    path: Path,
    progress: Progress,
    network: Network,
    optimizer: torch.optim.Optimizer,
    average: AveragedModel | None,
) -> None:
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    for number, slots in optimizer.state_dict()["state"].items():
        for name, tensor in slots.items():
            tensors[f"optimizer.{number}.{name}"] = tensor
    if average is not None:
        tensors |= {f"average.{name}": tensor for name, tensor in average.state_dict().items()}
    write_atomically(path, tensor_writer(tensors, {"progress": json.dumps(asdict(progress))}))


def load_state(
    path: Path,
    fingerprint: str,
    network: Network,
    optimizer: torch.optim.Optimizer,
    average: AveragedModel | None,
) -> Progress:
    """Fill network, optimiser and averaged weights; refuse another run's state."""
    try:
        with safe_open(path, "pt") as file:
            progress = Progress(**json.loads((file.metadata() or {})["progress"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is missing, truncated or not a training state ({error}); "
            "start again without --resume"
        ) from error
    if progress.fingerprint != fingerprint:
        raise CheckpointError(
            f"{path} belongs to a run with other settings or data; resume with the same config and "
            "overrides, or choose another training.output"
        )
    tensors = read_tensors(path)
    network.load_state_dict(_under("network.", tensors))
    if average is not None:
        average.load_state_dict(_under("average.", tensors))
    slots: dict[int, dict[str, Tensor]] = {}
    for key, tensor in _under("optimizer.", tensors).items():
        number, name = key.split(".")
        slots.setdefault(int(number), {})[name] = tensor
    state = optimizer.state_dict()
    state["state"] = slots
    optimizer.load_state_dict(state)
    return progress


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
