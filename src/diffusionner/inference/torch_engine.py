"""The reverse process in torch, on a CPU or a GPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from diffusionner.batching import Batch
from diffusionner.errors import SettingsError
from diffusionner.model import DenoisingNetwork, Prediction
from diffusionner.model.tensors import to_tensors
from diffusionner.settings import InferenceSettings


class TorchEngine:
    def __init__(self, network: DenoisingNetwork, device: str | None = None) -> None:
        """device: where to move the network; None leaves it where it is."""
        self.network = network
        self.labels = network.labels
        if device is not None:
            self._move(device)

    def _move(self, device: str) -> None:
        if device.startswith("cuda"):
            # cuDNN's attention is planned anew for every shape, which costs more than it saves.
            torch.backends.cuda.enable_cudnn_sdp(False)
        try:
            self.network.to(device).eval()
        except (RuntimeError, AssertionError) as error:  # which of them depends on the device
            reason = str(error).strip().splitlines()[0]
            raise SettingsError(
                f"device '{device}' cannot be used ({reason}); try cpu, or leave it out"
            ) from error

    def reverse(
        self,
        batch: Batch[np.ndarray],
        settings: InferenceSettings,
        slots: np.ndarray,
        given: np.ndarray | None = None,
        start: int | None = None,
    ) -> np.ndarray:
        """As `Engine` says. A network in training is put back into training."""
        device = next(self.network.parameters()).device
        was_training = self.network.training
        self.network.eval()
        autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
        try:
            with torch.inference_mode(), autocast:
                spans = None if given is None else torch.from_numpy(given).to(device)
                counted = torch.from_numpy(slots).to(device)
                prediction = self.network.reverse(
                    to_tensors(batch, device), settings, counted, spans, start
                )
                table: np.ndarray = read_out(prediction, counted).cpu().numpy()
                return table
        finally:
            self.network.train(was_training)


def read_out(prediction: Prediction, slots: Tensor) -> Tensor:
    """arg-max boundaries and type of every span: [B, K, 5] = left, right, type, total, P^c.

    The total is -1 where the span is no entity: no-entity is likeliest, or right < left.
    """
    # Of the scores, not their sigmoids: where these round to 0 or 1, several are the largest.
    left_score, left = prediction.left[:, 0].max(-1)
    right_score, right = prediction.right[:, 0].max(-1)
    type_p, kind = prediction.types[:, 0].softmax(-1).max(-1)
    valid = (kind < prediction.types.shape[-1] - 1) & (left <= right) & slots
    total = torch.where(valid, left_score.sigmoid() + right_score.sigmoid() + type_p, -1.0)
    return torch.stack([left.float(), right.float(), kind.float(), total, type_p], -1)
