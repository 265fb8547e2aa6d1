"""The entity decoder: noisy spans and the sentence encoding → boundaries and types (paper, 4.2).

Shapes: B sentences, D sets of noisy spans for each, K noisy spans, M words, h hidden size, C types.
Whatever depends on the sentence alone is computed once, in `prepare`, and reused at every step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffusionner.diffusion import Candidates
from diffusionner.errors import SettingsError
from diffusionner.model.encoder import SentenceEncoding
from diffusionner.model.initializer import Initializer, SpanScores, type_probabilities
from diffusionner.model.pointer import BoundaryPointer
from diffusionner.settings import DecoderSettings

KeysValues = tuple[Tensor, Tensor]  # [B, heads, S, h / heads] each


@dataclass
class PreparedSentence:
    """Projections of H_S that all denoising steps share."""

    mask: Tensor  # [B, M] true for words
    lengths: Tensor  # [B]
    keys_values: list[KeysValues | None]  # per layer; None without cross-attention
    left: Tensor  # [B, M, h] H_S W_S of the left pointer
    right: Tensor
    starts: Tensor  # [B, M, h] contribution of a span's first word to H_X
    ends: Tensor  # [B, M, h] contribution of its last word
    initial: SpanScores | None = None
    types: Tensor | None = None  # [B, C, type size], if types are vectors
    fragments: Tensor | None = None  # [B, M, M, C + 2] if discontinuous entities are learned


@dataclass
class Prediction:
    """Logits of K spans: sigmoid gives P^l and P^r, softmax P^c. The last type is no-entity."""

    left: Tensor  # [B, D, K, M]
    right: Tensor  # [B, D, K, M]
    types: Tensor  # [B, D, K, C + 1]
    spans: Tensor  # [B, D, K, 2] left and right word of the noisy spans
    exclusive: bool = True  # a span has at most one type


class EntityDecoder(nn.Module):
    """Span encoder, two boundary pointers and a type classifier over pooled noisy spans."""

    # Prefixes of the weights that belong to the types.
    type_weights = ("classifier.3.", *(f"initializer.{name}" for name in Initializer.type_weights))

    def __init__(
        self, size: int, types: int, timesteps: int, settings: DecoderSettings, type_size: int = 0
    ) -> None:
        """type_size: size of the vectors of types, if they are vectors."""
        super().__init__()
        if size % settings.heads:
            raise SettingsError(
                f"decoder.heads={settings.heads} does not divide the encoder's size {size}; set "
                f"encoder.hidden_size to a multiple of {settings.heads}, or change decoder.heads"
            )
        self.pooling = settings.span_pooling
        if self.pooling == "endpoints":
            self.first = nn.Linear(size, size)
            self.last = nn.Linear(size, size)
            self.join = nn.Linear(2 * size, size)
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
            nn.Linear(size, type_size if settings.joins_labels else types + 1),
        )
        self.to_factors = nn.Linear(type_size, type_size + 1) if settings.joins_labels else None
        window = settings.offset_window
        self.offsets = OffsetScores(size, window) if window else None
        self.initializer = None
        if settings.initializer != "none":
            scored_types = types if settings.initializer == "types" else 0
            vectors = type_size if settings.joins_labels else None
            self.initializer = Initializer(size, scored_types, settings.dropout, vectors)
        self.timestep_table: Tensor
        self.register_buffer(
            "timestep_table", sinusoidal_table(timesteps + 1, size), persistent=False
        )

    def prepare(self, encoding: SentenceEncoding) -> PreparedSentence:
        """Compute everything that depends on the sentence alone."""
        sentence = self.project(encoding)
        sentence.initial = self.initial(encoding)
        return sentence

    def project(self, encoding: SentenceEncoding) -> PreparedSentence:
        """Compute what the denoising steps share."""
        states = encoding.states
        starts, ends = self._pooling_tables(states)
        return PreparedSentence(
            encoding.mask,
            encoding.lengths,
            keys_values=[
                attention.keys_values(states) if isinstance(attention, Attention) else None
                for attention in (layer.cross_attention for layer in self.layers)
            ],
            left=self.left.words(states),
            right=self.right.words(states),
            starts=starts,
            ends=ends,
            types=encoding.types,
        )

    def initial(self, encoding: SentenceEncoding) -> SpanScores | None:
        """Score all spans with the initializer, if there is one."""
        if self.initializer is None:
            return None
        scores: SpanScores = self.initializer(encoding.states, encoding.mask, encoding.types)
        return scores

    def forward(
        self, sentence: PreparedSentence, spans: Tensor, t: Tensor, slots: Tensor | None = None
    ) -> Prediction:
        """Predict boundaries and types of the noisy spans.

        spans [B, D, K, 2] word indices; t [B, D]; slots [B, K] true for spans that others may see,
        None for all.
        """
        hidden = self.encode_spans(sentence, self._pool(sentence, spans), slots)
        hidden = hidden + self.timestep_table[t][..., None, :].to(hidden.dtype)
        return self.predict(sentence, hidden, spans)

    def encode_spans(
        self, sentence: PreparedSentence, hidden: Tensor, slots: Tensor | None
    ) -> Tensor:
        """Run the span encoder: H_X [B, D, K, h] → [B, D, K, h]."""
        for layer, keys_values in zip(self.layers, sentence.keys_values, strict=True):
            hidden = layer(hidden, keys_values, sentence.mask, slots)
        return hidden

    def predict(self, sentence: PreparedSentence, hidden: Tensor, spans: Tensor) -> Prediction:
        """Point at boundaries and classify: hidden [B, D, K, h]."""
        left = self.left(sentence.left, hidden, sentence.mask, sentence.lengths)
        right = self.right(sentence.right, hidden, sentence.mask, sentence.lengths)
        if self.offsets is not None:
            more_left, more_right = self.offsets(hidden, spans, sentence.mask.shape[1])
            left, right = left + more_left, right + more_right
        types = self.classifier(hidden)
        if self.to_factors is None or sentence.types is None:
            return Prediction(left, right, types.float(), spans)
        factors, bias = self.to_factors(sentence.types).split([types.shape[-1], 1], -1)
        products = types.flatten(1, 2) @ factors.transpose(1, 2) / math.sqrt(types.shape[-1])
        logits = (products + bias.transpose(1, 2)).view(*types.shape[:-1], -1).float()
        return Prediction(left, right, F.pad(logits, (0, 1)), spans, exclusive=False)

    def _pooling_tables(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the contribution of every word to H_X as the first and as the last of a span.

        mean: the sums of H_S before the first word and up to the last one, in float32.
        endpoints: W(gelu(first) ‖ gelu(last)) is a sum whose terms depend on one word each.
        """
        if self.pooling == "mean":
            sums = states.float().cumsum(1)
            return F.pad(sums[:, :-1], (0, 0, 1, 0)), sums
        of_first, of_last = self.join.weight.chunk(2, dim=1)
        starts = F.linear(F.gelu(self.first(states)), of_first)
        return starts, F.linear(F.gelu(self.last(states)), of_last, self.join.bias)

    def _pool(self, sentence: PreparedSentence, spans: Tensor) -> Tensor:
        """Return H_X [B, D, K, h]."""
        batch, draws, count, _ = spans.shape
        left, right = spans.reshape(batch, draws * count, 2, 1).unbind(2)
        start = sentence.starts.gather(1, left.expand(-1, -1, sentence.starts.shape[-1]))
        end = sentence.ends.gather(1, right.expand(-1, -1, sentence.ends.shape[-1]))
        if self.pooling == "mean":
            pooled = ((end - start) / (right - left + 1)).to(sentence.left.dtype)
        else:
            pooled = start + end
        return pooled.view(batch, draws, count, -1)


