"""What every method is to the rest of the package: an encoder, a training loss, candidates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from diffusionner.batching import Batch
from diffusionner.corpus import Sentence
from diffusionner.model.encoder import SentenceEncoder, SentenceEncoding, Transformer
from diffusionner.settings import InferenceSettings, Settings


class Network(nn.Module, ABC):
    """The shared sentence encoder, to which a method adds what finds entities in H_S.

    Labels and settings say all about its shape, so that a checkpoint can be built from its
    config.json.
    """

    # What the names of weights begin with that are of the types, in their order.
    of_types: ClassVar[tuple[str, ...]] = ()

    def __init__(self, transformer: Transformer, labels: Sequence[str], settings: Settings) -> None:
        super().__init__()
        self.labels = list(labels)
        self.method = settings.method
        self.encoder = SentenceEncoder(transformer, settings.encoder)

    @classmethod
    def settle(cls, settings: Settings, sentences: Sequence[Sentence]) -> Settings:
        """The settings with what is left to the training data decided."""
        return settings

    @abstractmethod
    def find(
        self,
        encoding: SentenceEncoding,
        keys: np.ndarray,
        settings: InferenceSettings,
        slots: Tensor,
        given: Tensor | None = None,
        start: int | None = None,
    ) -> Tensor:
        """Candidates as `Engine` says, [B, steps, K, 5] = left, right, type, total, P^c.

        The rest is for a method that denoises. keys: of the sentences' noise, [B].
        """

    def start_from(self, weights: Mapping[str, Tensor], same_labels: bool) -> None:
        """Take over what fits of a trained model: all but the types where its labels are others."""
        own = self.state_dict()
        fitting = {
            name: tensor
            for name, tensor in weights.items()
            if name in own
            and own[name].shape == tensor.shape
            and (same_labels or not name.startswith(self.of_types))
        }
        self.load_state_dict(fitting, strict=False)

    def encode_words(self, batch: Batch[Tensor], freeze: bool) -> SentenceEncoding:
        """H_S in training, with no gradients for the pretrained part while that is frozen."""
        with torch.no_grad() if freeze else nullcontext():
            words = self.encoder.pooled(batch)
        return self.encoder.contextualise(words, batch.lengths, batch.characters)
