"""Windows: which words of a corpus the encoder reads at once.

A *window* is a sentence (or, if it is too long for the model, an overlapping part of one). It is
read within a *row*, one input of the encoder: the window with its neighbouring sentences as
context. With passages, all sentences of a passage share a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from diffusionner.word_limits import WordLimits


@dataclass
class Windows:
    """Windows over a tokenised corpus; every array has one entry per window."""

    sentence: np.ndarray  # index of the sentence
    word_start: np.ndarray  # flat index of the first word
    words: np.ndarray  # number of words
    offset: np.ndarray  # words of the sentence before the window
    owned_start: np.ndarray  # an entity belongs to the window that owns the word at its middle
    owned_end: np.ndarray
    row: np.ndarray  # number of its row
    subword_start: np.ndarray  # flat slice of the row's subwords, context included
    subword_end: np.ndarray


class PassageCounter:
    """Numbers the passages of documents, sentence by sentence.

    A passage is a stretch of a document of at most `limit` words, or a single longer sentence. With
    limit 0, each sentence is a passage. Passages follow from the document alone.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.doc: str | None = None
        self.words = 0
        self.number = -1

    def add(self, doc: str | None, words: int, limit: int | None = None) -> int:
        """Return the passage of the next sentence. limit: replaces that of all passages."""
        if doc is None or doc != self.doc or self.words + words > (limit or self.limit):
            self.number += 1
            self.words = 0
        self.doc = doc
        self.words += words
        return self.number


def number_passages(
    docs: Sequence[str | None],
    word_counts: Sequence[int],
    limit: int,
    random: np.random.Generator | None = None,
) -> np.ndarray:
    """Return the passage of each sentence.

    random: draws the length of the first passage of each document, so that training sees other
    passages in every epoch.
    """
    counter = PassageCounter(limit)
    passages, first, before = [], -1, None
    for doc, words in zip(docs, word_counts, strict=True):
        shorter = None
        if random is not None:
            if doc is None or doc != before:
                first, shortened = counter.number + 1, round(random.uniform(0.3, 1.0) * limit)
            if counter.number <= first:
                shorter = max(1, shortened)
        passages.append(counter.add(doc, words, shorter))
        before = doc
    return np.array(passages, dtype=np.int64)