class SpanEncoderLayer(nn.Module):
    """Self-attention of spans, cross-attention to the sentence, a feed-forward after each."""

    def __init__(self, size: int, settings: DecoderSettings) -> None:
        super().__init__()
        self.self_attention = self.cross_attention = None
        if settings.self_attention:
            self.self_attention = Attention(size, settings.heads, settings.dropout)
        if settings.cross_attention:
            self.cross_attention = Attention(size, settings.heads, settings.dropout)
        blocks = settings.self_attention + settings.cross_attention
        self.feedforwards = nn.ModuleList(
            nn.Sequential(
                nn.Linear(size, settings.feedforward),
                nn.GELU(),
                nn.Dropout(settings.dropout),
                nn.Linear(settings.feedforward, size),
            )
            for _ in range(blocks)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2 * blocks))
        self.dropout = nn.Dropout(settings.dropout)

    def forward(
        self, spans: Tensor, keys_values: KeysValues | None, words: Tensor, slots: Tensor | None
    ) -> Tensor:
        """spans [B, D, K, h]; words [B, M] and slots [B, K] are masks → [B, D, K, h]"""
        batch, draws, count, size = spans.shape
        block = 0
        if self.self_attention is not None:
            spans = spans.reshape(batch * draws, count, size)  # draws do not see each other
            visible = None
            if slots is not None:
                visible = slots.repeat_interleave(draws, 0)
                # A row that sees nothing has no softmax; its result is not used.
                visible = visible | ~visible.any(-1, keepdim=True)
            own = self.self_attention.keys_values(spans)
            spans = self._close(block, spans, self.self_attention(spans, own, visible))
            block += 1
        if self.cross_attention is not None and keys_values is not None:
            spans = spans.reshape(batch, draws * count, size)
            spans = self._close(block, spans, self.cross_attention(spans, keys_values, words))
        return spans.view(batch, draws, count, size)

    def _close(self, block: int, x: Tensor, attended: Tensor) -> Tensor:
        """Residual and norm, then feed-forward, residual and norm."""
        x = self.norms[2 * block](x + self.dropout(attended))
        x = self.norms[2 * block + 1](x + self.dropout(self.feedforwards[block](x)))
        return x


