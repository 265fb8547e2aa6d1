"""A tokenised corpus, cut into windows, from which batches are gathered.

A corpus is tokenised once into flat arrays. Sentences of a document are adjacent in them, so a row,
what the encoder reads at once, is a slice of them, and a batch is gathered by index arithmetic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from diffusionner.batching.batch_cuts import cheapest_cuts
from diffusionner.batching.subwords import (
    CHARACTERS_PER_WORD,
    NO_WORD,
    SubwordTokenizer,
)
from diffusionner.batching.windows import WindowPlan, Windows, number_passages
from diffusionner.corpus import MAX_FRAGMENTS, Sentence, gaps_between
from diffusionner.settings import EncoderSettings
from diffusionner.word_limits import MAX_PHRASE, SEPARATOR_SIZE, SEPARATORS, WordLimits

Integers = TypeVar("Integers", int, np.ndarray)
Array = TypeVar("Array")  # numpy's on the host, the backend's own on a device
# Arrays of a batch that a device needs; the encoder reads the first seven.
DEVICE_ARRAYS = (
    "subwords", "attention", "word_of", "first", "row", "lengths", "characters", "gold",
    "gold_types", "annotated_types",
)  # fmt: skip


@dataclass
class RowLabels(Generic[Array]):
    """The labels that each row of a batch is asked for, which have T subwords together."""

    subwords: Array  # [R, T] ids
    places: Array  # [R, T] positions in their labels
    owner: Array  # [R, T] number of the label; -1 for padding

    def map(self, convert: Callable[[Array], Any]) -> RowLabels[Any]:
        """Convert all arrays."""
        return RowLabels(*map(convert, vars(self).values()))

    def doubled(self: RowLabels[np.ndarray]) -> RowLabels[np.ndarray]:
        """Return the labels for a batch with every row twice."""
        return self.map(lambda array: np.tile(array, (2, 1)))

    @staticmethod
    def of(rows: Sequence[Sequence[Sequence[int]]], pad: int) -> RowLabels[np.ndarray]:
        """Make the arrays from the subwords of each label of each row."""
        sizes = [[len(label) for label in row] for row in rows]
        most = max(sum(row) for row in sizes)
        subwords = np.full((len(rows), most), pad, dtype=np.int64)
        places, owner = np.zeros_like(subwords), np.full_like(subwords, -1)
        for number, (row, counts) in enumerate(zip(rows, sizes, strict=True)):
            total = sum(counts)
            subwords[number, :total] = [subword for label in row for subword in label]
            places[number, :total] = [place for count in counts for place in range(count)]
            owner[number, :total] = np.repeat(np.arange(len(row)), counts)
        return RowLabels(subwords, places, owner)


@dataclass
class Batch(Generic[Array]):
    """B windows of at most M words, with at most N gold entities, in R rows of at most L subwords.

    P consecutive subwords of a row belong to the M words of a window; the others are context.
    """

    subwords: Array  # [R, L] ids
    attention: Array  # [R, L] 1 for real subwords
    word_of: Array  # [B, P] word of each of the P subwords; M for padding
    first: Array  # [B, M] position of a word's first subword in its row
    row: Array  # [B] row of the window
    lengths: Array  # [B] words
    characters: Array  # [B, M, C] character codes of the words
    gold: Array  # [B, N, 2] left and right word, inclusive
    gold_types: Array  # [B, N], -1 for padding
    annotated_types: Array  # [B, C] true for types that were annotated in the sentence
    # Noise and matching are computed on the host, which always has these:
    keys: np.ndarray  # [B] noise keys of the sentences
    gold_counts: np.ndarray  # [B]
    labels: RowLabels[Array] | None = None  # in training, if labels are read as words
    # [B, G, 3] grid, first and last word of the pairs that make up entities, if some of the corpus
    # are discontinuous; -1 for padding. Grids: one for each type, fragments, jumps
    # (`model.fragments`).
    gap_cells: Array | None = None

    def map(self, convert: Callable[[Array], Any]) -> Batch[Any]:
        """Convert all arrays that a device needs."""
        arrays = {name: convert(getattr(self, name)) for name in DEVICE_ARRAYS}
        if self.gap_cells is not None:
            arrays["gap_cells"] = convert(self.gap_cells)
        labels = None if self.labels is None else self.labels.map(convert)
        return replace(self, **arrays, labels=labels)

    def doubled(self: Batch[np.ndarray]) -> Batch[np.ndarray]:
        """Return a batch with every window twice, in rows of their own (on the host)."""
        arrays = {
            name: array
            for name, array in vars(self).items()
            if name != "labels" and array is not None
        }
        twice = {name: np.concatenate([array, array]) for name, array in arrays.items()}
        twice["row"] = np.concatenate([self.row, self.row + len(self.subwords)])
        labels = None if self.labels is None else self.labels.doubled()
        return Batch(**twice, labels=labels)


class EncodedCorpus:
    """Sentences as flat arrays, cut into windows, from which batches are gathered."""

    def __init__(
        self,
        sentences: Sequence[Sentence],
        tokenizer: SubwordTokenizer,
        settings: EncoderSettings,
        labels: Sequence[str] | None = None,
        passages: np.ndarray | None = None,
    ) -> None:
        """labels: types of the gold entities, which batches then include (training).

        passages: [sentences] number of the passage of each; None: as if no text came before.
        """
        self.tokenizer = tokenizer
        self.docs = [s.doc for s in sentences]
        self.passage_words = settings.passage_words
        word_counts = np.array([len(s.words) for s in sentences], dtype=np.int64)
        width = CHARACTERS_PER_WORD if settings.character_filters else 0
        self.words = words = [word for s in sentences for word in s.words]
        table = tokenizer.look_up([*SEPARATORS, *words], width)
        separator_ids, self.word_ids = np.split(table.word_ids, [len(SEPARATORS)])
        self.characters = table.characters
        self.word_offset = word_offset = _offsets(word_counts)  # [sentences + 1]
        self.character_count = table.character_count
        subword_counts = table.subword_count[self.word_ids]
        self.subword_offset = _offsets(subword_counts)  # [words + 1] first subword of each word
        self.word_of_subword = np.repeat(np.arange(len(subword_counts)), subword_counts)
        shift = table.subword_start[self.word_ids] - self.subword_offset[:-1]
        self.subwords = table.subwords[
            np.arange(len(self.word_of_subword)) + shift[self.word_of_subword]
        ]
        limits, sizes = tokenizer.word_limits, np.ones(len(words), dtype=np.int64)
        is_long = np.zeros(len(sentences), dtype=bool)
        if limits is not None:
            sizes, separators = _word_sizes(self.word_ids, separator_ids, word_counts, limits)
            is_long = (word_counts > limits.sentence) | (separators > limits.separators)
        self.plan = WindowPlan(
            self.docs,
            word_offset,
            self.subword_offset,
            settings.context,
            min(settings.max_subwords, tokenizer.limit) - tokenizer.special_count,
            _offsets(sizes),
            is_long,
            limits,
        )
        if self.passage_words and passages is None:
            passages = number_passages(self.docs, word_counts.tolist(), self.passage_words)
        self.windows = self.plan.windows(passages if self.passage_words else None)
        spelled = ("\x1f".join(s.words).encode("utf-8", "surrogatepass") for s in sentences)
        digests = b"".join(hashlib.blake2b(one, digest_size=8).digest() for one in spelled)
        self.sentence_keys = np.frombuffer(digests, dtype="<i8") >> 1  # room to add an offset
        self.gold = np.zeros((0, 2), dtype=np.int64)
        self.gold_types = np.zeros(0, dtype=np.int64)
        self.gold_offset = np.zeros(len(self.windows.sentence) + 1, dtype=np.int64)
        self.gap_cells: list[list[tuple[int, int, int]]] | None = None  # of each window
        # Sentences share a few sets of annotated types: those of their corpora.
        self.type_sets = np.ones((1, 0), dtype=bool)  # [sets, C]
        self.type_set = np.zeros(len(sentences), dtype=np.int64)
        if labels is not None:
            self._place_gold(sentences, labels)

    def __len__(self) -> int:
        return len(self.windows.sentence)

    def _place_gold(self, sentences: Sequence[Sentence], labels: Sequence[str]) -> None:
        """Assign each gold entity to the windows that contain it."""
        index = {label: i for i, label in enumerate(labels)}
        spans: list[tuple[int, int]] = []
        types: list[int] = []
        counts = np.zeros(len(self), dtype=np.int64)
        for window, number in enumerate(self.windows.sentence):
            offset = self.windows.offset[window]
            words = self.windows.words[window]
            for start, end, label in sentences[number].entities:
                if start >= offset and end <= offset + words:
                    spans.append((start - offset, end - 1 - offset))
                    types.append(index[label])
                    counts[window] += 1
        if any(sentence.discontinuous for sentence in sentences):
            self.gap_cells = [
                self._gap_cells(sentences, window, index) for window in range(len(self))
            ]
        self.gold = np.array(spans, dtype=np.int64).reshape(-1, 2)
        self.gold_types = np.array(types, dtype=np.int64)
        self.gold_offset = _offsets(counts)
        sets = list(dict.fromkeys(sentence.types for sentence in sentences))
        number = {types: i for i, types in enumerate(sets)}
        self.type_set = np.array([number[s.types] for s in sentences], dtype=np.int64)
        self.type_sets = np.zeros((len(sets), len(labels)), dtype=bool)
        for row, listed in zip(self.type_sets, sets, strict=True):
            known = labels if listed is None else listed
            row[[index[label] for label in known if label in index]] = True

    def _gap_cells(
        self, sentences: Sequence[Sentence], window: int, index: dict[str, int]
    ) -> list[tuple[int, int, int]]:
        """Return grid, first and last word of the pairs that make up the entities of a window.

        A contiguous entity is an envelope with a single fragment.
        """
        offset, words = int(self.windows.offset[window]), int(self.windows.words[window])
        cells: set[tuple[int, int, int]] = set()
        for entity in sentences[self.windows.sentence[window]].all_entities:
            inside = entity.start >= offset and entity.end <= offset + words
            fragments = entity.fragments
            if not inside or len(fragments) > MAX_FRAGMENTS:
                continue
            cells.add((index[entity.label], entity.start, entity.end - 1))
            cells.update((len(index), start, end - 1) for start, end in fragments)
            cells.update((len(index) + 1, start - 1, end) for start, end in gaps_between(fragments))
        return sorted((grid, first - offset, last - offset) for grid, first, last in cells)

    def batch(
        self, chosen: np.ndarray, multiples: Sequence[int] = (1, 1, 1, 1, 1)
    ) -> Batch[np.ndarray]:
        """Gather the chosen windows into arrays; L, M, N, C and P are padded to these multiples."""
        w = self.windows
        prefix, suffix = self.tokenizer.prefix, self.tokenizer.suffix
        row = np.arange(len(chosen))
        if self.passage_words:
            row = np.unique(w.row[chosen], return_inverse=True)[1]
        in_row = np.unique(row, return_index=True)[1]  # a window of each row
        starts, ends = w.subword_start[chosen][in_row], w.subword_end[chosen][in_row]
        rows, sizes = len(in_row), ends - starts
        longest = int(sizes.max()) + self.tokenizer.special_count
        length = min(round_up(longest, multiples[0]), max(longest, self.tokenizer.limit))
        words = w.words[chosen]
        max_words = round_up(int(words.max()), multiples[1])

        columns = np.arange(length) - len(prefix)
        inside = (columns >= 0) & (columns < sizes[:, None])
        flat = np.where(inside, starts[:, None] + columns, 0)
        subwords = np.where(inside, self.subwords[flat], self.tokenizer.pad)
        subwords[:, : len(prefix)] = prefix
        for i, token in enumerate(suffix):
            subwords[np.arange(rows), len(prefix) + sizes + i] = token
        attention = np.arange(length) < (sizes + len(prefix) + len(suffix))[:, None]

        word_start = w.word_start[chosen]
        own_start = self.subword_offset[word_start]
        # A word that is too long for a window is truncated.
        own_sizes = np.minimum(self.subword_offset[word_start + words], ends[row]) - own_start
        columns = np.arange(min(round_up(int(own_sizes.max()), multiples[4]), length))
        own = columns < own_sizes[:, None]
        local = self.word_of_subword[np.where(own, own_start[:, None] + columns, 0)]
        word_of = np.where(own, local - word_start[:, None], max_words)

        position = np.arange(max_words)
        real = position < words[:, None]
        flat_words = np.where(real, word_start[:, None] + position, 0)
        in_own_row = self.subword_offset[flat_words] - starts[row, None] + len(prefix)
        first = np.where(real, in_own_row, 0)
        word_ids = np.where(real, self.word_ids[flat_words], NO_WORD)
        characters = self.characters.take(word_ids, axis=0)
        width = max(1, int(self.character_count[word_ids].max()))  # of the longest word
        characters = characters[..., : round_up(width, multiples[3])]

        gold_start = self.gold_offset[chosen]
        counts = self.gold_offset[chosen + 1] - gold_start
        slots = np.arange(round_up(max(1, int(counts.max())), multiples[2]))
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
            row=row,
            lengths=words,
            characters=characters.astype(np.int64),
            gold=gold,
            gold_types=gold_types,
            annotated_types=self.type_sets[self.type_set[w.sentence[chosen]]],
            keys=self.sentence_keys[w.sentence[chosen]] + w.offset[chosen],
            gold_counts=counts,
            gap_cells=None if self.gap_cells is None else self._pad_gap_cells(chosen),
        )

    def _pad_gap_cells(self, chosen: np.ndarray) -> np.ndarray:
        """Return the pairs that make up the entities of windows, [B, G, 3]."""
        assert self.gap_cells is not None
        rows = [self.gap_cells[window] for window in chosen.tolist()]
        padded = np.full((len(rows), max(1, *map(len, rows)), 3), -1)
        for row, cells in zip(padded, rows, strict=True):
            row[: len(cells)] = np.array(cells, dtype=np.int64).reshape(-1, 3)
        return padded

    def keep_windows(self, chosen: np.ndarray) -> None:
        """Drop all other windows; their sentences remain as context."""
        self.windows = Windows(**{name: a[chosen] for name, a in vars(self.windows).items()})

    def widest(self, size: int) -> np.ndarray:
        """Return windows that form the largest possible batch, in L, M and P."""
        w = self.windows
        subwords = w.subword_end - w.subword_start
        own = self.subword_offset[w.word_start + w.words] - self.subword_offset[w.word_start]
        return np.resize([subwords.argmax(), w.words.argmax(), own.argmax()], size)

    def draw_passages(self, seed: int, epoch: int) -> None:
        """Cut documents into other passages, a pure function of seed and epoch (training)."""
        if self.passage_words:
            random, counts = np.random.default_rng((seed, epoch, 1)), np.diff(self.word_offset)
            passages = number_passages(self.docs, counts.tolist(), self.passage_words, random)
            self.windows = self.plan.windows(passages)

    def sorted_batches(
        self, size: int, sentences: Sequence[int], multiple: int = 1
    ) -> list[np.ndarray]:
        """Split the windows of the given sentences into batches of similar length, for inference.

        Windows of one row stay together. A batch has at most as many subwords, padding included, as
        `size` windows have on average.
        """
        windows = np.flatnonzero(np.isin(self.windows.sentence, sentences))
        if len(windows) <= 1:
            return [windows] * len(windows)
        first = self._rows(windows)
        sizes = (self.windows.subword_end - self.windows.subword_start)[windows[first]]
        sizes = round_up(sizes + self.tokenizer.special_count, multiple)
        order = np.argsort(sizes, kind="stable")
        cuts = cheapest_cuts(sizes[order], max(1, size * sizes.sum() / len(windows)))
        rows = np.split(windows, first[1:])
        return [np.concatenate([rows[i] for i in part]) for part in np.split(order, cuts[1:-1])]

    def shuffled_batches(self, size: int, seed: int, epoch: int) -> list[np.ndarray]:
        """Return batches of similar length in random order, a pure function of seed and epoch.

        Lengths are sorted only within random pools of 64 batches, so batches still vary. With
        passages, a batch has about `size` windows in whole rows, of any length.
        """
        random = np.random.default_rng((seed, epoch))
        if self.passage_words:
            windows = np.arange(len(self))
            first = self._rows(windows)
            count = np.diff(np.append(first, len(windows)))
            order = random.permutation(len(first))
            before = np.cumsum(count[order]) - count[order]
            rows = np.split(windows, first[1:])
            parts = np.split(order, np.flatnonzero(np.diff(before // size)) + 1)
            return [np.concatenate([rows[i] for i in part]) for part in parts]
        sizes = self.windows.subword_end - self.windows.subword_start
        order = random.permutation(len(self))
        batches = []
        for start in range(0, len(order), size * 64):
            pool = order[start : start + size * 64]
            pool = pool[np.argsort(sizes[pool], kind="stable")]
            batches += [pool[i : i + size] for i in range(0, len(pool), size)]
        return [batches[i] for i in random.permutation(len(batches))]

    def divide(self, chosen: np.ndarray, most_pairs: int) -> list[np.ndarray]:
        """Divide windows so that no part has more than `most_pairs` pairs of words, with padding.

        Windows of one row stay together, so that it is encoded once; a single row may have more.
        """
        words = self.windows.words[chosen]
        if len(chosen) * int(words.max()) ** 2 <= most_pairs:
            return [chosen]
        first = self._rows(chosen)
        longest = np.maximum.reduceat(words, first)
        count = np.diff(np.append(first, len(chosen)))
        order = np.argsort(longest, kind="stable")
        cuts, size = [], 0
        for place, row in enumerate(order.tolist()):
            size += int(count[row])
            if place and size * int(longest[row]) ** 2 > most_pairs:
                cuts.append(place)
                size = int(count[row])
        rows = np.split(chosen, first[1:])
        return [np.concatenate([rows[i] for i in part]) for part in np.split(order, cuts)]

    def _rows(self, windows: np.ndarray) -> np.ndarray:
        """Return the place of the first window of each row."""
        return np.flatnonzero(np.diff(self.windows.row[windows], prepend=-1))


def round_up(number: Integers, multiple: int) -> Integers:
    """Round up to a multiple."""
    return -(-number // multiple) * multiple


def _offsets(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _word_sizes(
    word_ids: np.ndarray, separator_ids: np.ndarray, word_counts: np.ndarray, limits: WordLimits
) -> tuple[np.ndarray, np.ndarray]:
    """Return the size of each word in a window, and the number of separators in each sentence."""
    is_separator = np.isin(word_ids, separator_ids)
    sizes = np.where(is_separator, SEPARATOR_SIZE, 1)
    sentence = np.repeat(np.arange(len(word_counts)), word_counts)
    for period in range(min(MAX_PHRASE, len(word_ids) // 3), 0, -1):
        same = word_ids[period:] == word_ids[:-period]
        before = _offsets(same & (sentence[period:] == sentence[:-period]))
        # Words at which a phrase starts that stands three times in a row, and starts of such runs
        first = np.flatnonzero(before[2 * period :] - before[: -2 * period] == 2 * period)
        if not len(first):
            continue
        run = np.maximum.accumulate(np.where(np.diff(first, prepend=-2) > 1, first, 0))
        # With these sizes, a phrase fills a window, and the next window starts after it.
        phrase = np.zeros(period, dtype=np.int64)
        phrase[0] = limits.window // 2 - 1
        phrase[-1] += limits.window - phrase.sum()
        for shift in range(3 * period):
            sizes[first + shift] = phrase[(first + shift - run) % period]
            is_separator[first + shift] = True
    return sizes, np.bincount(sentence[is_separator], minlength=len(word_counts))
