"""Base class of the rivals: one pass from H_S to candidates."""

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
from diffusionner.errors import SettingsError
from diffusionner.model.base import Network
from diffusionner.model.encoder import SentenceEncoding
from diffusionner.settings import InferenceSettings, Settings

EVEN = 1.5  # three times a probability of one half
Memory = Callable[..., Tensor]  # returns an uninitialized tensor of a shape


class Rounds(Protocol):
    """Rounds that find candidates. None of them waits for the host, so each can be recorded."""

    @property
    def max_rounds(self) -> int:
        """Maximum number of rounds."""

    def __call__(self, number: int) -> Candidates[Tensor]:
        """Return the candidates of a round."""

    def more(self) -> bool:
        """Return whether the next round may find any; waits for the device."""


class Rival(Network):
    # Minimum summed probability if none is tuned on dev; None: the paper's.
    phi: ClassVar[float | None] = None
    has_decoder: ClassVar[bool] = False  # uses the settings of the entity decoder

    @classmethod
    def resolve_settings(cls, settings: Settings, sentences: Sequence[Sentence]) -> Settings:
        for name in ("layers", "self_attention", "cross_attention") if cls.has_decoder else ():
            if not getattr(settings.decoder, name):
                raise SettingsError(
                    f"method={settings.method} needs a decoder that attends to the sentence and to "
                    f"its other entities; remove decoder.{name}"
                )
        inference = settings.inference
        if inference.phi is None and inference.threshold is None:
            inference = replace(inference, phi=cls.phi)
        return replace(settings, inference=inference)

    @abstractmethod
    def propose(self, encoding: SentenceEncoding) -> Candidates[Tensor]:
        """Return candidates in one pass."""

    def rounds(self, encoding: SentenceEncoding, counts: Tensor, memory: Memory) -> Rounds:
        """Find the same candidates in rounds.

        counts: [B] number of entities to find; methods that cannot use it ignore it.
        """
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
    max_rounds: int = 1

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
    slots = torch.ones_like(is_entity)
    found = Candidates(left, right, type_id, summed, summed / 3, is_entity, slots, spans)
    return found.map(lambda column: column[:, None])


def concatenate(parts: Sequence[Candidates[Tensor]]) -> Candidates[Tensor]:
    """Concatenate candidates of the same sentences."""
    return Candidates.combine(parts, lambda arrays: torch.cat(arrays, 2))


def perceptron(size: int, out: int, dropout: float) -> nn.Sequential:
    """Return a classifier like that of the entity decoder."""
    return nn.Sequential(
        nn.Linear(size, size), nn.GELU(), nn.Dropout(dropout), nn.Linear(size, out)
    )
