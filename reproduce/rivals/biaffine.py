"""Span classification: a type, or none, for every pair of first and last word (Yu et al., 2020).

Shapes: B sentences, M words, C types.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from diffusionner.batching import Batch
from diffusionner.diffusion import Candidates
from diffusionner.model.encoder import SentenceEncoding, Transformer
from diffusionner.model.initializer import Biaffine, valid_spans
from diffusionner.settings import Settings
from diffusionner.training.objective import Objective
from diffusionner.training.type_losses import classification_loss
from reproduce.rivals.base import EVEN, Rival, single_step

MIN_PROBABILITY = 0.1  # of a candidate
PER_WORD = 2  # maximum number of candidates


class BiaffineNetwork(Rival):
    phi = EVEN
    type_weights = tuple(f"biaffine.{name}" for name in Biaffine.type_weights)

    def __init__(self, transformer: Transformer, labels: Sequence[str], settings: Settings) -> None:
        super().__init__(transformer, labels, settings)
        self.biaffine = Biaffine(
            self.encoder.hidden_size, len(self.labels) + 1, settings.decoder.dropout
        )

    def propose(self, encoding: SentenceEncoding) -> Candidates[Tensor]:
        """Return the most likely spans with their most likely types."""
        probabilities = self.biaffine(encoding.states).softmax(-1)
        best, type_ids = probabilities[..., :-1].max(-1)  # [B, M, M]
        best = best.masked_fill(~valid_spans(encoding.mask), -1.0)
        words = best.shape[1]
        count = min(PER_WORD * words, words * words)
        probability, cells = best.flatten(1).topk(count)  # [B, K]
        # The limit depends on the length of the sentence, not on its batch.
        own = torch.arange(count, device=best.device) < PER_WORD * encoding.lengths[:, None]
        type_id = type_ids.flatten(1).gather(1, cells)
        return single_step(
            cells // words,
            cells % words,
            type_id,
            3 * probability,
            own & (probability >= MIN_PROBABILITY),
        )


class BiaffineObjective(Objective[Tensor]):
    network: BiaffineNetwork
    scores_spans = True

    def denominator(self, counts: np.ndarray) -> int:
        """Return the number of entities: the many other spans soon have almost no loss."""
        return max(1, int(counts.sum()))

    def predict(self, batch: Batch[Tensor], *inputs: Tensor) -> Tensor:
        """Return scores [B, M, M, C + 1]."""
        encoding = self.network.encode(batch, self.freeze_encoder)
        scores: Tensor = self.network.biaffine(encoding.states)
        return scores

    def loss(self, predicted: Tensor, batch: Batch[Tensor], assigned: Tensor) -> Tensor:
        return classification_loss(predicted, batch, self.consistency)
