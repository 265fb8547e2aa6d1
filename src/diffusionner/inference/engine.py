"""What finds candidates: torch, or ONNX Runtime where there is no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from diffusionner.batching import Batch
from diffusionner.settings import InferenceSettings


class Engine(Protocol):
    """A trained network, ready to predict."""

    labels: list[str]

    @property
    def subword_step(self) -> int:
        """Lengths of its batches are best multiples of this."""

    @property
    def ahead(self) -> int:
        """Batches that it may have before it while the host finishes others."""

    def find(
        self,
        batch: Batch[np.ndarray],
        settings: InferenceSettings,
        slots: np.ndarray,
        given: np.ndarray | None = None,
        start: int | None = None,
    ) -> Callable[[], np.ndarray]:
        """Start to find the candidates of a batch.

        By denoising, that is γ steps from Gaussian spans at T, or from spans that the caller gives.

        slots: [B, K] true where a sentence has a span; given: [B, K, 2] word indices (left,
        right), taken as the noisy spans of timestep `start`.
        What is returned waits for their end, so that the host can go on meanwhile. It gives what
        each span was at the steps that count, [B, steps, K, 5] = left, right, type, total, P^c; K
        may be less, where no sentence of the batch needs all.
        The total of the three probabilities is below 0 where it is no entity: no-entity is
        likeliest, or right < left, or the sentence has no such span. A rival has one step, and its
        total is on the same scale; it starts from no spans, but one that generates can be told by
        them how many.
        """
