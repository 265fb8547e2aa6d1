"""Span classification: every pair of a first and a last word gets a type or none (Yu et al., 2020).

Shapes: B sentences, M words, S the size of a boundary's state, C types.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from diffusionner.batching import Batch
from diffusionner.model.encoder import SentenceEncoding
from diffusionner.rivals.base import EVEN, LOWEST, Rival, table
from diffusionner.settings import Settings
from diffusionner.training.base import Objective

SIZE = 150  # S, as published
WIDEST = 32  # words from which on spans count as equally wide
LEAST = 0.1  # probability of a candidate
PER_WORD = 2  # candidates, at most


class BiaffineNetwork(Rival):
    phi = EVEN
    of_types = (
        "biaffine.tensor",
        "biaffine.first_weight",
        "biaffine.last_weight",
        "biaffine.width",
    )

    def __init__(
        self, transformer: PreTrainedModel, labels: Sequence[str], settings: Settings
    ) -> None:
        super().__init__(transformer, labels, settings)
        self.biaffine = Biaffine(
            self.encoder.hidden_size, len(self.labels) + 1, settings.decoder.dropout
        )

    def objective(self, settings: Settings) -> BiaffineObjective:
        return BiaffineObjective(self)

    def candidates(self, encoding: SentenceEncoding) -> Tensor:
        """The likeliest spans with their likeliest type, some for each word."""
        probabilities = self.biaffine(encoding.states).softmax(-1)
        best, kinds = probabilities[..., :-1].max(-1)  # [B, M, M]
        best = best.masked_fill(~spans_of(encoding.mask), -1.0)
        words = best.shape[1]
        count = min(PER_WORD * words, words * words)
        found, cells = best.flatten(1).topk(count)  # [B, K]
        # What a sentence may have depends on its own length, not on its batch.
        own = torch.arange(count, device=found.device) < PER_WORD * encoding.lengths[:, None]
        kind = kinds.flatten(1).gather(1, cells)
        return table(cells // words, cells % words, kind, 3 * found, own & (found >= LEAST))


class Biaffine(nn.Module):
    """Scores of every span for every type: s^T U e + W (s ‖ e) + b, and a bias for its width."""

    def __init__(self, size: int, types: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(size, SIZE)
        self.last = nn.Linear(size, SIZE)
        self.dropout = nn.Dropout(dropout)
        self.tensor = nn.Parameter(torch.randn(types, SIZE, SIZE) / SIZE)
        self.first_weight = nn.Linear(SIZE, types)
        self.last_weight = nn.Linear(SIZE, types, bias=False)
        self.width = nn.Parameter(torch.zeros(WIDEST, types))

    def forward(self, states: Tensor) -> Tensor:
        """H_S [B, M, h] → [B, M, M, types] of (left, right), in float32"""
        first = self.dropout(F.gelu(self.first(states)))
        last = self.dropout(F.gelu(self.last(states)))
        pairs = torch.einsum("bis,cst,bjt->bijc", first, self.tensor.to(first.dtype), last)
        alone = self.first_weight(first)[:, :, None] + self.last_weight(last)[:, None]
        word = torch.arange(states.shape[1], device=states.device)
        width = (word - word[:, None]).clamp(0, WIDEST - 1)  # [M, M]
        # A product with ones and zeros: the gradient of an index adds up word by word.
        of_width = F.one_hot(width, WIDEST).to(self.width.dtype) @ self.width
        return pairs.float() + alone.float() + of_width.float()


class BiaffineObjective(Objective[Tensor]):
    network: BiaffineNetwork

    def denominator(self, counts: np.ndarray) -> int:
        """Entities: spans without one are many, but soon cost next to nothing."""
        return max(1, int(counts.sum()))

    def predict(self, batch: Batch[Tensor], *inputs: Tensor) -> Tensor:
        """Scores [B, M, M, C + 1]."""
        encoding = self.network.encode_words(batch, self.freeze_encoder)
        scores: Tensor = self.network.biaffine(encoding.states)
        return scores

    def loss(self, predicted: Tensor, batch: Batch[Tensor], assigned: Tensor) -> Tensor:
        """Cross-entropy of the type of every span."""
        words = predicted.shape[1]
        log_types = predicted.log_softmax(-1).flatten(1, 2)  # [B, M * M, C + 1]
        targets = span_types(batch, words, none=predicted.shape[-1] - 1)  # [B, M * M]
        of_gold = log_types.gather(-1, targets[..., None])[..., 0]
        # A span without an entity may be one of a type that nobody marked.
        marked = F.pad(batch.looked_for, (0, 1))[:, None]  # [B, 1, C + 1]
        of_none = log_types.masked_fill(marked, LOWEST).logsumexp(-1)
        likelihood = torch.where(targets == predicted.shape[-1] - 1, of_none, of_gold)
        inside = torch.arange(words, device=predicted.device) < batch.lengths[:, None]
        return -(likelihood * spans_of(inside).flatten(1)).sum()


def spans_of(mask: Tensor) -> Tensor:
    """[B, M, M] which pairs of words are first and last of a span; mask: [B, M] true for words."""
    words = mask.shape[1]
    ordered = torch.ones(words, words, dtype=torch.bool, device=mask.device).triu()
    return ordered & mask[:, None]


def span_types(batch: Batch[Tensor], words: int, none: int) -> Tensor:
    """The type of every span [B, M * M], `none` for those that are no entity."""
    cells = batch.gold[..., 0] * words + batch.gold[..., 1]
    # One cell more than there are spans collects what is padding.
    cells = cells.masked_fill(batch.gold_types < 0, words * words)
    types = batch.lengths.new_full((len(cells), words * words + 1), none)
    return types.scatter(1, cells, batch.gold_types.clamp(min=0))[:, :-1]
