"""The initializer: scores every span of a sentence, so that denoising can start from the likeliest.

A span's score is a product of its first and last word, plus one score for each type if the
initializer knows the types. The likeliest spans are the candidates that the decoder denoises as if
they were noisy spans of an early timestep.

Shapes: B sentences, M words, S size of a boundary's state, C types.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffusionner.diffusion import Candidates

SPAN_SIZE = 64  # of the two vectors whose product scores a span
BIAFFINE_SIZE = 150  # S, as published
PRODUCT_SIZE = 256  # S, if types are vectors
RARE = -60.0  # start of the bias of a type, before it is divided by the root of S
MAX_WIDTH = 32  # words; all wider spans share one bias
IMPOSSIBLE = -1e4  # score of a pair of words that is not a span


@dataclass
class SpanScores:
    """Scores of every span (left, right) of a sentence, in float32."""

    spans: Tensor  # [B, M, M] log-odds that it is an entity
    types: Tensor | None = None  # [B, M, M, C] logits of each type; that of no-entity is zero
    exclusive: bool = True  # a span has at most one type

    def span_probabilities(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the probability that spans are entities. left, right: [B, D, K] → [B, D, K]"""
        cells = (left * self.spans.shape[1] + right).flatten(1)
        return self.spans.flatten(1).gather(1, cells).view(left.shape).sigmoid()

    def type_logits(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the logits of each type and of no-entity: [B, D, K, C + 1]."""
        assert self.types is not None
        types = self.types.shape[-1]
        cells = (left * self.spans.shape[1] + right).flatten(1)[..., None].expand(-1, -1, types)
        chosen = self.types.flatten(1, 2).gather(1, cells).view(*left.shape, types)
        return F.pad(chosen, (0, 1))

    def type_probabilities(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the probabilities of each type and of no-entity: [B, D, K, C + 1]."""
        return type_probabilities(self.type_logits(left, right), self.exclusive)

    def candidates(self, spans: Tensor, slots: Tensor) -> Candidates[Tensor]:
        """Score spans [B, K, 2] by their type alone, without denoising; slots: [B, K].

        The span is as likely as its type, so P^l + P^r + P^c is three times that probability.
        """
        spans, slots = spans[:, None], slots[:, None]  # as one step
        left, right = spans.unbind(-1)
        logits = self.type_logits(left, right)
        probabilities = type_probabilities(logits, self.exclusive)
        probability, type_id = probabilities.max(-1)
        is_entity = (type_id < probabilities.shape[-1] - 1) & slots
        return Candidates(
            left, right, type_id, 3 * probability, probability, is_entity, slots, spans, logits
        )


def type_probabilities(logits: Tensor, exclusive: bool) -> Tensor:
    """Return the probability of each type and of no-entity, [..., C + 1].

    exclusive: they add up to one. Otherwise a span can be of several types, the probability of each
    is independent of what else is asked for, and that of no-entity is zero: thresholds decide.
    """
    if exclusive:
        return logits.softmax(-1)
    return F.pad(logits[..., :-1].sigmoid(), (0, 1))


class Biaffine(nn.Module):
    """Scores every span for every type: sᵀ U e + W (s ‖ e) + b + width bias (Yu et al., 2020)."""

    # Prefixes of the weights that belong to the types.
    type_weights = ("product", "first_weight", "last_weight", "width")

    def __init__(self, size: int, types: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(size, BIAFFINE_SIZE)
        self.last = nn.Linear(size, BIAFFINE_SIZE)
        self.dropout = nn.Dropout(dropout)
        self.product = nn.Linear(BIAFFINE_SIZE, types * BIAFFINE_SIZE, bias=False)  # U per type
        nn.init.normal_(self.product.weight, std=1 / BIAFFINE_SIZE)
        self.first_weight = nn.Linear(BIAFFINE_SIZE, types)
        self.last_weight = nn.Linear(BIAFFINE_SIZE, types, bias=False)
        self.width = nn.Parameter(torch.zeros(MAX_WIDTH, types))

    def forward(self, states: Tensor) -> Tensor:
        """H_S [B, M, h] → [B, M, M, types] of (left, right), in float32"""
        first = self.dropout(F.gelu(self.first(states)))
        last = self.dropout(F.gelu(self.last(states)))
        batch, words, _ = states.shape
        turned = self.product(first).view(batch, -1, BIAFFINE_SIZE)  # [B, M * types, S]
        pairs = (turned @ last.transpose(1, 2)).view(batch, words, -1, words).transpose(2, 3)
        alone = self.first_weight(first)[:, :, None] + self.last_weight(last)[:, None]
        return pairs.float() + alone.float() + width_bias(self.width, words)


class SpanTypeProduct(nn.Module):
    """Scores every span for every type that is given as a vector.

    A type's vector becomes the diagonal of U and the two halves of W in sᵀ U e + W (s ‖ e) + b.
    """

    def __init__(self, size: int, type_size: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(size, PRODUCT_SIZE)
        self.last = nn.Linear(size, PRODUCT_SIZE)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(type_size)
        self.factors = nn.Linear(type_size, 3 * PRODUCT_SIZE + 1)
        nn.init.constant_(self.factors.bias[-1:], RARE)
        self.width = nn.Parameter(torch.zeros(MAX_WIDTH))

    def forward(self, states: Tensor, types: Tensor) -> Tensor:
        """H_S [B, M, h], types [B, C, type size] → [B, M, M, C] of (left, right), in float32"""
        first = self.dropout(F.gelu(self.first(states)))
        last = self.dropout(F.gelu(self.last(states)))
        factors = self.factors(self.norm(types)) / math.sqrt(PRODUCT_SIZE)
        of_both, of_first, of_last, bias = factors.split([*[PRODUCT_SIZE] * 3, 1], -1)
        turned = first[:, None] * of_both[:, :, None]  # [B, C, M, S]
        scores = (turned @ last.transpose(1, 2)[:, None]).float()  # [B, C, M, M]
        scores = scores + (of_first @ first.transpose(1, 2))[..., None]
        scores = scores + (of_last @ last.transpose(1, 2))[:, :, None] + bias[..., None]
        return (scores + width_bias(self.width, states.shape[1])).permute(0, 2, 3, 1)


def width_bias(biases: Tensor, words: int) -> Tensor:
    """Return the bias of each span by its width: [MAX_WIDTH, ...] → [M, M, ...], in float32."""
    word = torch.arange(words, device=biases.device)
    width = (word - word[:, None]).clamp(0, MAX_WIDTH - 1)  # [M, M]
    # A product with one-hot rows: the gradient of indexing would be accumulated word by word.
    return (F.one_hot(width, MAX_WIDTH).to(biases.dtype) @ biases).float()


class Initializer(nn.Module):
    """Scores all spans of a sentence."""

    type_weights = tuple(f"types.{name}" for name in Biaffine.type_weights)

    def __init__(self, size: int, types: int, dropout: float, type_size: int | None = None) -> None:
        """types: number of types to score; 0 scores spans regardless of type.

        type_size: size of the vectors of types, if they are given as vectors.
        """
        super().__init__()
        self.project = nn.Linear(size, 2 * SPAN_SIZE + 2)
        self.types: Biaffine | SpanTypeProduct | None = None
        if type_size is not None:
            self.types = SpanTypeProduct(size, type_size, dropout)
        elif types:
            self.types = Biaffine(size, types, dropout)

    def forward(self, states: Tensor, mask: Tensor, vectors: Tensor | None = None) -> SpanScores:
        """H_S [B, M, h], mask [B, M] true for words, vectors of types [B, C, type size]"""
        first, last, alone = self.project(states).float().split([SPAN_SIZE, SPAN_SIZE, 2], -1)
        scores = rotate(first) @ rotate(last).transpose(1, 2) / math.sqrt(SPAN_SIZE)
        scores = scores + alone[..., :1] + alone[..., 1][:, None]
        outside = ~valid_spans(mask)
        if self.types is None:
            return SpanScores(scores.masked_fill(outside, IMPOSSIBLE))
        if isinstance(self.types, SpanTypeProduct):
            types = self.types(states, vectors) + scores[..., None]
            if (
                self.training and vectors is not None
            ):  # rows are asked for different numbers of labels
                padding = vectors.eq(0).all(-1)[:, None, None]
                types = types.masked_fill(padding, IMPOSSIBLE)
            return SpanScores(types.amax(-1).masked_fill(outside, IMPOSSIBLE), types, False)
        types = self.types(states) + scores[..., None]
        return SpanScores(types.logsumexp(-1).masked_fill(outside, IMPOSSIBLE), types)


def valid_spans(mask: Tensor) -> Tensor:
    """Return which pairs of words are the first and last of a span: [B, M] of words → [B, M, M]."""
    words = mask.shape[1]
    ordered = torch.ones(words, words, dtype=torch.bool, device=mask.device).triu()
    return ordered & mask[:, None]


def rotate(vectors: Tensor) -> Tensor:
    """Rotate each pair of dimensions by an angle that grows with the word's position (RoFormer).

    The product of two words' vectors then depends on their distance: on the width of the span.
    """
    words, size = vectors.shape[1:]
    rates = 10_000.0 ** (-torch.arange(size // 2, device=vectors.device) / (size // 2))
    angles = torch.arange(words, device=vectors.device)[:, None] * rates  # [M, size / 2]
    cos, sin = angles.cos(), angles.sin()
    even, odd = vectors[..., 0::2], vectors[..., 1::2]
    return torch.cat([even * cos - odd * sin, even * sin + odd * cos], -1)


def best_spans(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the likeliest spans [B, K, 2], best first, and their scores [B, K].

    They repeat if a sentence has fewer spans.
    """
    words = scores.shape[1]
    best, index = scores.flatten(1).topk(min(count, words * words))
    spans = (best > IMPOSSIBLE / 2).sum(-1, keepdim=True).clamp(min=1)
    slots = torch.arange(count, device=scores.device) % spans
    chosen = index.gather(1, slots)
    return torch.stack([chosen // words, chosen % words], -1), best.gather(1, slots)


def span_loss(
    scores: Tensor, gold: Tensor, present: Tensor, complete: Tensor | None = None
) -> Tensor:
    """Push every gold span above and every other span below a score of zero: [B] (Su et al., 2022).

    gold: [B, N, 2] word indices; present: [B, N] false for padding; complete: [B] false where some
    types were not annotated, so that a span that looks like an entity may be one.
    """
    batch, words, _ = scores.shape
    cells = gold[..., 0] * words + gold[..., 1]
    # One extra cell collects the padding.
    flags = torch.zeros(batch, words * words + 1, dtype=torch.bool, device=scores.device)
    flags = flags.scatter(1, cells.masked_fill(~present, words * words), True)[:, :-1]
    flat = scores.flatten(1)
    zero = flat.new_zeros(batch, 1)
    positive = torch.cat([(-flat).masked_fill(~flags, IMPOSSIBLE), zero], -1).logsumexp(-1)
    ignored = flags
    if complete is not None:
        ignored = flags | ((flat.detach() > 0) & ~complete[:, None])
    negative = torch.cat([flat.masked_fill(ignored, IMPOSSIBLE), zero], -1).logsumexp(-1)
    return positive + negative
