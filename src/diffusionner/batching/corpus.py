"""Sentences to tensors.

A corpus is tokenised once into flat arrays. A *window* is what the encoder sees at a time: a
sentence (or, when it is too long for the encoder, an overlapping part of one) with its
neighbouring sentences as context. Sentences of a document stand next to each other in the flat
arrays, so a window is just a slice of them, and a batch is gathered by index arithmetic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np

from diffusionner.batching.padding import cheapest_cuts
from diffusionner.batching.subwords import CHARACTER_LENGTH, NO_WORD, SubwordTokenizer
from diffusionner.corpus import Sentence, is_annotated
from diffusionner.settings import EncoderSettings

Whole = TypeVar("Whole", int, np.ndarray)
Array = TypeVar("Array")  # numpy's on the host, a backend's own where the model runs


@dataclass
class Batch(Generic[Array]):
    """B windows of at most L subwords and M words, with at most N gold entities.

    P of the L subwords, which lie together, are those of the M words, the others context.
    """

    subwords: Array  # [B, L] ids
    attention: Array  # [B, L] 1 for real subwords
    word_of: Array  # [B, P] the word of each own subword, from the first word's on; M for padding
    first: Array  # [B, M] position of a word's first subword
    lengths: Array  # [B] words
    characters: Array  # [B, M, C] codes of the words' characters
    gold: Array  # [B, N, 2] left and right word, inclusive
    gold_types: Array  # [B, N], -1 for padding
    annotated_types: Array  # [B, C] true for types that the annotators marked
    # Noise and matching are made on the host, which always has these:
    keys: np.ndarray  # [B] noise keys of the sentences
    gold_counts: np.ndarray  # [B]


@dataclass
class Windows:
    """Windows over a tokenised corpus; every field has one entry per window."""

    sentence: np.ndarray  # index of the sentence
    word_start: np.ndarray  # flat index of the first word
    words: np.ndarray  # number of words
    offset: np.ndarray  # words of the sentence before the window
    owned_start: np.ndarray  # an entity belongs to the window in whose owned words its middle lies
    owned_end: np.ndarray
    piece_start: np.ndarray  # flat slice of subwords, context included
    piece_end: np.ndarray

    def __len__(self) -> int:
        return len(self.sentence)


class EncodedCorpus:
    """Sentences as flat arrays, cut into windows, from which batches are gathered."""

    def __init__(
        self,
        sentences: Sequence[Sentence],
        tokenizer: SubwordTokenizer,
        settings: EncoderSettings,
        labels: Sequence[str] | None = None,
    ) -> None:
        """With labels, batches carry the gold entities too (training)."""
        self.tokenizer = tokenizer
        word_counts = np.array([len(s.words) for s in sentences], dtype=np.int64)
        width = CHARACTER_LENGTH if settings.character_filters else 0
        table = tokenizer.look_up([word for s in sentences for word in s.words], width)
        self.word_kind, self.characters = table.kinds, table.characters
        self.character_count = table.character_count
        piece_counts = table.piece_count[table.kinds]
        self.piece_offset = _offsets(piece_counts)  # [words + 1] first subword of each word
        self.word_of_piece = np.repeat(np.arange(len(piece_counts)), piece_counts)
        shift = table.piece_start[table.kinds] - self.piece_offset[:-1]
        self.pieces = table.pieces[np.arange(len(self.word_of_piece)) + shift[self.word_of_piece]]
        self.windows = _cut_windows(
            [s.doc for s in sentences],
            _offsets(word_counts),
            self.piece_offset,
            settings.context,
            min(settings.max_subwords, tokenizer.limit) - tokenizer.special_count,
        )
        self.sentence_keys = np.array([_sentence_key(s.words) for s in sentences], dtype=np.int64)
        self.gold, self.gold_types, self.gold_offset = self._place_gold(sentences, labels)
        types = labels or ()
        looked = [[is_annotated(s, label) for label in types] for s in sentences]
        self.annotated_types = np.array(looked, dtype=bool).reshape(len(sentences), len(types))

    def __len__(self) -> int:
        return len(self.windows)

    def _place_gold(
        self, sentences: Sequence[Sentence], labels: Sequence[str] | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Gold entities per window, flat; those that a window cuts are left to its neighbour."""
        index = {label: i for i, label in enumerate(labels or ())}
        spans: list[tuple[int, int]] = []
        kinds: list[int] = []
        counts = np.zeros(len(self.windows), dtype=np.int64)
        if labels is not None:
            for window, number in enumerate(self.windows.sentence):
                offset = self.windows.offset[window]
                words = self.windows.words[window]
                for start, end, label in sentences[number].entities:
                    if start >= offset and end <= offset + words:
                        spans.append((start - offset, end - 1 - offset))
                        kinds.append(index[label])
                        counts[window] += 1
        gold = np.array(spans, dtype=np.int64).reshape(-1, 2)
        return gold, np.array(kinds, dtype=np.int64), _offsets(counts)

    def batch(
        self,
        chosen: np.ndarray,
        subword_step: int = 1,
        word_step: int = 1,
        gold_step: int = 1,
        character_step: int = 1,
        own_step: int = 1,
    ) -> Batch[np.ndarray]:
        """Gather the chosen windows into arrays; L, M, N, C and P are rounded up to multiples."""
        w = self.windows
        prefix, suffix = self.tokenizer.prefix, self.tokenizer.suffix
        starts, ends = w.piece_start[chosen], w.piece_end[chosen]
        sizes = ends - starts
        longest = int(sizes.max()) + self.tokenizer.special_count
        length = min(round_up(longest, subword_step), max(longest, self.tokenizer.limit))
        words = w.words[chosen]
        most = round_up(int(words.max()), word_step)

        columns = np.arange(length) - len(prefix)
        inside = (columns >= 0) & (columns < sizes[:, None])
        flat = np.where(inside, starts[:, None] + columns, 0)
        subwords = np.where(inside, self.pieces[flat], self.tokenizer.pad)
        subwords[:, : len(prefix)] = prefix
        for i, piece in enumerate(suffix):
            subwords[np.arange(len(chosen)), len(prefix) + sizes + i] = piece
        attention = np.arange(length) < (sizes + len(prefix) + len(suffix))[:, None]

        word_start = w.word_start[chosen]
        own_start = self.piece_offset[word_start]
        # Of a word that is too long for a window no more than its head is there.
        own_sizes = np.minimum(self.piece_offset[word_start + words], ends) - own_start
        columns = np.arange(min(round_up(int(own_sizes.max()), own_step), length))
        own = columns < own_sizes[:, None]
        local = self.word_of_piece[np.where(own, own_start[:, None] + columns, 0)]
        word_of = np.where(own, local - word_start[:, None], most)

        position = np.arange(most)
        real = position < words[:, None]
        flat_words = np.where(real, word_start[:, None] + position, 0)
        first = np.where(real, self.piece_offset[flat_words] - starts[:, None] + len(prefix), 0)
        kinds = np.where(real, self.word_kind[flat_words], NO_WORD)
        characters = self.characters.take(kinds, axis=0)
        width = max(1, int(self.character_count[kinds].max()))  # of the longest word
        characters = characters[..., : round_up(width, character_step)]

        gold_start = self.gold_offset[chosen]
        counts = self.gold_offset[chosen + 1] - gold_start
        slots = np.arange(round_up(max(1, int(counts.max())), gold_step))
        known = slots < counts[:, None]
        flat_gold = np.where(known, gold_start[:, None] + slots, 0)
        if len(self.gold):
            gold = np.where(known[..., None], self.gold[flat_gold], 0)
            gold_types = np.where(known, self.gold_types[flat_gold], -1)
        else:
            gold = np.zeros((*known.shape, 2), dtype=np.int64)
            gold_types = np.full(known.shape, -1)
        return Batch(
            subwords=subwords.astype(np.int64),
            attention=attention.astype(np.int64),
            word_of=word_of,
            first=first,
            lengths=words,
            characters=characters.astype(np.int64),
            gold=gold,
            gold_types=gold_types,
            annotated_types=self.annotated_types[w.sentence[chosen]],
            keys=self.sentence_keys[w.sentence[chosen]] + w.offset[chosen],
            gold_counts=counts,
        )

    def widest(self, size: int) -> np.ndarray:
        """Windows whose batch has as many subwords, words and subwords of these as any."""
        w = self.windows
        subwords = w.piece_end - w.piece_start
        own = self.piece_offset[w.word_start + w.words] - self.piece_offset[w.word_start]
        return np.resize([subwords.argmax(), w.words.argmax(), own.argmax()], size)

    def sorted_batches(
        self, size: int, sentences: Sequence[int], subword_step: int = 1
    ) -> Iterator[np.ndarray]:
        """Windows of the given sentences in batches of similar length, for inference.

        A batch takes at most as many subwords, padding included, as `size` windows of average
        length do.
        """
        windows = np.flatnonzero(np.isin(self.windows.sentence, sentences))
        sizes = (self.windows.piece_end - self.windows.piece_start)[windows]
        sizes += self.tokenizer.special_count
        sizes = round_up(sizes, subword_step)
        order = np.argsort(sizes, kind="stable")
        if len(order):
            cuts = cheapest_cuts(sizes[order], size * sizes.mean())
            yield from np.split(windows[order], cuts[1:-1])

    def shuffled_batches(self, size: int, seed: int, epoch: int) -> list[np.ndarray]:
        """A pure function of seed and epoch: batches of similar length in random order.

        Lengths are sorted only within random pools of 64 batches, so batches still vary.
        """
        random = np.random.default_rng((seed, epoch))
        sizes = self.windows.piece_end - self.windows.piece_start
        order = random.permutation(len(self))
        batches = []
        for start in range(0, len(order), size * 64):
            pool = order[start : start + size * 64]
            pool = pool[np.argsort(sizes[pool], kind="stable")]
            batches += [pool[i : i + size] for i in range(0, len(pool), size)]
        return [batches[i] for i in random.permutation(len(batches))]


