"""What the rivals share: one pass from H_S to candidates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from diffusionner.corpus import Sentence
from diffusionner.model.base import Network
from diffusionner.model.encoder import SentenceEncoding
from diffusionner.settings import InferenceSettings, Settings

EVEN = 1.5  # three times a probability of one half


class Rival(Network):
    # Least total where dev chooses none; None: that of the paper, for three probabilities.
    phi: ClassVar[float | None] = None

    @classmethod
    def settle(cls, settings: Settings, sentences: Sequence[Sentence]) -> Settings:
        inference = settings.inference
        if inference.phi is None and inference.threshold is None:
            inference = replace(inference, phi=cls.phi)
        return replace(settings, inference=inference)

    @abstractmethod
    def candidates(self, encoding: SentenceEncoding) -> Tensor:
        """[B, K, 5] as `table` makes them."""

    @torch.inference_mode()
    def find(
        self,
        encoding: SentenceEncoding,
        keys: np.ndarray,
        settings: InferenceSettings,
        slots: Tensor,
        given: Tensor | None = None,
        start: int | None = None,
    ) -> Tensor:
        return self.candidates(encoding)[:, None]


def table(left: Tensor, right: Tensor, kind: Tensor, total: Tensor, valid: Tensor) -> Tensor:
    """Candidates [..., 5] = left, right, type, total, its third; the total is -1 if not valid.

    The total is a sum of three probabilities, or three times one, as of the main method.
    """
    total = torch.where(valid, total, -1.0)
    return torch.stack([left.float(), right.float(), kind.float(), total, total / 3], -1)


def perceptron(size: int, out: int, dropout: float) -> nn.Sequential:
    """As the classifier of the main method's decoder."""
    return nn.Sequential(
        nn.Linear(size, size), nn.GELU(), nn.Dropout(dropout), nn.Linear(size, out)
    )
