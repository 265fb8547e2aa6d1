"""Entities as they are compared: by the characters of a sentence's words joined by spaces.

In these characters a run of words, an annotation in parts and one that cuts through a word can be
told apart and held against each other, whatever text the words were taken from.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from diffusionner.corpus import Sentence

Parts = tuple[tuple[int, int], ...]


class Mention(NamedTuple):
    """An entity of a sentence; `parts` are in order, their ends exclusive."""

    parts: Parts
    label: str
    words: int  # how many it touches
    regular: bool = True  # a run of whole words

    @property
    def start(self) -> int:
        return self.parts[0][0]

    @property
    def end(self) -> int:
        return self.parts[-1][1]


class Layout:
    """The words of a sentence joined by single spaces."""

    def __init__(self, words: Sequence[str]) -> None:
        self.starts = list(accumulate((len(word) + 1 for word in words), initial=0))[:-1]
        self.ends = [start + len(word) for start, word in zip(self.starts, words, strict=True)]

    def of_words(self, start: int, end: int, label: str) -> Mention:
        return Mention(((self.starts[start], self.ends[end - 1]),), label, end - start)

    def of_characters(
        self, parts: Parts, label: str, offsets: Sequence[tuple[int, int]]
    ) -> Mention:
        """From characters of a text in which the words stand at `offsets`."""
        moved = tuple((self._begin(s, offsets), self._finish(e, offsets)) for s, e in parts)
        words = {i for first, last in self.touched(moved) for i in range(first, last)}
        return Mention(moved, label, max(1, len(words)), self._is_run_of_words(moved))

    def touched(self, parts: Parts) -> list[tuple[int, int]]:
        """The words that each part covers or cuts, `end` exclusive."""
        return [(bisect_right(self.ends, s), bisect_left(self.starts, e)) for s, e in parts]

    def _is_run_of_words(self, parts: Parts) -> bool:
        start, end = parts[0]
        return len(parts) == 1 and start in self.starts and end in self.ends

    def _begin(self, character: int, offsets: Sequence[tuple[int, int]]) -> int:
        word = bisect_right(offsets, character, key=lambda offset: offset[0]) - 1
        if word < 0:
            return character - offsets[0][0]
        start, end = offsets[word]
        if character < end:
            return self.starts[word] + character - start
        # Between two words there is one space, however much there is in the text.
        return self.ends[word] + (character - end if word == len(offsets) - 1 else 0)

    def _finish(self, character: int, offsets: Sequence[tuple[int, int]]) -> int:
        word = bisect_left(offsets, character, key=lambda offset: offset[0]) - 1
        if word < 0:
            return character - offsets[0][0]
        start, end = offsets[word]
        if character <= end:
            return self.starts[word] + character - start
        return self.ends[word] + (character - end if word == len(offsets) - 1 else 1)


def mentions_of(sentence: Sentence) -> frozenset[Mention]:
    """All annotations of a sentence, those that are no run of whole words too."""
    layout = Layout(sentence.words)
    found = {layout.of_words(*span) for span in sentence.entities}
    if sentence.irregular:
        _, offsets = sentence.characters()
        found.update(
            layout.of_characters(parts, label, offsets) for parts, label in sentence.irregular
        )
    return frozenset(found)


def shared(one: Mention, other: Mention) -> int:
    """How many characters two mentions have in common."""
    return sum(
        max(0, min(end, other_end) - max(start, other_start))
        for start, end in one.parts
        for other_start, other_end in other.parts
    )


def contains(outer: Mention, inner: Mention) -> bool:
    """Whether one lies within the other and is not the same span."""
    return outer.parts != inner.parts and all(
        any(start <= s and e <= end for start, end in outer.parts) for s, e in inner.parts
    )


def nesting(mentions: Iterable[Mention]) -> dict[Mention, tuple[int, bool]]:
    """For each its depth and whether it takes part in nesting.

    The depth is the number of mentions that contain it. One that contains another, lies inside
    another or shares its exact span with another takes part.
    """
    depths = dict.fromkeys(mentions, 0)
    nested: set[Mention] = set()
    open_ones: list[Mention] = []
    for mention in sorted(depths, key=lambda m: (m.start, -m.end)):
        open_ones = [other for other in open_ones if other.end > mention.start]
        for other in open_ones:
            for outer, inner in ((other, mention), (mention, other)):
                if contains(outer, inner):
                    depths[inner] += 1
                    nested.update((outer, inner))
            if other.parts == mention.parts:
                nested.update((other, mention))
        open_ones.append(mention)
    return {mention: (depth, mention in nested) for mention, depth in depths.items()}
