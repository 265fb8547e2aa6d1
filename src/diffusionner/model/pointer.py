"""Scores of K spans for M words: Σ_h relu(word + span) · weight, without a K × M × h tensor.

On a GPU, Triton kernels hold a small block of that tensor at a time and nothing of it in memory;
the backward pass makes it anew. Elsewhere it is what the formula says.
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
    fused = F.relu(words[:, None] + spans[:, :, None])
    return F.linear(fused, weight[None]).squeeze(-1)


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
