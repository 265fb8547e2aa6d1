"""Inference with torch, and the choice of engine for a device."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from diffusionner.batching import Batch, RowLabels
from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.diffusion import ReverseStart
from diffusionner.errors import SettingsError, first_line, nearest
from diffusionner.inference.engine import Engine, Pending
from diffusionner.inference.fragments import gapped_candidates
from diffusionner.inference.label_groups import join_groups
from diffusionner.label_set import LabelSet
from diffusionner.model.base import Network
from diffusionner.model.encoder import LabelVectors
from diffusionner.settings import InferenceSettings

# A forked process has none of its parent's threads, and OpenMP would wait for them forever.
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))
PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}


class TorchEngine:
    """Encodes a batch, runs the reverse process and reads out the candidates."""

    subword_multiple = 1
    prefetch = 0  # a batch is done when `launch` returns

    def __init__(
        self, network: Network, running: Network | None = None, autocast: bool = False
    ) -> None:
        """running: a copy in lower precision that is run instead of the network."""
        self.network = network
        self.running = running or network
        self.autocast = autocast
        self.labels = network.labels
        self.beliefs = network.belief_denoiser()
        table = self.running.table
        # The labels, in groups that are read with a text at once; None: they are not read.
        self.groups = [None if table is None else LabelVectors.of_table(table)]

    def bind(self, labels: LabelSet, subwords: SubwordTokenizer) -> TorchEngine:
        """Return this engine for other labels, whose words are read now."""
        bound = copy.copy(self)
        bound.labels = list(labels.names)
        rows = list(map(subwords.label_subwords, labels.texts))
        with self._inference():
            bound.groups = [
                self._read(RowLabels.of([rows[group]], subwords.pad)) for group in labels.groups()
            ]
        return bound

    def _read(self, group: RowLabels[np.ndarray]) -> LabelVectors:
        labels = group.map(partial(torch.as_tensor, device=self.device))
        vectors = self.running.encoder.embed_labels(labels.subwords, labels.places)
        return LabelVectors.owned(vectors, labels.owner, int(group.owner.max()) + 1)

    @property
    def label_groups(self) -> int:
        return len(self.groups)

    def table(self) -> Tensor:
        """Return the vectors of all labels, [C, K, h] with zeros where a label has fewer than K."""
        rows = [
            group.vectors[0, own].float().cpu()
            for group in self.groups
            if group is not None
            for own in group.belongs[0]
        ]
        return pad_sequence(rows, batch_first=True)

    @property
    def device(self) -> torch.device:
        return next(self.running.parameters()).device

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """Run the network in eval mode. One that is being trained returns to training mode."""
        was_training = self.running.training
        if was_training:
            self.running.eval()
        try:
            kind = torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)
            with torch.inference_mode(), _current(self.device), kind:
                yield
        finally:
            if was_training:
                self.running.train()

    def launch(
        self, batch: Batch[np.ndarray], start: ReverseStart[np.ndarray], settings: InferenceSettings
    ) -> Pending:
        """Run a batch, once for each group of labels."""
        network = self.running
        to_tensor = partial(torch.as_tensor, device=self.device)
        with self._inference():
            tensors = batch.map(to_tensor)
            on_device = ReverseStart(to_tensor(start.slots), start.is_ragged)
            if start.given is not None:
                on_device = start.map(to_tensor)
            parts = []
            for group in self.groups:
                labels = None if group is None else group.expand(len(batch.subwords))
                encoding = network.encoder(tensors, labels)
                found = network.candidates(encoding, batch.keys, on_device, settings)
                on_host = found.map(lambda tensor: tensor.cpu().numpy())
                if (scores := network.fragment_scores(encoding)) is not None:
                    on_host.gapped = gapped_candidates(scores.cpu().numpy())
                parts.append(on_host)
        sizes = [0 if group is None else group.belongs.shape[1] for group in self.groups]
        given = 0 if start.given is None else start.given.shape[1]
        candidates = join_groups(parts, sizes, given)
        return lambda: candidates


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one, on which Triton launches its kernels."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def load_engine(
    network: Network, device: str | None, precision: str | None, cuda_graphs: bool
) -> Engine:
    """Move a trained network to a device and return its engine.

    device: None for a GPU if there is one. precision: None for bf16 on a GPU, float32 on a CPU.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = device.startswith("cuda")
    precision = precision or ("bf16" if on_gpu else "float32")
    if precision not in PRECISIONS:
        raise SettingsError(f"unknown precision '{precision}'; {nearest(precision, PRECISIONS)}")
    try:
        network.to(device).eval()
    except (RuntimeError, AssertionError) as error:  # which one depends on the device
        raise SettingsError(
            f"device '{device}' cannot be used ({first_line(error)}); try cpu, or leave it out"
        ) from error
    running = (
        network if precision == "float32" else _lower_precision(network, PRECISIONS[precision])
    )
    if not on_gpu or network.joins_labels or network.finds_discontinuous:
        return TorchEngine(network, running)
    from diffusionner.inference.gpu.engine import GpuEngine

    return GpuEngine(network, running, cuda_graphs)


def _lower_precision(network: Network, dtype: torch.dtype) -> Network:
    """Return a copy in lower precision. The original weights stay, so that they can be saved.

    Autocast would keep activations between layers in float32, at twice the memory traffic.
    """
    running = copy.deepcopy(network).to(dtype)
    for module in running.modules():
        if isinstance(module, torch.nn.LSTM) and next(module.parameters()).is_cuda:
            module.half().flatten_parameters()
    return running


def engine_in_training(network: Network) -> Engine:
    """Return an engine for a network that is being trained, on its current device."""
    on_gpu = next(network.parameters()).is_cuda
    if network.joins_labels or network.finds_discontinuous:
        return TorchEngine(network, autocast=on_gpu)
    if on_gpu:
        from diffusionner.inference.gpu.engine import GpuEngine

        return GpuEngine(network, network, cuda_graphs=False, autocast=True)
    return TorchEngine(network)
