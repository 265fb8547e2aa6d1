"""Biaffine scores: every pair of a first and a last word, for every type (Yu et al., 2020).

Shapes: B sentences, M words, S the size of a boundary's state, C types.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
