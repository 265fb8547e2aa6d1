"""The entity decoder: noisy spans and the sentence encoding → boundaries and types.

Shapes: B sentences, D noise draws each, K noisy spans, M words, h hidden size, C types. Everything
that depends on the sentence alone is computed once in `prepare` and reused at every step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffusionner.diffusion.span_counts import NO_ENTITY, NO_SPAN
from diffusionner.errors import SettingsError
from diffusionner.model.encoder import SentenceEncoding
from diffusionner.model.initializer import Initial, Initializer
from diffusionner.model.pointer import pointer_scores
from diffusionner.settings import DecoderSettings

CLASSIFIER = "classifier.3."  # the last layer of a span decoder: its weights are of the types


@dataclass
class Prediction:
    """Unnormalised scores: sigmoid gives P^l and P^r, softmax P^c. The last type is no-entity."""

    left: Tensor  # [B, D, K, M]
    right: Tensor  # [B, D, K, M]
    types: Tensor  # [B, D, K, C + 1]


@dataclass
class PointedSentence:
    """What attention and pointers need of H_S."""

    mask: Tensor  # [B, M] true for words
    lengths: Tensor  # [B]
    keys_values: list[tuple[Tensor, Tensor] | None]  # per layer, [B, heads, M, h / heads]
    left: Tensor  # [B, M, h] H_S W_S of the left pointer
    right: Tensor


Words: TypeAlias = PointedSentence | SentenceEncoding  # which of M are words, by sentence


@dataclass
class PreparedSentence(PointedSentence):
    """What the decoder derives from H_S, once for all steps."""

    starts: Tensor  # [B, M, h] what a span's first word gives to H_X
    ends: Tensor  # [B, M, h] what its last word gives
    initial: Initial | None = None


class Attention(nn.Module):
    """Multi-head attention whose keys and values can be computed ahead."""

    def __init__(self, size: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(size, size)
        self.key_value = nn.Linear(size, 2 * size)
        self.output = nn.Linear(size, size)

    def keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """[B, S, h] → two of [B, heads, S, h / heads]"""
        keys, values = self.key_value(source).chunk(2, dim=-1)
        return self._split(keys), self._split(values)

    def forward(self, target: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """target [B, Q, h]; mask [B, S], true where attention is allowed → [B, Q, h]"""
        return self.attend(target, keys, values, None if mask is None else mask[:, None, None, :])

    def attend(self, target: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """The same with a mask of [B, heads, Q, S], or of ones in places of these."""
        attended = F.scaled_dot_product_attention(
            self._split(self.query(target)),
            keys,
            values,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.output(attended.transpose(1, 2).reshape(target.shape))

    def _split(self, x: Tensor) -> Tensor:
        batch, length, size = x.shape
        return x.view(batch, length, self.heads, size // self.heads).transpose(1, 2)


class FeedForward(nn.Sequential):
    def __init__(self, size: int, inner: int, dropout: float) -> None:
        super().__init__(
            nn.Linear(size, inner), nn.GELU(), nn.Dropout(dropout), nn.Linear(inner, size)
        )


class SpanEncoderLayer(nn.Module):
    """Attention among the spans, attention to the sentence, a feed-forward layer after each."""

    def __init__(self, size: int, settings: DecoderSettings) -> None:
        super().__init__()
        self.self_attention = self.cross_attention = None
        blocks = 0
        if settings.self_attention:
            self.self_attention = Attention(size, settings.heads, settings.dropout)
            blocks += 1
        if settings.cross_attention:
            self.cross_attention = Attention(size, settings.heads, settings.dropout)
            blocks += 1
        self.feedforwards = nn.ModuleList(
            FeedForward(size, settings.feedforward, settings.dropout) for _ in range(blocks)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2 * blocks))
        self.dropout = nn.Dropout(settings.dropout)

    def keys_values(self, states: Tensor) -> tuple[Tensor, Tensor] | None:
        """What cross-attention needs of H_S [B, M, h]; None without it."""
        return None if self.cross_attention is None else self.cross_attention.keys_values(states)

    def forward(
        self,
        spans: Tensor,
        keys_values: tuple[Tensor, Tensor] | None,
        words: Tensor,
        slots: Tensor | None,
    ) -> Tensor:
        """spans [B, D, K, h]; words [B, M] and slots [B, K] are masks → [B, D, K, h]"""
        batch, draws, count, size = spans.shape
        norms, feedforwards = iter(self.norms), iter(self.feedforwards)

        def close(x: Tensor, attended: Tensor) -> Tensor:
            x = next(norms)(x + self.dropout(attended))
            return next(norms)(x + self.dropout(next(feedforwards)(x)))

        if self.self_attention is not None:
            alone = spans.reshape(batch * draws, count, size)  # draws do not see each other
            visible = None
            if slots is not None:
                visible = slots.repeat_interleave(draws, 0)
                # A row that may look at nothing has no softmax; its result is not used.
                visible = visible | ~visible.any(-1, keepdim=True)
            keys, values = self.self_attention.keys_values(alone)
            attended = self.self_attention(alone, keys, values, visible)
            spans = close(alone, attended).view(batch, draws, count, size)
        if self.cross_attention is not None and keys_values is not None:
            joined = spans.reshape(batch, draws * count, size)
            attended = self.cross_attention(joined, *keys_values, words)
            spans = close(joined, attended).view(batch, draws, count, size)
        return spans


class BoundaryPointer(nn.Module):
    """P^δ = sigmoid(MLP(H_S W_S + H_X W_X)) before the sigmoid.

    The first layer of the two-layer perceptron acts on a sum of linear maps, so it is absorbed
    into W_S and W_X: the same family of functions without an h × h product per span and word.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.words = nn.Linear(size, size)
        self.spans = nn.Linear(size, size, bias=False)
        self.output = nn.Linear(size, 1)

    def forward(self, words: Tensor, spans: Tensor, sentence: Words) -> Tensor:
        """words (projected) [B, M, h], spans [B, D, K, h] → scores [B, D, K, M]"""
        batch, draws, count, size = spans.shape
        projected = self.spans(spans).view(batch, draws * count, size)
        scores = pointer_scores(words, projected, self.output.weight[0], sentence.lengths)
        scores = (scores + self.output.bias).float().masked_fill(~sentence.mask[:, None], -1e4)
        return scores.view(batch, draws, count, -1)


