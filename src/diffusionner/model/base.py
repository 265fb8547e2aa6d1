"""The interface of every method: encode sentences and return candidate entities."""

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
from diffusionner.diffusion import BeliefDenoiser, Candidates, ReverseStart
from diffusionner.model.encoder import LabelVectors, SentenceEncoder, SentenceEncoding, Transformer
from diffusionner.settings import InferenceSettings, Settings


class Network(nn.Module, ABC):
    """The sentence encoder; a method adds the part that turns H_S into candidates.

    Labels and settings determine its shape, so a checkpoint is rebuilt from its config.json.
    """

    # Prefixes of the weights that belong to the types, in the order of the labels.
    type_weights: ClassVar[tuple[str, ...]] = ()

    def __init__(self, transformer: Transformer, labels: Sequence[str], settings: Settings) -> None:
        super().__init__()
        self.labels = list(labels)
        self.method = settings.method
        self.joins_labels = settings.decoder.joins_labels
        self.finds_discontinuous = bool(settings.decoder.discontinuous)
        self.encoder = SentenceEncoder(transformer, settings.encoder)
        self.table = None
        if settings.decoder.types == "vectors":
            shape = len(self.labels), settings.decoder.type_vectors, transformer.config.hidden_size
            self.table = nn.Parameter(torch.randn(shape))

    @classmethod
    def resolve_settings(cls, settings: Settings, sentences: Sequence[Sentence]) -> Settings:
        """Fill in the settings that depend on the training data."""
        return settings

    @abstractmethod
    def candidates(
        self,
        encoding: SentenceEncoding,
        keys: np.ndarray,
        start: ReverseStart[Tensor],
        settings: InferenceSettings,
    ) -> Candidates[Tensor]:
        """Return candidate entities.

        keys: [B] noise keys of the sentences. Only methods that denoise use keys and start.
        """

    def fragment_scores(self, encoding: SentenceEncoding) -> Tensor | None:
        """Return scores of the parts of discontinuous entities; None if the model finds none."""
        return None

    def belief_denoiser(self) -> BeliefDenoiser | None:
        """Return what denoises candidates over documents; None if the method does not."""
        return None

    def encode(self, batch: Batch[Tensor], freeze_encoder: bool = False) -> SentenceEncoding:
        """Return H_S. freeze_encoder: without gradients for the pretrained part."""
        # A table is trained through the frozen encoder, whose weights get no gradients either way.
        with torch.no_grad() if freeze_encoder and self.table is None else nullcontext():
            labels, types = self.label_vectors(batch), None
            if labels is None:
                words = self.encoder.pooled(batch)
            else:
                words, types = self.encoder.pooled_with(batch, labels)
        return self.encoder.contextualise(words, batch.lengths, batch.characters, types)

    def label_vectors(self, batch: Batch[Tensor]) -> LabelVectors | None:
        """Return the labels of each row of a batch; None if the types have weights of their own."""
        if batch.labels is not None:
            vectors = self.encoder.embed_labels(batch.labels.subwords, batch.labels.places)
            return LabelVectors.owned(vectors, batch.labels.owner, batch.annotated_types.shape[1])
        if self.table is not None:
            return LabelVectors.of_table(self.table).expand(len(batch.subwords))
        return None

    def start_from(self, weights: Mapping[str, Tensor], same_labels: bool) -> None:
        """Load the matching weights of a trained model; weights of types only for equal labels."""
        own = self.state_dict()
        # If types are vectors, all other weights are the same for any types.
        of_types = ("table",) if self.joins_labels else self.type_weights
        matching = {
            name: tensor
            for name, tensor in weights.items()
            if name in own
            and own[name].shape == tensor.shape
            and (same_labels or not name.startswith(of_types))
        }
        self.load_state_dict(matching, strict=False)
