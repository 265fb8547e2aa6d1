"""Triton kernels of the pointer scores and their gradients. Imported on CUDA only.

Each program keeps blocks of relu(word + span) in registers; the backward pass recomputes them.
B sentences, Q spans, M words, h hidden units. Padding is neither computed nor written.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

SPANS, WORDS, HIDDEN = 16, 16, 32  # block size


@triton.jit
def _scores(
    words, spans, weight, lengths, out, Q, M, H,
    BQ: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    sentence = tl.program_id(0).to(tl.int64)
    q = tl.program_id(1) * BQ + tl.arange(0, BQ)
    m = tl.program_id(2) * BM + tl.arange(0, BM)
    length = tl.load(lengths + sentence)
    if tl.program_id(2) * BM >= length:
        return
    words += sentence * M * H
    spans += sentence * Q * H
    total = tl.zeros((BQ, BM), tl.float32)
    for start in range(0, H, BH):
        h = start + tl.arange(0, BH)
        inside = h < H
        w = tl.load(words + m[:, None] * H + h, (m < M)[:, None] & inside, 0.0).to(tl.float32)
        s = tl.load(spans + q[:, None] * H + h, (q < Q)[:, None] & inside, 0.0).to(tl.float32)
        v = tl.load(weight + h, inside, 0.0)
        block = tl.maximum(w[None, :, :] + s[:, None, :], 0.0)  # [BQ, BM, BH]
        total += tl.sum(block * v[None, None, :], 2)
    place = out + sentence * Q * M + q[:, None] * M + m[None, :]
    tl.store(place, total, (q < Q)[:, None] & (m < M)[None, :])


@triton.jit
def _of_spans(
    gradient, words, spans, weight, lengths, out, of_weight, Q, M, H,
    BQ: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """Gradients of some spans, and their share of the weight's gradient."""
    sentence = tl.program_id(0).to(tl.int64)
    q = tl.program_id(1) * BQ + tl.arange(0, BQ)
    h = tl.program_id(2) * BH + tl.arange(0, BH)
    inside = h < H
    gradient += sentence * Q * M
    words += sentence * M * H
    of_these = (q < Q)[:, None] & inside
    s = tl.load(spans + sentence * Q * H + q[:, None] * H + h, of_these, 0.0).to(tl.float32)
    v = tl.load(weight + h, inside, 0.0)
    total = tl.zeros((BQ, BH), tl.float32)
    part = tl.zeros((BH,), tl.float32)
    length = tl.load(lengths + sentence)
    for start in range(0, length, BM):
        m = start + tl.arange(0, BM)
        w = tl.load(words + m[:, None] * H + h, (m < length)[:, None] & inside, 0.0)
        w = w.to(tl.float32)
        known = (q < Q)[:, None] & (m < length)[None, :]
        g = tl.load(gradient + q[:, None] * M + m[None, :], known, 0.0)
        joined = w[None, :, :] + s[:, None, :]  # [BQ, BM, BH]
        positive = tl.where(joined > 0, g[:, :, None], 0.0)
        total += tl.sum(positive, 1)
        part += tl.sum(tl.sum(positive * joined, 1), 0)
    tl.store(out + sentence * Q * H + q[:, None] * H + h, total * v, of_these)
    row = sentence * tl.num_programs(1) + tl.program_id(1)
    tl.store(of_weight + row * H + h, part, inside)


@triton.jit
def _of_words(
    gradient, words, spans, weight, lengths, out, Q, M, H,
    BQ: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    sentence = tl.program_id(0).to(tl.int64)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    h = tl.program_id(2) * BH + tl.arange(0, BH)
    inside = h < H
    gradient += sentence * Q * M
    spans += sentence * Q * H
    of_these = (m < M)[:, None] & inside
    w = tl.load(words + sentence * M * H + m[:, None] * H + h, of_these, 0.0).to(tl.float32)
    v = tl.load(weight + h, inside, 0.0)
    total = tl.zeros((BM, BH), tl.float32)
    length = tl.load(lengths + sentence)
    # Blocks of padding have no spans to sum over: their gradient of 0 is written.
    last = tl.where(tl.program_id(1) * BM < length, Q, 0)
    for start in range(0, last, BQ):
        q = start + tl.arange(0, BQ)
        s = tl.load(spans + q[:, None] * H + h, (q < Q)[:, None] & inside, 0.0).to(tl.float32)
        known = (q < Q)[:, None] & (m < length)[None, :]
        g = tl.load(gradient + q[:, None] * M + m[None, :], known, 0.0)
        joined = w[None, :, :] + s[:, None, :]
        total += tl.sum(tl.where(joined > 0, g[:, :, None], 0.0), 0)
    tl.store(out + sentence * M * H + m[:, None] * H + h, total * v, of_these)


def scores(words: Tensor, spans: Tensor, weight: Tensor, lengths: Tensor) -> Tensor:
    """words [B, M, h], spans [B, Q, h], weight [h] in float32 → [B, Q, M] in float32"""
    (batch, m, h), q = words.shape, spans.shape[1]
    out = words.new_empty(batch, q, m, dtype=torch.float32)
    grid = (batch, triton.cdiv(q, SPANS), triton.cdiv(m, WORDS))
    _scores[grid](words, spans, weight, lengths, out, q, m, h, SPANS, WORDS, HIDDEN)
    return out


def gradients(
    gradient: Tensor, words: Tensor, spans: Tensor, weight: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of words, spans and weight, in float32. gradient: [B, Q, M]."""
    (batch, m, h), q = words.shape, spans.shape[1]
    sizes = (SPANS, WORDS, HIDDEN)
    rows, columns = triton.cdiv(q, SPANS), triton.cdiv(h, HIDDEN)
    of_words = torch.empty_like(words, dtype=torch.float32)
    of_spans = torch.empty_like(spans, dtype=torch.float32)
    of_weight = words.new_empty(batch * rows, h, dtype=torch.float32)
    given = (gradient, words, spans, weight, lengths)
    _of_spans[(batch, rows, columns)](*given, of_spans, of_weight, q, m, h, *sizes)
    _of_words[(batch, triton.cdiv(m, WORDS), columns)](*given, of_words, q, m, h, *sizes)
    return of_words, of_spans, of_weight.sum(0)


class FusedScores(torch.autograd.Function):
    """Pointer scores in float32, whatever the dtype of words and spans."""

    @staticmethod
    def forward(ctx: Any, words: Tensor, spans: Tensor, weight: Tensor, lengths: Tensor) -> Tensor:
        words, spans = words.contiguous(), spans.contiguous()
        ctx.save_for_backward(words, spans, weight, lengths)
        return scores(words, spans, weight.float(), lengths)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        words, spans, weight, lengths = ctx.saved_tensors
        of_words, of_spans, of_weight = gradients(
            gradient.float().contiguous(), words, spans, weight.float(), lengths
        )
        return of_words.to(words.dtype), of_spans.to(spans.dtype), of_weight.to(weight.dtype), None