@dataclass
class WindowPlan:
    """Plans the windows of a corpus, of at most `budget` subwords each, context included."""

    docs: Sequence[str | None]
    word_offset: np.ndarray  # [sentences + 1]
    subword_offset: np.ndarray  # [words + 1]
    context: int  # sentences on each side
    budget: int
    size_offset: np.ndarray  # [words + 1] sizes of the words before each
    is_long: np.ndarray  # [sentences] true if a sentence exceeds the limits
    limits: WordLimits | None

    def windows(self, passages: np.ndarray | None) -> Windows:
        """passages: [sentences] number of the passage of each; None: every sentence has a row."""
        start, end = self.word_offset[:-1], self.word_offset[1:]
        subwords = self.subword_offset
        is_long = self.is_long | (subwords[end] - subwords[start] > self.budget)
        sentence, first, last, owned_first, owned_last = self._parts(is_long)
        # The sentences that share a row: those of the passage, if it fits.
        from_sentence = to_sentence = np.arange(len(self.docs))
        if passages is not None:
            from_sentence, to_sentence = self._joined(passages, is_long)
        shared = (from_sentence < to_sentence)[sentence]
        from_sentence, to_sentence = from_sentence[sentence], to_sentence[sentence]
        row_first = np.where(shared, start[from_sentence], first)
        row_last = np.where(shared, end[to_sentence], last)
        is_new = ~shared | (np.diff(row_first, prepend=-1) != 0)

        core_start = subwords[row_first]
        # A single word may have more subwords than fit: its head is read.
        core_end = np.minimum(subwords[row_last], core_start + self.budget)
        spare = self.budget - (core_end - core_start)
        left, right = self._context(from_sentence, to_sentence)
        from_word, to_word = self.word_offset[left], self.word_offset[right + 1]
        if self.limits is not None:  # a part of a sentence has as much context as in training
            is_part = is_long[sentence]
            reach = self.context * self.limits.window
            from_word = np.where(is_part, np.maximum(from_word, first - reach), from_word)
            to_word = np.where(is_part, np.minimum(to_word, last + reach), to_word)
        before = core_start - subwords[from_word]
        after = subwords[to_word] - core_end
        # Both sides share the spare room; what one does not need goes to the other.
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
            row=np.cumsum(is_new) - 1,
            subword_start=core_start - before_kept,
            subword_end=core_end + after_kept,
        )

    def _parts(self, is_long: np.ndarray) -> np.ndarray:
        """Return sentence, words [first, last) and words owned of every window: [5, windows]."""
        number, start, end = np.arange(len(self.docs)), self.word_offset[:-1], self.word_offset[1:]
        bounds = [(self.subword_offset, self.budget)]
        if self.limits is not None:
            bounds.append((self.size_offset, self.limits.window))
        long = np.flatnonzero(is_long)
        parts = [np.stack([number, start, end, start, end])]
        for sentence in long.tolist():
            pieces = window_parts(bounds, int(start[sentence]), int(end[sentence]))
            parts.append(np.array([(sentence, *piece) for piece in pieces]).T)
        parts[0] = np.delete(parts[0], long, axis=1)
        table = np.concatenate(parts, axis=1)
        ordered: np.ndarray = table[:, table[0].argsort(kind="stable")]
        return ordered

    def _joined(self, passages: np.ndarray, is_long: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and the last sentence of the row of each sentence.

        The sentences of a passage that does not fit, or has a long one, are read one by one.
        """
        own = np.arange(len(passages))
        if not len(passages):
            return own, own
        first = np.flatnonzero(np.diff(passages, prepend=passages[0] - 1))
        sizes = np.diff(np.append(first, len(passages)))
        last = first + sizes - 1
        words = self.word_offset
        subwords = self.subword_offset[words[last + 1]] - self.subword_offset[words[first]]
        fits = (subwords <= self.budget) & ~np.logical_or.reduceat(is_long, first)
        return tuple(
            np.where(np.repeat(fits, sizes), np.repeat(bound, sizes), own)
            for bound in (first, last)
        )  # type: ignore[return-value]

    def _context(self, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and the last sentence of the context, within the document."""
        if not self.context or not len(self.docs):
            return first, last
        same = np.array([a is not None and a == b for a, b in pairwise(self.docs)], dtype=bool)
        cut = np.concatenate([[0], np.flatnonzero(~same) + 1, [len(self.docs)]])
        runs = np.repeat(np.arange(len(cut) - 1), np.diff(cut))  # documents
        left = np.maximum(first - self.context, cut[runs[first]])
        right = np.minimum(last + self.context, cut[runs[last] + 1] - 1)
        return left, right


def window_parts(
    bounds: Sequence[tuple[np.ndarray, int]], start: int, end: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the words [first, last) of each window of a sentence and the part of them it owns.

    bounds: cumulative sizes of the words and the size of a window, once for each measure. There is
    one window if the sentence fits. Otherwise consecutive windows overlap by about half, and each
    owns the words nearer to its middle than to its neighbours'. So an entity is read where it has
    the most context on both sides.
    """
    cuts: list[tuple[int, int]] = []
    first = start
    while True:
        last = min(int(np.searchsorted(o, o[first] + size, "right")) - 1 for o, size in bounds)
        last = min(max(last, first + 1), end)
        cuts.append((first, last))
        if last == end:
            break
        half = min(int(np.searchsorted(o, o[first] + size // 2, "left")) for o, size in bounds)
        first = min(max(half, first + 1), last)
    for i, (first, last) in enumerate(cuts):
        owned_first = start if i == 0 else (first + cuts[i - 1][1]) // 2
        owned_last = end if i == len(cuts) - 1 else (cuts[i + 1][0] + last) // 2
        yield first, last, owned_first, owned_last