def round_up(number: Whole, step: int) -> Whole:
    """To a multiple of the step."""
    return -(-number // step) * step


def _offsets(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _sentence_key(words: Sequence[str]) -> int:
    digest = hashlib.blake2b("\x1f".join(words).encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little", signed=True) >> 1  # room to add an offset


def _cut_windows(
    docs: Sequence[str | None],
    word_offset: np.ndarray,
    piece_offset: np.ndarray,
    context: int,
    budget: int,
) -> Windows:
    """Plan the windows of every sentence: at most `budget` subwords each, context included."""
    number = np.arange(len(docs))
    left, right = number, number
    if context and len(docs):
        same = np.array([a is not None and a == b for a, b in pairwise(docs)], dtype=bool)
        cut = np.concatenate([[0], np.flatnonzero(~same) + 1, [len(docs)]])
        runs = np.repeat(np.arange(len(cut) - 1), np.diff(cut))  # documents
        left = np.maximum(number - context, cut[runs])
        right = np.minimum(number + context, cut[runs + 1] - 1)

    start, end = word_offset[:-1], word_offset[1:]
    long = np.flatnonzero(piece_offset[end] - piece_offset[start] > budget)
    parts = [np.stack([number, start, end, start, end])]
    for sentence in long.tolist():
        found = window_parts(piece_offset, int(start[sentence]), int(end[sentence]), budget)
        parts.append(np.array([(sentence, *part) for part in found]).T)
    parts[0] = np.delete(parts[0], long, axis=1)
    table = np.concatenate(parts, axis=1)
    sentence, first, last, owned_first, owned_last = table[:, table[0].argsort(kind="stable")]

    core_start = piece_offset[first]
    # A single word may have more subwords than there is room for: its head is read.
    core_end = np.minimum(piece_offset[last], core_start + budget)
    spare = budget - (core_end - core_start)
    before = core_start - piece_offset[word_offset[left[sentence]]]
    after = piece_offset[word_offset[right[sentence] + 1]] - core_end
    # Share what room there is; a side that needs less leaves the rest to the other.
    before_kept = np.minimum(before, np.maximum(spare // 2, spare - after))
    after_kept = np.minimum(after, spare - before_kept)
    begin = start[sentence]
    return Windows(
        sentence=sentence,
        word_start=first,
        words=last - first,
        offset=first - begin,
        owned_start=owned_first - begin,
        owned_end=owned_last - begin,
        piece_start=core_start - before_kept,
        piece_end=core_end + after_kept,
    )


def window_parts(
    piece_offset: np.ndarray, start: int, end: int, budget: int
) -> Iterator[tuple[int, int, int, int]]:
    """Words [first, last) of each window of a sentence and the part of them that it owns.

    One window when the sentence fits. Otherwise consecutive windows overlap by about half, and
    each owns what lies nearer to its middle than to its neighbours': an entity is read where it
    has the most context on both sides.
    """
    if piece_offset[end] - piece_offset[start] <= budget:
        yield start, end, start, end
        return
    cuts: list[tuple[int, int]] = []
    first = start
    while True:
        last = int(np.searchsorted(piece_offset, piece_offset[first] + budget, "right")) - 1
        last = min(max(last, first + 1), end)
        cuts.append((first, last))
        if last == end:
            break
        half = int(np.searchsorted(piece_offset, piece_offset[first] + budget // 2, "left"))
        first = min(max(half, first + 1), last)
    for i, (first, last) in enumerate(cuts):
        owned_first = start if i == 0 else (first + cuts[i - 1][1]) // 2
        owned_last = end if i == len(cuts) - 1 else (cuts[i + 1][0] + last) // 2
        yield first, last, owned_first, owned_last