class Attention(nn.Module):
    """Multi-head attention whose keys and values can be computed in advance."""

    def __init__(self, size: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(size, size)
        self.key_value = nn.Linear(size, 2 * size)
        self.output = nn.Linear(size, size)

    def keys_values(self, source: Tensor) -> KeysValues:
        """[B, S, h] → two of [B, heads, S, h / heads]"""
        keys, values = self.key_value(source).chunk(2, dim=-1)
        heads = (self.heads, -1)
        keys = keys.unflatten(-1, heads).transpose(1, 2)
        return keys, values.unflatten(-1, heads).transpose(1, 2)

    def forward(self, target: Tensor, keys_values: KeysValues, mask: Tensor | None) -> Tensor:
        """target [B, Q, h]; mask [B, S] or [B, 1, Q, S], true where visible → [B, Q, h]"""
        if mask is not None and mask.dim() == 2:
            mask = mask[:, None, None, :]
        attended = F.scaled_dot_product_attention(
            self.query(target).unflatten(-1, (self.heads, -1)).transpose(1, 2),
            *keys_values,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.output(attended.transpose(1, 2).reshape(target.shape))


class OffsetScores(nn.Module):
    """Score of each distance between a noisy and a denoised boundary.

    Without them, the decoder would have to find a boundary that is already right by its content,
    among all words, which takes long to learn.
    """

    def __init__(self, size: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.output = nn.Linear(size, 2 * (2 * window + 1))

    def forward(self, hidden: Tensor, spans: Tensor, words: int) -> Tensor:
        """hidden [B, D, K, h], spans [B, D, K, 2] → [2, B, D, K, M] to add to left and right

        Words outside the window get zero.
        """
        scores = self.output(hidden).float().unflatten(-1, (2, -1))  # [B, D, K, 2, 2 window + 1]
        word = torch.arange(words, device=spans.device)
        distance = word - spans[..., None] + self.window  # [B, D, K, 2, M]
        within = (distance >= 0) & (distance <= 2 * self.window)
        chosen = scores.gather(-1, distance.clamp(0, 2 * self.window))
        return torch.where(within, chosen, 0.0).movedim(-2, 0)


def sinusoidal_table(rows: int, size: int) -> Tensor:
    """Return E_t for t = 0..rows-1, [rows, size]."""
    return sinusoids(torch.arange(rows), size)


def sinusoids(positions: Tensor, size: int) -> Tensor:
    """Return sines and cosines of positions: [...] → [..., size] (Vaswani et al.)."""
    half = size // 2
    rates = torch.exp(-math.log(10_000) * torch.arange(half) / half)
    angles = positions[..., None] * rates
    return F.pad(torch.cat([angles.sin(), angles.cos()], -1), (0, size - 2 * half))


def read_out(
    prediction: Prediction, slots: Tensor, initial: SpanScores | None
) -> Candidates[Tensor]:
    """Read the most likely boundaries and type of every span; each of the D sets is one step.

    slots: [B, K] true where the sentence has a span. With an initializer, which scores the span
    independently, the summed probability is the mean of both on the same scale; if the initializer
    scores types, so is P^c.
    """
    # Arg-max of the logits, not of their sigmoids: several of those may round to 1.
    left_score, left = prediction.left.max(-1)  # [B, D, K]
    right_score, right = prediction.right.max(-1)
    boundaries = left_score.sigmoid() + right_score.sigmoid()
    types = type_probabilities(prediction.types, prediction.exclusive)  # [B, D, K, C + 1]
    if initial is not None and initial.types is not None:
        of_initial = initial.type_probabilities(left, right)
        type_probability, type_id = ((types + of_initial) / 2).max(-1)
        chosen = of_initial.gather(-1, type_id[..., None])[..., 0]
        summed = boundaries / 2 + type_probability + chosen
    else:
        type_probability, type_id = types.max(-1)
        summed = boundaries + type_probability
        if initial is not None:
            summed = (summed + 3 * initial.span_probabilities(left, right)) / 2
    slots = slots[:, None].expand(left.shape)
    is_entity = (type_id < types.shape[-1] - 1) & (left <= right) & slots
    return Candidates(
        left, right, type_id, summed, type_probability, is_entity, slots, prediction.spans
    )
