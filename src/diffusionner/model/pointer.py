"""Scores of K spans for M words: Σ_h relu(word + span) · weight, without a K × M × h tensor.

On a GPU, Triton kernels hold a small block of that tensor at a time and nothing of it in memory;
the backward pass makes it anew. On a CPU, inference is by distances; training does what the formula
says.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

try:
    from diffusionner.model import pointer_kernels
except ImportError:  # Triton comes with torch where there are GPUs for it
    pointer_kernels = None  # type: ignore[assignment]


def pointer_scores(words: Tensor, spans: Tensor, weight: Tensor, lengths: Tensor) -> Tensor:
    """words [B, M, h], spans [B, Q, h], weight [h] → [B, Q, M]

    What is found for words behind a sentence's length [B] is not defined.
    """
    if words.is_cuda and pointer_kernels is not None:
        scores: Tensor = _FusedScores.apply(words, spans, weight, lengths)  # type: ignore[no-untyped-call]
        return scores
    if not torch.is_grad_enabled() and not words.is_cuda and not torch.compiler.is_compiling():
        return _by_distances(words.float(), spans.float(), weight.float())
    fused = F.relu(words[:, None] + spans[:, :, None])
    return F.linear(fused, weight[None]).squeeze(-1)


def _by_distances(words: Tensor, spans: Tensor, weight: Tensor) -> Tensor:
    """relu(x) is half of x + |x|, and Σ weight · |word - (-span)| a distance of two points.

    Of two, rather: one over the hidden units of positive weight, one over the others.
    """
    size, order = weight.abs(), weight.argsort(descending=True)
    positive = int((weight > 0).sum())
    scaled = (words * size)[..., order], (spans * -size)[..., order]
    above, below = (
        torch.cdist(s, w, p=1)
        for w, s in zip(*(part.tensor_split([positive], -1) for part in scaled), strict=True)
    )
    linear = (spans @ weight)[..., :, None] + (words @ weight)[..., None, :]
    return (linear + above - below) / 2


class _FusedScores(torch.autograd.Function):
    """In float32, whatever the words and spans are in."""

    @staticmethod
    def forward(ctx: Any, words: Tensor, spans: Tensor, weight: Tensor, lengths: Tensor) -> Tensor:
        words, spans = words.contiguous(), spans.contiguous()
        ctx.save_for_backward(words, spans, weight, lengths)
        return pointer_kernels.scores(words, spans, weight.float(), lengths)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        words, spans, weight, lengths = ctx.saved_tensors
        of_words, of_spans, of_weight = pointer_kernels.gradients(
            gradient.float().contiguous(), words, spans, weight.float(), lengths
        )
        return of_words.to(words.dtype), of_spans.to(spans.dtype), of_weight.to(weight.dtype), None
