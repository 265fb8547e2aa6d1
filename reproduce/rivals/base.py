"""What the rivals share: one pass from H_S to candidates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from diffusionner.corpus import Sentence
from diffusionner.model.base import Network
from diffusionner.model.encoder import SentenceEncoding
from diffusionner.settings import InferenceSettings, Settings

EVEN = 1.5  # three times a probability of one half
Memory = Callable[..., Tensor]  # of a shape, for what it does not matter how it begins


class Rounds(Protocol):
    """How candidates are found, each round without the host: so each can be recorded."""

    @property
    def most(self) -> int:
        """Rounds."""

    def __call__(self, number: int) -> Tensor:
        """The candidates of a round, [B, K, 5], behind those of the rounds before."""

    def more(self) -> bool:
        """Whether the next round may find any; waits for the device."""


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

    def rounds(self, encoding: SentenceEncoding, counts: Tensor, memory: Memory) -> Rounds:
        """The same in rounds; counts: [B] how many entities to find, where a method can be told."""
        return OneRound(self, encoding)

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


@dataclass
class OneRound:
    network: Rival
    encoding: SentenceEncoding
    most: int = 1

    def __call__(self, number: int) -> Tensor:
        return self.network.candidates(self.encoding)

    def more(self) -> bool:
        return False


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
