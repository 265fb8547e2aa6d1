"""The network run as it is written, with nothing that makes it faster: what the rest must match."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from diffusionner.batching import Batch
from diffusionner.inference.torch_engine import read_out
from diffusionner.model import DenoisingNetwork
from diffusionner.model.tensors import to_tensors
from diffusionner.settings import InferenceSettings


class PlainEngine:
    """On the CPU, in float32, one batch after the other."""

    def __init__(self, network: DenoisingNetwork) -> None:
        self.network = network.eval()
        self.labels = network.labels

    def reverse(
        self,
        batch: Batch[np.ndarray],
        settings: InferenceSettings,
        slots: np.ndarray,
        given: np.ndarray | None = None,
        start: int | None = None,
    ) -> Callable[[], np.ndarray]:
        device = torch.device("cpu")
        with torch.inference_mode():
            spans = None if given is None else torch.from_numpy(given).to(device)
            counted = torch.from_numpy(slots).to(device)
            prediction = self.network.reverse(
                to_tensors(batch, device), settings, counted, spans, start
            )
            return read_out(prediction, counted).cpu().numpy
