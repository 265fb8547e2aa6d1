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
from diffusionner.diffusion import Candidates, ReverseStart
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

    def __call__(self, number: int) -> Candidates[Tensor]:
        """Return the candidates of a round."""

    def more(self) -> bool:
        """Whether the next round may find any; waits for the device."""


class Rival(Network):
    # Least total where dev chooses none; None: that of the paper, for three probabilities.
    phi: ClassVar[float | None] = None

    @classmethod
    def resolve_settings(cls, settings: Settings, sentences: Sequence[Sentence]) -> Settings:
        inference = settings.inference
        if inference.phi is None and inference.threshold is None:
            inference = replace(inference, phi=cls.phi)
        return replace(settings, inference=inference)

    @abstractmethod
    def propose(self, encoding: SentenceEncoding) -> Candidates[Tensor]:
        """Return candidates in one pass."""

    def rounds(self, encoding: SentenceEncoding, counts: Tensor, memory: Memory) -> Rounds:
        """The same in rounds; counts: [B] how many entities to find, where a method can be told."""
        return OneRound(self, encoding)

    @torch.inference_mode()
    def candidates(
        self,
        encoding: SentenceEncoding,
        keys: np.ndarray,
        start: ReverseStart[Tensor],
        settings: InferenceSettings,
    ) -> Candidates[Tensor]:
        return self.propose(encoding)


@dataclass
class OneRound:
    network: Rival
    encoding: SentenceEncoding
    most: int = 1

    def __call__(self, number: int) -> Candidates[Tensor]:
        return self.network.propose(self.encoding)

    def more(self) -> bool:
        return False


def single_step(
    left: Tensor, right: Tensor, type_id: Tensor, summed: Tensor, is_entity: Tensor
) -> Candidates[Tensor]:
    """Return candidates [B, 1, K] from arrays [B, K].

    summed: the sum of three probabilities, or three times one, as in the main method.
    """
    spans = torch.stack([left, right], -1)
    columns = (left, right, type_id, summed, summed / 3, is_entity, torch.ones_like(is_entity))
    return Candidates(*(column[:, None] for column in (*columns, spans)))


def concatenate(parts: Sequence[Candidates[Tensor]]) -> Candidates[Tensor]:
    """Concatenate candidates of the same sentences."""
    return Candidates.combine(parts, lambda arrays: torch.cat(arrays, 2))


def perceptron(size: int, out: int, dropout: float) -> nn.Sequential:
    """As the classifier of the main method's decoder."""
    return nn.Sequential(
        nn.Linear(size, size), nn.GELU(), nn.Dropout(dropout), nn.Linear(size, out)
    )
