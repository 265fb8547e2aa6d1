"""Generation: entities one after another, each as a first word, a last word and a type.

An encoder-decoder with pointers into the sentence. Entities are ordered by first, then last word.
A stop symbol instead of a first word ends the sequence.

Shapes: B sentences, M words, N entities, Q positions of the sequence, h hidden size, C types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffusionner.batching import Batch
from diffusionner.diffusion import Candidates, ReverseStart
from diffusionner.errors import SettingsError
from diffusionner.model.decoder import Attention, sinusoidal_table
from diffusionner.model.encoder import SentenceEncoding, Transformer
from diffusionner.model.initializer import IMPOSSIBLE
from diffusionner.model.pointer import BoundaryPointer
from diffusionner.settings import DecoderSettings, InferenceSettings, Settings
from diffusionner.training.objective import Objective
from reproduce.rivals.base import Memory, Rival, Rounds, concatenate, perceptron, single_step

MAX_ENTITIES = 128  # of a sentence
PER_WORD = 2  # maximum number of entities; a sentence has many more spans
ROUND = 4  # entities of a recorded round, after which the host checks whether there are more


class GeneratingNetwork(Rival):
    has_decoder = True
    type_weights = ("generator.types.", "generator.classifier.3.")

    def __init__(self, transformer: Transformer, labels: Sequence[str], settings: Settings) -> None:
        super().__init__(transformer, labels, settings)
        size = self.encoder.hidden_size
        if size % settings.decoder.heads:
            raise SettingsError(
                f"decoder.heads={settings.decoder.heads} does not divide the encoder's size {size}"
            )
        self.generator = Generator(size, len(self.labels), settings.decoder)

    def propose(self, encoding: SentenceEncoding) -> Candidates[Tensor]:
        return self.generator.generate(encoding)

    def rounds(self, encoding: SentenceEncoding, counts: Tensor, memory: Memory) -> Rounds:
        return Generation.begin(self.generator, encoding, counts, memory)

    @torch.inference_mode()
    def candidates(
        self,
        encoding: SentenceEncoding,
        keys: np.ndarray,
        start: ReverseStart[Tensor],
        settings: InferenceSettings,
    ) -> Candidates[Tensor]:
        """Generate candidates; if spans are given, as many as there are spans.

        Random weights would stop at once, and their speed would be meaningless.
        """
        if start.given_slots is None:
            return super().candidates(encoding, keys, start, settings)
        return self.generator.generate(encoding, start.given_slots.sum(1))


@dataclass
class ReadSentence:
    """Projections of H_S, computed once for all positions."""

    encoding: SentenceEncoding
    keys_values: list[tuple[Tensor, Tensor]]  # per layer, [B, heads, M, h / heads]
    first: Tensor  # [B, M, h] input symbols for a first word
    last: Tensor  # and for a last word
    left: Tensor  # [B, M, h] words projected for the left pointer
    right: Tensor  # and for the right pointer


class GeneratorLayer(nn.Module):
    """Attention to earlier positions, attention to the sentence, and a feed-forward layer."""

    def __init__(self, size: int, settings: DecoderSettings) -> None:
        super().__init__()
        self.self_attention = Attention(size, settings.heads, settings.dropout)
        self.cross_attention = Attention(size, settings.heads, settings.dropout)
        self.feedforward = nn.Sequential(
            nn.Linear(size, settings.feedforward),
            nn.GELU(),
            nn.Dropout(settings.dropout),
            nn.Linear(settings.feedforward, size),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(3))
        self.dropout = nn.Dropout(settings.dropout)

    def forward(
        self,
        x: Tensor,
        before: tuple[Tensor, Tensor],
        visible: Tensor | None,
        sentence: tuple[Tensor, Tensor],
        words: Tensor,
    ) -> Tensor:
        """x [B, Q, h]; before: keys and values of positions; visible [Q, Q]: mask of them."""
        attended = self.self_attention(x, before, None if visible is None else visible[None, None])
        x = self.norms[0](x + self.dropout(attended))
        x = self.norms[1](x + self.dropout(self.cross_attention(x, sentence, words)))
        normed: Tensor = self.norms[2](x + self.dropout(self.feedforward(x)))
        return normed


class Generator(nn.Module):
    def __init__(self, size: int, types: int, settings: DecoderSettings) -> None:
        super().__init__()
        self.heads = settings.heads
        self.begin = nn.Parameter(torch.randn(size) / size**0.5)
        self.first = nn.Linear(size, size)
        self.last = nn.Linear(size, size)
        self.types = nn.Embedding(types, size)
        self.layers = nn.ModuleList(GeneratorLayer(size, settings) for _ in range(settings.layers))
        self.left = BoundaryPointer(size)
        self.right = BoundaryPointer(size)
        self.stop = nn.Linear(size, 1)
        self.classifier = perceptron(size, types, settings.dropout)
        self.positions: Tensor
        table = sinusoidal_table(3 * MAX_ENTITIES + 1, size)
        self.register_buffer("positions", table, persistent=False)

    def read(self, encoding: SentenceEncoding) -> ReadSentence:
        states = encoding.states
        return ReadSentence(
            encoding,
            [layer.cross_attention.keys_values(states) for layer in self.all_layers()],
            self.first(states),
            self.last(states),
            self.left.words(states),
            self.right.words(states),
        )

    def forward(self, sentence: ReadSentence, gold: Tensor, type_ids: Tensor) -> Tensor:
        """Return the hidden states [B, 3 N + 1, h] after the start and each symbol of the entities.

        gold: [B, N, 2], type_ids: [B, N]. Each position sees the earlier ones.
        """
        batch, count = type_ids.shape
        first = sentence.first.take_along_dim(gold[..., :1], 1)
        last = sentence.last.take_along_dim(gold[..., 1:], 1)
        types = self.types(type_ids).to(first.dtype)
        symbols = torch.stack([first, last, types], 2).view(batch, 3 * count, -1)
        begin = self.begin.to(first.dtype).expand(batch, 1, -1)
        x = torch.cat([begin, symbols], 1) + self.positions[: 3 * count + 1].to(first.dtype)
        length = x.shape[1]
        visible = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        for layer, of_sentence in zip(self.all_layers(), sentence.keys_values, strict=True):
            before = layer.self_attention.keys_values(x)
            x = layer(x, before, visible, of_sentence, sentence.encoding.mask)
        return x

    def left_scores(self, hidden: Tensor, first_allowed: Tensor, sentence: ReadSentence) -> Tensor:
        """Score each word as the first of the next entity, and the stop symbol.

        hidden [B, Q, h], first_allowed [B, Q] → [B, Q, M + 1]; earlier words are impossible.
        """
        scores = self._point(self.left, sentence.left, hidden, first_allowed, sentence)
        return torch.cat([scores, self.stop(hidden).float()], -1)

    def right_scores(self, hidden: Tensor, first_allowed: Tensor, sentence: ReadSentence) -> Tensor:
        """Score each word as the last of the entity, [B, Q, M]."""
        return self._point(self.right, sentence.right, hidden, first_allowed, sentence)

    def _point(
        self,
        pointer: BoundaryPointer,
        words: Tensor,
        hidden: Tensor,
        first_allowed: Tensor,
        sentence: ReadSentence,
    ) -> Tensor:
        encoding = sentence.encoding
        scores = pointer(words, hidden[:, None], encoding.mask, encoding.lengths)[:, 0]
        word = torch.arange(scores.shape[-1], device=scores.device)
        return scores.masked_fill(word < first_allowed[..., None], IMPOSSIBLE)

    def generate(
        self, encoding: SentenceEncoding, counts: Tensor | None = None
    ) -> Candidates[Tensor]:
        """Generate greedily; K is the largest number of entities of a sentence.

        counts: [B] number of entities to generate, instead of stopping when that is most likely.
        """
        generation = Generation.begin(self, encoding, counts)
        found = []
        for number in range(generation.entities):
            begun = generation.first_word(number)
            if not generation.alive.any():
                break
            found.append(generation.rest(number, *begun))
        if found:
            return concatenate(found)
        nothing = encoding.lengths.new_zeros(len(encoding.lengths), 0)
        return single_step(nothing, nothing, nothing, nothing.float(), nothing.bool())

    def all_layers(self) -> list[GeneratorLayer]:
        return [layer for layer in self.layers if isinstance(layer, GeneratorLayer)]


@dataclass
class Generation:
    """State of a batch after some entities.

    No span is generated twice: a repeated one would be repeated forever, and the whole batch would
    wait. The state is changed in place, so that a round can be recorded.
    """

    generator: Generator
    sentence: ReadSentence
    counts: Tensor | None  # [B] entities to generate; negative, or None: until stop is most likely
    cache: Tensor  # [layers, 2, B, heads, positions, h / heads] keys and values
    symbol: Tensor  # [B, 1, h] last symbol
    left: Tensor  # [B, 1] boundaries of the last entity
    right: Tensor
    alive: Tensor  # [B] false once the sequence has ended

    @classmethod
    def begin(
        cls,
        generator: Generator,
        encoding: SentenceEncoding,
        counts: Tensor | None,
        memory: Memory | None = None,
    ) -> Generation:
        """Start a batch; memory: allocates the cache."""
        sentence, lengths = generator.read(encoding), encoding.lengths
        memory = memory or sentence.first.new_empty
        (batch, words, size), heads = sentence.first.shape, generator.heads
        positions = 3 * min(MAX_ENTITIES, PER_WORD * words)
        left = torch.zeros_like(lengths)[:, None]
        return cls(
            generator,
            sentence,
            counts,
            memory(len(generator.layers), 2, batch, heads, positions, size // heads),
            generator.begin.to(sentence.first.dtype).repeat(batch, 1, 1),
            left,
            left - 1,
            torch.ones_like(lengths, dtype=torch.bool),
        )

    @property
    def entities(self) -> int:
        """Maximum number of entities."""
        return self.cache.shape[4] // 3

    @property
    def max_rounds(self) -> int:
        return -(-self.entities // ROUND)

    def __call__(self, number: int) -> Candidates[Tensor]:
        """Return the candidates of a round."""
        entities = range(number * ROUND, min(self.entities, (number + 1) * ROUND))
        return concatenate([self.rest(one, *self.first_word(one)) for one in entities])

    def more(self) -> bool:
        return bool(self.alive.any())

    def first_word(self, number: int) -> tuple[Tensor, Tensor]:
        """Return probability and index of the first word of the next entity, [B, 1]."""
        lengths, words = self.sentence.encoding.lengths, self.sentence.first.shape[1]
        longest = self.right == lengths[:, None] - 1  # no other span has this first word
        hidden = self._step(self.symbol, 3 * number)
        scores = self.generator.left_scores(hidden, self.left + longest, self.sentence)
        likely, start = scores.softmax(-1).max(-1)
        goes_on = start[:, 0] < words
        if self.counts is not None:
            goes_on = torch.where(self.counts < 0, goes_on, number < self.counts)
        self.alive &= goes_on & (number < PER_WORD * lengths)
        return likely, start.clamp(max=words - 1)

    def rest(self, number: int, p_left: Tensor, start: Tensor) -> Candidates[Tensor]:
        """Return the candidate with this first word."""
        generator, sentence = self.generator, self.sentence
        first_allowed = first_allowed_right(start, self.left, self.right + 1)
        hidden = self._step(sentence.first.take_along_dim(start[..., None], 1), 3 * number + 1)
        p_right, right = generator.right_scores(hidden, first_allowed, sentence).softmax(-1).max(-1)
        hidden = self._step(sentence.last.take_along_dim(right[..., None], 1), 3 * number + 2)
        p_type, type_id = generator.classifier(hidden).float().softmax(-1).max(-1)
        self.symbol.copy_(generator.types(type_id))
        self.left.copy_(start)
        self.right.copy_(right)
        # A copy, since later rounds change it.
        alive = self.alive[:, None].clone()
        return single_step(start, right, type_id, p_left + p_right + p_type, alive)

    def _step(self, symbol: Tensor, position: int) -> Tensor:
        """Return the hidden state after one more symbol, [B, 1, h] → [B, 1, h]."""
        x = symbol + self.generator.positions[position].to(symbol.dtype)
        layers = self.generator.all_layers()
        for layer, own, of_sentence in zip(
            layers, self.cache, self.sentence.keys_values, strict=True
        ):
            for cached, new in zip(own, layer.self_attention.keys_values(x), strict=True):
                cached[:, :, position] = new[:, :, 0]
            before = own[0, :, :, : position + 1], own[1, :, :, : position + 1]
            x = layer(x, before, None, of_sentence, self.sentence.encoding.mask)
        return x


@dataclass
class Generated:
    """Scores of every symbol, given the earlier ones."""

    left: Tensor  # [B, N + 1, M + 1]
    right: Tensor  # [B, N, M]
    types: Tensor  # [B, N, C]
    gold: Tensor  # [B, N, 2] in order
    type_ids: Tensor  # [B, N], -1 for padding


class GeneratingObjective(Objective[Generated]):
    network: GeneratingNetwork

    def denominator(self, counts: np.ndarray) -> int:
        """Return the number of symbols."""
        return int(3 * counts.sum() + len(counts))

    def inputs(self, batch: Batch[np.ndarray], keys: np.ndarray) -> list[np.ndarray]:
        return list(in_order(batch.gold, batch.gold_types))

    def predict(self, batch: Batch[Tensor], *inputs: Tensor) -> Generated:
        gold, type_ids = inputs
        encoding = self.network.encode(batch, self.freeze_encoder)
        generator = self.network.generator
        sentence = generator.read(encoding)
        hidden = generator(sentence, gold, type_ids.clamp(min=0))
        left, right = gold.unbind(-1)
        before = F.pad(left, (1, 0))  # [B, N + 1] first word of the previous entity
        first_allowed = first_allowed_right(left, before[:, :-1], F.pad(right, (1, -1)))
        return Generated(
            generator.left_scores(hidden[:, 0::3], before, sentence),
            generator.right_scores(hidden[:, 1::3], first_allowed, sentence),
            generator.classifier(hidden[:, 2::3]).float(),
            gold,
            type_ids,
        )

    def loss(self, predicted: Generated, batch: Batch[Tensor], assigned: Tensor) -> Tensor:
        """Return the cross-entropy of all symbols, including the stop symbol."""
        known = predicted.type_ids >= 0  # [B, N]
        number = torch.arange(known.shape[1] + 1, device=known.device)
        is_end = number == (batch.gold_types >= 0).sum(1, keepdim=True)  # [B, N + 1]
        left, right = predicted.gold.unbind(-1)
        next_left = F.pad(left, (0, 1)).masked_fill(is_end, predicted.left.shape[-1] - 1)
        return (
            cross_entropy(predicted.left, next_left, F.pad(known, (0, 1)) | is_end)
            + cross_entropy(predicted.right, right, known)
            + cross_entropy(predicted.types, predicted.type_ids.clamp(min=0), known)
        )


def cross_entropy(scores: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
    """Sum over scores [B, Q, X] and targets [B, Q] where `counts` [B, Q] is true."""
    likelihood = scores.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    return -torch.where(counts, likelihood, 0.0).sum()


def first_allowed_right(left: Tensor, left_before: Tensor, right_before: Tensor) -> Tensor:
    """Return the first word that can end an entity, given the order of entities."""
    same = left == left_before
    return torch.where(same, torch.maximum(left, right_before), left)


def in_order(gold: np.ndarray, type_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort entities by first word, last word and type, padding last; keep at most MAX_ENTITIES."""
    left, right = gold[..., 0], gold[..., 1]
    words, types = int(right.max(initial=0)) + 1, int(type_ids.max(initial=0)) + 1
    key = np.where(type_ids < 0, words * words * types, (left * words + right) * types + type_ids)
    order = np.argsort(key, axis=1, kind="stable")[:, :MAX_ENTITIES]
    return np.take_along_axis(gold, order[..., None], 1), np.take_along_axis(type_ids, order, 1)