class Offsets(nn.Module):
    """How far the denoised boundaries lie from the noisy ones: a score for each distance.

    Without it a decoder has to find a boundary that is right already among all words, by what they
    mean; which takes long to learn.
    """

    def __init__(self, size: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.output = nn.Linear(size, 2 * (2 * reach + 1))

    def forward(self, hidden: Tensor, spans: Tensor, words: int) -> Tensor:
        """hidden [B, D, K, h], spans [B, D, K, 2] → [2, B, D, K, M] to add to left and right

        Words out of reach get nothing.
        """
        scores = self.output(hidden).float().unflatten(-1, (2, -1))  # [B, D, K, 2, 2 reach + 1]
        word = torch.arange(words, device=spans.device)
        distance = word - spans[..., None] + self.reach  # [B, D, K, 2, M]
        within = (distance >= 0) & (distance <= 2 * self.reach)
        chosen = scores.gather(-1, distance.clamp(0, 2 * self.reach))
        return torch.where(within, chosen, 0.0).movedim(-2, 0)


class SpanDecoder(nn.Module):
    """Hidden states of K spans → attention among them and to the words → boundaries and types."""

    layers: nn.ModuleList
    left: BoundaryPointer
    right: BoundaryPointer
    classifier: nn.Sequential

    def add_layers(self, size: int, types: int, settings: DecoderSettings) -> None:
        """For __init__, behind whatever makes the hidden states: so weights are drawn in order."""
        has_attention = settings.self_attention or settings.cross_attention
        self.layers = nn.ModuleList(
            SpanEncoderLayer(size, settings) for _ in range(settings.layers if has_attention else 0)
        )
        self.left = BoundaryPointer(size)
        self.right = BoundaryPointer(size)
        self.classifier = nn.Sequential(
            nn.Linear(size, size),
            nn.GELU(),
            nn.Dropout(settings.dropout),
            nn.Linear(size, types + 1),
        )

    def read(self, encoding: SentenceEncoding) -> PointedSentence:
        states = encoding.states
        return PointedSentence(
            encoding.mask,
            encoding.lengths,
            keys_values=[layer.keys_values(states) for layer in self._span_encoder()],
            left=self.left.words(states),
            right=self.right.words(states),
        )

    def attend(self, sentence: PointedSentence, hidden: Tensor, slots: Tensor | None) -> Tensor:
        """The span encoder: hidden [B, D, K, h] → [B, D, K, h]"""
        words = sentence.mask
        for layer, keys_values in zip(self._span_encoder(), sentence.keys_values, strict=True):
            hidden = layer(hidden, keys_values, words, slots)
        return hidden

    def predict(self, sentence: PointedSentence, hidden: Tensor) -> Prediction:
        return Prediction(
            left=self.left(sentence.left, hidden, sentence),
            right=self.right(sentence.right, hidden, sentence),
            types=self.classifier(hidden).float(),
        )

    def _span_encoder(self) -> list[SpanEncoderLayer]:
        return [layer for layer in self.layers if isinstance(layer, SpanEncoderLayer)]


class EntityDecoder(SpanDecoder):
    """The hidden states are those of noisy spans, pooled from their words."""

    def __init__(self, size: int, types: int, timesteps: int, settings: DecoderSettings) -> None:
        super().__init__()
        self.pooling = settings.span_pooling
        if self.pooling == "endpoints":
            self.first = nn.Linear(size, size)
            self.last = nn.Linear(size, size)
            self.join = nn.Linear(2 * size, size)
        self.add_layers(size, types, settings)
        self.offsets = Offsets(size, settings.offset_window) if settings.offset_window else None
        self.initializer = None
        if settings.initializer != "none":
            known = types if settings.initializer == "types" else 0
            self.initializer = Initializer(size, known, settings.dropout)
        self.timestep_table: Tensor
        self.register_buffer(
            "timestep_table", sinusoidal_table(timesteps + 1, size), persistent=False
        )

    def prepare(self, encoding: SentenceEncoding) -> PreparedSentence:
        states = encoding.states
        starts, ends = self._pooling_tables(states)
        pointed = self.read(encoding)
        initial = self.initializer(states, encoding.mask) if self.initializer else None
        return PreparedSentence(**vars(pointed), starts=starts, ends=ends, initial=initial)

    def forward(
        self, sentence: PreparedSentence, spans: Tensor, t: Tensor, slots: Tensor | None = None
    ) -> Prediction:
        """spans [B, D, K, 2] word indices, t [B, D], slots [B, K] true for spans that count."""
        hidden = self.attend(sentence, self._pool(sentence, spans), slots)
        hidden = hidden + self.timestep_table[t][..., None, :].to(hidden.dtype)
        prediction = self.predict(sentence, hidden)
        if self.offsets is not None:
            left, right = self.offsets(hidden, spans, sentence.mask.shape[1])
            prediction.left, prediction.right = prediction.left + left, prediction.right + right
        return prediction

    def _pooling_tables(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """H_X is a function of two words of the span, and a sentence has few words.

        mean: the sums of H_S before the first word and up to the last one, in float32.
        endpoints: W(gelu(first) ‖ gelu(last)) is a sum, each term of which depends on one word.
        """
        if self.pooling == "mean":
            sums = states.float().cumsum(1)
            return F.pad(sums[:, :-1], (0, 0, 1, 0)), sums
        of_first, of_last = self.join.weight.chunk(2, dim=1)
        starts = F.linear(F.gelu(self.first(states)), of_first)
        return starts, F.linear(F.gelu(self.last(states)), of_last, self.join.bias)

    def _pool(self, sentence: PreparedSentence, spans: Tensor) -> Tensor:
        """H_X [B, D, K, h] from the words of each span."""
        batch, draws, count, _ = spans.shape
        left, right = spans.reshape(batch, draws * count, 2).unbind(-1)
        start, end = rows_of(sentence.starts, left), rows_of(sentence.ends, right)
        if self.pooling == "mean":
            mean = (end - start) / (right - left + 1)[..., None]
            pooled = mean.to(sentence.left.dtype)
        else:
            pooled = start + end
        return pooled.view(batch, draws, count, -1)


def rows_of(table: Tensor, index: Tensor) -> Tensor:
    """table [B, S, h], index [B, Q] → [B, Q, h]"""
    return table.gather(1, index[..., None].expand(-1, -1, table.shape[-1]))


def sinusoidal_table(rows: int, size: int) -> Tensor:
    """E_t for t = 0..rows-1, [rows, size] (Vaswani et al.)."""
    half = size // 2
    rates = torch.exp(-math.log(10_000) * torch.arange(half) / half)
    angles = torch.arange(rows)[:, None] * rates
    return F.pad(torch.cat([angles.sin(), angles.cos()], -1), (0, size - 2 * half))


def check_heads(size: int, settings: DecoderSettings) -> None:
    if size % settings.heads:
        raise SettingsError(
            f"decoder.heads={settings.heads} does not divide the encoder's size {size}; "
            f"set encoder.hidden_size to a multiple of {settings.heads}, or other heads"
        )


def read_out(prediction: Prediction, slots: Tensor, initial: Initial | None) -> Tensor:
    """arg-max boundaries and type of every span: [B, K, 5] = left, right, type, total, P^c.

    The total is -1 where the span is no entity: no-entity is likeliest, or right < left; and -2
    where the sentence has no such span. With an initializer, which has its own view of the span, it
    is the mean of both, on the same scale; and where that is typed, so is P^c.
    """
    # Of the scores, not their sigmoids: where these round to 0 or 1, several are the largest.
    left_score, left = prediction.left[:, 0].max(-1)
    right_score, right = prediction.right[:, 0].max(-1)
    boundaries = left_score.sigmoid() + right_score.sigmoid()
    types = prediction.types[:, 0].softmax(-1)  # [B, K, C + 1]
    cells = left * prediction.left.shape[-1] + right
    if initial is not None and initial.types is not None:
        of_types = initial.probabilities(cells)
        type_p, kind = ((types + of_types) / 2).max(-1)
        total = boundaries / 2 + type_p + of_types.gather(-1, kind[..., None])[..., 0]
    else:
        type_p, kind = types.max(-1)
        total = boundaries + type_p
        if initial is not None:
            total = (total + 3 * initial.spans.flatten(1).gather(1, cells).sigmoid()) / 2
    valid = (kind < types.shape[-1] - 1) & (left <= right) & slots
    total = torch.where(valid, total, NO_SPAN + (NO_ENTITY - NO_SPAN) * slots.float())
    return torch.stack([left.float(), right.float(), kind.float(), total, type_p], -1)
