"""A step of training, whatever the method: what the trainer and its CUDA graphs run."""

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
    """A prediction or the previous loss is NaN or infinite."""


class Objective(nn.Module, ABC, Generic[Predicted]):
    """Wraps the network so that one forward call is one training step's loss (what DDP needs).

    A step is two passes on the device, `predict` and `loss`, with a question to the host between
    them: `costs`, which `assign` answers. A method without matching asks nothing and has only the
    two passes. Their shapes follow from those of the batch and they never wait for the device, so
    each can be recorded as a CUDA graph.
    """

    def __init__(self, network: Network, settings: Settings) -> None:
        super().__init__()
        self.network = network
        self.freeze_encoder = False

    @abstractmethod
    def denominator(self, counts: np.ndarray) -> int:
        """What the loss of an update is divided by; counts: [B] its entities by sentence."""

    def inputs(self, batch: Batch[np.ndarray], keys: np.ndarray) -> list[np.ndarray]:
        """What a step needs beside the batch, made on the host ahead of it.

        keys: [B], unique to sentence and epoch.
        """
        return []

    def forward(
        self, batch: Batch[Tensor], inputs: Sequence[np.ndarray], denominator: float
    ) -> Tensor:
        """The loss; the denominator is that of the whole update."""
        device = batch.subwords.device
        predicted = self.predict(batch, *to_device(inputs, device))
        # The only point of a step at which the host waits for the device.
        costs = self.costs(predicted, batch).cpu().numpy()
        (assigned,) = to_device([self.assign(costs, batch.gold_counts)], device)
        return self.loss(predicted, batch, assigned) / denominator

    @abstractmethod
    def predict(self, batch: Batch[Tensor], *inputs: Tensor) -> Predicted:
        """What the network makes of the batch."""

    def costs(self, predicted: Predicted, batch: Batch[Tensor]) -> Tensor:
        """What the host must know."""
        return batch.lengths.new_zeros(0).float()

    def assign(self, costs: np.ndarray, counts: np.ndarray, loss: float = 0.0) -> np.ndarray:
        """What it answers. counts: [B] gold entities; loss: that of the step before."""
        if not math.isfinite(loss):
            raise NotFinite
        return np.zeros(self.assigned_shape(len(counts)), dtype=np.int64)

    def assigned_shape(self, sentences: int) -> tuple[int, ...]:
        """Of the answer."""
        return (sentences, 0)

    @abstractmethod
    def loss(self, predicted: Predicted, batch: Batch[Tensor], assigned: Tensor) -> Tensor:
        """Summed over the batch."""
