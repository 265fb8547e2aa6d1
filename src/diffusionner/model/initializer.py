"""The initializer: which spans of a sentence to start the reverse process from, instead of noise.

Every span of the sentence gets one score, a product of its first and its last word, and where it
is typed one more for each type. The likeliest are the candidates that the decoder then denoises, as
if they were noisy spans of a late timestep.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffusionner.diffusion.span_counts import LOWEST
from diffusionner.model.biaffine import Biaffine, spans_of

SIZE = 64  # of the two vectors whose product scores a span


@dataclass
class Initial:
    """What the initializer thinks of every span (left, right) of a sentence, in float32."""

    spans: Tensor  # [B, M, M] that it is an entity: log-odds
    types: Tensor | None = None  # [B, M, M, C] of each type against no-entity, whose score is zero

    def probabilities(self, cells: Tensor) -> Tensor:
        """Of each type and of no-entity for the spans in cells left * M + right: [B, K, C + 1]"""
        assert self.types is not None
        types = self.types.shape[-1]
        chosen = self.types.flatten(1, 2).gather(1, cells[..., None].expand(-1, -1, types))
        return F.pad(chosen, (0, 1)).softmax(-1)


class Initializer(nn.Module):
    def __init__(self, size: int, types: int, dropout: float) -> None:
        """types: 0 where it knows of none."""
        super().__init__()
        self.project = nn.Linear(size, 2 * SIZE + 2)
        self.types = Biaffine(size, types, dropout) if types else None

    def forward(self, states: Tensor, mask: Tensor) -> Initial:
        """H_S [B, M, h], mask [B, M] true for words"""
        spans = self.score(states)
        outside = ~spans_of(mask)
        if self.types is None:
            return Initial(spans.masked_fill(outside, LOWEST))
        types = self.types(states) + spans[..., None]
        return Initial(types.logsumexp(-1).masked_fill(outside, LOWEST), types)

    def score(self, states: Tensor) -> Tensor:
        """Of every pair of words alone, whatever its type: [B, M, M]"""
        first, last, alone = self.project(states).float().split([SIZE, SIZE, 2], -1)
        first, last = rotate(first), rotate(last)
        scores = first @ last.transpose(1, 2) / math.sqrt(SIZE)
        return scores + alone[..., :1] + alone[..., 1][:, None]


def rotate(vectors: Tensor) -> Tensor:
    """Turn each pair of dimensions by an angle that grows with the word's place (RoFormer).

    The product of two words' vectors then depends on how far they are apart: on a span's width.
    """
    words, size = vectors.shape[1:]
    rates = 10_000.0 ** (-torch.arange(size // 2, device=vectors.device) / (size // 2))
    angles = torch.arange(words, device=vectors.device)[:, None] * rates  # [M, SIZE / 2]
    cos, sin = angles.cos(), angles.sin()
    even, odd = vectors[..., 0::2], vectors[..., 1::2]
    return torch.cat([even * cos - odd * sin, even * sin + odd * cos], -1)


def candidates(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The likeliest spans [B, K, 2], best first, and their scores [B, K].

    Where a sentence has fewer, they repeat.
    """
    words = scores.shape[1]
    best, index = scores.flatten(1).topk(min(count, words * words))
    spans = (best > LOWEST / 2).sum(-1, keepdim=True).clamp(min=1)
    slots = torch.arange(count, device=scores.device) % spans
    chosen = index.gather(1, slots)
    return torch.stack([chosen // words, chosen % words], -1), best.gather(1, slots)


def initializer_loss(
    scores: Tensor, gold: Tensor, present: Tensor, whole: Tensor | None = None
) -> Tensor:
    """Every gold span above, every other span below a score of zero, [B] (Su et al., 2022).

    gold: [B, N, 2] word indices; present: [B, N] false for padding; whole: [B] false where some
    types were not marked, so that a span which looks like an entity may be one.
    """
    batch, words, _ = scores.shape
    cells = gold[..., 0] * words + gold[..., 1]
    # One cell more than there are spans collects what is padding.
    flags = torch.zeros(batch, words * words + 1, dtype=torch.bool, device=scores.device)
    flags = flags.scatter(1, cells.masked_fill(~present, words * words), True)[:, :-1]
    flat = scores.flatten(1)
    zero = flat.new_zeros(batch, 1)
    positive = torch.cat([(-flat).masked_fill(~flags, LOWEST), zero], -1).logsumexp(-1)
    spared = flags
    if whole is not None:
        spared = flags | ((flat.detach() > 0) & ~whole[:, None])
    negative = torch.cat([flat.masked_fill(spared, LOWEST), zero], -1).logsumexp(-1)
    return positive + negative
