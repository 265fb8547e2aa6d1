"""The initializer: which spans of a sentence to start the reverse process from, instead of noise.

Every span of the sentence gets one score, a product of its first and its last word. The likeliest
are the candidates that the decoder then denoises, as if they were noisy spans of a late timestep.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from diffusionner.diffusion.span_counts import LOWEST

SIZE = 64  # of the two vectors whose product scores a span


class Initializer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.project = nn.Linear(size, 2 * SIZE + 2)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """H_S [B, M, h], mask [B, M] true for words → scores [B, M, M] of (left, right), float32"""
        first, last, alone = self.project(states).float().split([SIZE, SIZE, 2], -1)
        words = states.shape[1]
        first, last = rotate(first), rotate(last)
        scores = first @ last.transpose(1, 2) / math.sqrt(SIZE)
        scores = scores + alone[..., :1] + alone[..., 1][:, None]
        ordered = torch.ones(words, words, dtype=torch.bool, device=mask.device).triu()
        return scores.masked_fill(~(ordered & mask[:, None]), LOWEST)


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
