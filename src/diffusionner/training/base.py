"""The interface of a training objective, which the trainer and its CUDA graphs run."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
from torch import Tensor, nn

from diffusionner.batching import Batch
from diffusionner.model.base import Network
from diffusionner.model.tensors import to_device
from diffusionner.settings import Settings

Predicted = TypeVar("Predicted")


class NotFinite(ArithmeticError):
    """Raised when a prediction or the previous loss is NaN or infinite."""


class Objective(nn.Module, ABC, Generic[Predicted]):
    """Wraps a network so that one forward call returns the loss of a training step, as DDP needs.

    A step is two passes on the device, `predict` and `loss`. Between them the host gets the
    matching `costs` and answers with `assign`; a method without matching has only the two passes.
    Their shapes follow from those of the batch and they never synchronise, so each can be recorded
    as a CUDA graph.
    """

    def __init__(self, network: Network, settings: Settings) -> None:
        super().__init__()
        self.network = network
        self.freeze_encoder = False

    @abstractmethod
    def denominator(self, counts: np.ndarray) -> int:
        """Return the divisor of an update's loss. counts: [B] entities of its sentences."""

    def inputs(self, batch: Batch[np.ndarray], keys: np.ndarray) -> list[np.ndarray]:
        """Return what a step needs besides the batch, computed in advance on the host.

        keys: [B], unique to sentence and epoch.
        """
        return []

    def forward(
        self, batch: Batch[Tensor], inputs: Sequence[np.ndarray], denominator: float
    ) -> Tensor:
        """Return the loss. denominator: that of the whole update."""
        device = batch.subwords.device
        predicted = self.predict(batch, *to_device(inputs, device))
        # The only point at which the host waits for the device.
        costs = self.costs(predicted, batch).cpu().numpy()
        (assigned,) = to_device([self.assign(costs, batch.gold_counts)], device)
        return self.loss(predicted, batch, assigned) / denominator

    @abstractmethod
    def predict(self, batch: Batch[Tensor], *inputs: Tensor) -> Predicted:
        """Run the network."""

    def costs(self, predicted: Predicted, batch: Batch[Tensor]) -> Tensor:
        """Return the matching costs, which the host needs."""
        return batch.lengths.new_zeros(0).float()

    def assign(self, costs: np.ndarray, counts: np.ndarray, loss: float = 0.0) -> np.ndarray:
        """Assign predictions to gold. counts: [B] gold entities; loss: of the previous step."""
        if not math.isfinite(loss):
            raise NotFinite
        return np.zeros(self.assigned_shape(len(counts)), dtype=np.int64)

    def assigned_shape(self, sentences: int) -> tuple[int, ...]:
        """Return the shape of the result of `assign`."""
        return (sentences, 0)

    @abstractmethod
    def loss(self, predicted: Predicted, batch: Batch[Tensor], assigned: Tensor) -> Tensor:
        """Return the loss, summed over the batch."""
