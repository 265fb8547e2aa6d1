"""Inference with torch, and the choice of engine for a device."""

from __future__ import annotations

import copy
import os
from functools import partial

import numpy as np
import torch

from diffusionner.batching import Batch
from diffusionner.diffusion import Candidates, ReverseStart
from diffusionner.errors import SettingsError, first_line, nearest
from diffusionner.inference.engine import Engine, Pending
from diffusionner.model.base import Network
from diffusionner.settings import InferenceSettings

# A forked process has none of its parent's threads, and OpenMP would wait for them forever.
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))
PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}


class TorchEngine:
    """Encodes a batch, runs the reverse process and reads out the candidates."""

    subword_multiple = 1
    prefetch = 0  # a batch is done when `launch` returns

    def __init__(self, network: Network, running: Network | None = None) -> None:
        """running: a copy in lower precision that is run instead of the network."""
        self.network = network
        self.running = running or network
        self.labels = network.labels
        self.beliefs = network.belief_denoiser()

    def launch(
        self, batch: Batch[np.ndarray], start: ReverseStart[np.ndarray], settings: InferenceSettings
    ) -> Pending:
        """Run a batch. A network that is being trained returns to training mode."""
        network = self.running
        to_tensor = partial(torch.as_tensor, device=next(network.parameters()).device)
        was_training = network.training
        if was_training:
            network.eval()
        try:
            with torch.inference_mode():
                encoding = network.encoder(batch.map(to_tensor))
                on_device = ReverseStart(to_tensor(start.slots), start.is_ragged)
                if start.given is not None:
                    on_device = start.map(to_tensor)
                candidates = network.candidates(encoding, batch.keys, on_device, settings)
        finally:
            if was_training:
                network.train()
        arrays = {name: a if a is None else a.cpu().numpy() for name, a in vars(candidates).items()}
        return lambda: Candidates(**arrays)


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
    if not on_gpu:
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
    if next(network.parameters()).is_cuda:
        from diffusionner.inference.gpu.engine import GpuEngine

        return GpuEngine(network, network, cuda_graphs=False, autocast=True)
    return TorchEngine(network)
