"""The boundary pointers: how well each word continues a span as its boundary (paper, 4.2).

Shapes: B sentences, D sets of noisy spans for each, K noisy spans, Q spans, M words, h hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class BoundaryPointer(nn.Module):
    """Logits of P^δ = sigmoid(MLP(H_S W_S + H_X W_X)).

    The first layer of the two-layer perceptron acts on a sum of linear maps, so it is absorbed into
    W_S and W_X: the same family of functions without an h × h product for each span and word.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.words = nn.Linear(size, size)
        self.spans = nn.Linear(size, size, bias=False)
        self.output = nn.Linear(size, 1)

    def forward(self, words: Tensor, spans: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
        """words (projected) [B, M, h], spans [B, D, K, h], mask [B, M] → logits [B, D, K, M]"""
        batch, draws, count, size = spans.shape
        projected = self.spans(spans).view(batch, draws * count, size)
        scores = pointer_scores(words, projected, self.output.weight[0], lengths)
        scores = (scores + self.output.bias).float().masked_fill(~mask[:, None], -1e4)
        return scores.view(batch, draws, count, -1)


def pointer_scores(words: Tensor, spans: Tensor, weight: Tensor, lengths: Tensor) -> Tensor:
    """Return Σ_h relu(word + span)·weight for words [B, M, h] and spans [B, Q, h]: [B, Q, M].

    The B × Q × M × h tensor is never stored, except by an exported graph. The scores of padding are
    undefined.
    """
    if torch.compiler.is_compiling():
        fused = F.relu(words[:, None] + spans[:, :, None])
        return F.linear(fused, weight[None]).squeeze(-1)
    kernel = _fused_scores() if words.is_cuda else None
    if kernel is not None:
        return kernel(words, spans, weight, lengths)
    dtype = torch.promote_types(words.dtype, torch.float32)
    by_distances: Callable[..., Tensor] = DistanceScores.apply
    return by_distances(words.to(dtype), spans.to(dtype), weight.to(dtype))


@cache
def _fused_scores() -> Callable[..., Tensor] | None:
    try:
        from diffusionner.model.pointer_kernels import FusedScores
    except ImportError:  # Triton is missing on some platforms
        return None
    return FusedScores.apply


class DistanceScores(torch.autograd.Function):
    """Pointer scores by L1 distances, for which torch has kernels that store no large tensor."""

    @staticmethod
    def forward(ctx: Any, words: Tensor, spans: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(words, spans, weight)
        # relu(x) = (x + |x|) / 2, and Σ |weight|·|word - (-span)| is an L1 distance: one over the
        # hidden units with positive weight minus one over the others.
        magnitude, order = weight.abs(), weight.argsort(descending=True)
        positive = int((weight > 0).sum())
        scaled = (words * magnitude)[..., order], (spans * -magnitude)[..., order]
        above, below = (
            torch.cdist(s, w, p=1)
            for w, s in zip(*(part.tensor_split([positive], -1) for part in scaled), strict=True)
        )
        linear = (spans @ weight)[..., :, None] + (words @ weight)[..., None, :]
        return (linear + above - below) / 2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        words, spans, weight = ctx.saved_tensors
        # The gradient of Σ |word - (-span)| sums signs. A further unit, always active, sums ones in
        # the same order, so that a unit that is never active gets exactly zero.
        with torch.enable_grad():
            first = F.pad(words, (0, 1), value=1.0).requires_grad_()
            second = F.pad(-spans, (0, 1)).requires_grad_()
            distances = torch.cdist(second, first, p=1)
        of_first, of_second = torch.autograd.grad(distances, (first, second), gradient)
        of_words = (of_first[..., :-1] + of_first[..., -1:]) / 2  # sums over spans that are active
        of_spans = -(of_second[..., :-1] + of_second[..., -1:]) / 2
        of_weight = (words * of_words).sum((0, 1)) + (spans * of_spans).sum((0, 1))
        return of_words * weight, of_spans * weight, of_weight
