"""Biaffine scores: every pair of a first and a last word, for every type (Yu et al., 2020).

Shapes: B sentences, M words, S the size of a boundary's state, C types.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffusionner.batching import Batch
from diffusionner.diffusion.span_counts import LOWEST

SIZE = 150  # S, as published
WIDEST = 32  # words from which on spans count as equally wide


class Biaffine(nn.Module):
    """Scores of every span for every type: s^T U e + W (s ‖ e) + b, and a bias for its width."""

    of_types = ("product", "first_weight", "last_weight", "width")

    def __init__(self, size: int, types: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(size, SIZE)
        self.last = nn.Linear(size, SIZE)
        self.dropout = nn.Dropout(dropout)
        self.product = nn.Linear(SIZE, types * SIZE, bias=False)  # U, a matrix for each type
        nn.init.normal_(self.product.weight, std=1 / SIZE)
        self.first_weight = nn.Linear(SIZE, types)
        self.last_weight = nn.Linear(SIZE, types, bias=False)
        self.width = nn.Parameter(torch.zeros(WIDEST, types))

    def forward(self, states: Tensor) -> Tensor:
        """H_S [B, M, h] → [B, M, M, types] of (left, right), in float32"""
        first = self.dropout(F.gelu(self.first(states)))
        last = self.dropout(F.gelu(self.last(states)))
        batch, words, _ = states.shape
        turned = self.product(first).view(batch, -1, SIZE)  # [B, M * types, S]
        pairs = (turned @ last.transpose(1, 2)).view(batch, words, -1, words).transpose(2, 3)
        alone = self.first_weight(first)[:, :, None] + self.last_weight(last)[:, None]
        word = torch.arange(words, device=states.device)
        width = (word - word[:, None]).clamp(0, WIDEST - 1)  # [M, M]
        # A product with ones and zeros: the gradient of an index adds up word by word.
        of_width = F.one_hot(width, WIDEST).to(self.width.dtype) @ self.width
        return pairs.float() + alone.float() + of_width.float()


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


def classification_loss(scores: Tensor, batch: Batch[Tensor]) -> Tensor:
    """Cross-entropy of the type of every span, summed. scores: [B, M, M, C + 1], no-entity last."""
    words, none = scores.shape[1], scores.shape[-1] - 1
    log_types = scores.log_softmax(-1).flatten(1, 2)  # [B, M * M, C + 1]
    targets = span_types(batch, words, none)  # [B, M * M]
    of_gold = log_types.gather(-1, targets[..., None])[..., 0]
    # A span without an entity may be one of a type that nobody marked.
    marked = F.pad(batch.looked_for, (0, 1))[:, None]  # [B, 1, C + 1]
    of_none = log_types.masked_fill(marked, LOWEST).logsumexp(-1)
    likelihood = torch.where(targets == none, of_none, of_gold)
    inside = torch.arange(words, device=scores.device) < batch.lengths[:, None]
    return -(likelihood * spans_of(inside).flatten(1)).sum()
