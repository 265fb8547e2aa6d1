"""Entities in the form in which they are compared.

Positions are characters of the sentence's words joined by single spaces. This represents spans of
whole words, discontinuous annotations and annotations that do not align with token boundaries in
the same way, whatever text the words come from.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from diffusionner.corpus import Offsets, Sentence


class Mention(NamedTuple):
    """An entity of a sentence. `parts` are its fragments in order, their ends exclusive."""

    parts: Offsets
    label: str
    words: int  # number of words it covers, fully or partly
    aligned: bool = True  # with token boundaries

    @property
    def discontinuous(self) -> bool:
        return len(self.parts) > 1

    @property
    def start(self) -> int:
        return self.parts[0][0]

    @property
    def end(self) -> int:
        return self.parts[-1][1]

    @property
    def size(self) -> int:
        """Number of characters."""
        return sum(end - start for start, end in self.parts)


class JoinedWords:
    """The words of a sentence joined by single spaces."""

    def __init__(self, words: Sequence[str]) -> None:
        self.starts = list(accumulate((len(word) + 1 for word in words), initial=0))[:-1]
        self.ends = [start + len(word) for start, word in zip(self.starts, words, strict=True)]

    def mention(self, fragments: Offsets, label: str) -> Mention:
        """Return the mention of fragments of whole words."""
        parts = tuple((self.starts[start], self.ends[end - 1]) for start, end in fragments)
        return Mention(parts, label, sum(end - start for start, end in fragments))

    def mention_in_text(
        self, parts: Offsets, label: str, offsets: Sequence[tuple[int, int]]
    ) -> Mention:
        """Return the mention at `parts` of a text that has the words at `offsets`."""
        moved = tuple(
            (self._move(start, offsets, False), self._move(end, offsets, True))
            for start, end in parts
        )
        words = {i for first, last in self.covered_words(moved) for i in range(first, last)}
        aligned = all(start in self.starts and end in self.ends for start, end in moved)
        return Mention(moved, label, max(1, len(words)), aligned)

    def covered_words(self, parts: Offsets) -> list[tuple[int, int]]:
        """Return the words that each part covers, fully or partly, `end` exclusive."""
        return [(bisect_right(self.ends, s), bisect_left(self.starts, e)) for s, e in parts]

    def _move(self, position: int, offsets: Sequence[tuple[int, int]], is_end: bool) -> int:
        """Map a position in the text to the joined words."""
        find = bisect_left if is_end else bisect_right
        word = find(offsets, position, key=lambda offset: offset[0]) - 1
        if word < 0:
            return position - offsets[0][0]
        start, end = offsets[word]
        if position < end + is_end:
            return self.starts[word] + position - start
        # The text may have any amount of white space between two words; here it is one space.
        return self.ends[word] + (position - end if word == len(offsets) - 1 else is_end)


def sentence_mentions(sentence: Sentence) -> frozenset[Mention]:
    """Return all annotations of a sentence, including the irregular ones."""
    joined = JoinedWords(sentence.words)
    mentions = {joined.mention(each.fragments, each.label) for each in sentence.all_entities}
    if sentence.irregular:
        _, offsets = sentence.characters()
        mentions.update(joined.mention_in_text(*one, offsets) for one in sentence.irregular)
    return frozenset(mentions)


def common_characters(one: Mention, other: Mention) -> int:
    """Return the number of characters that two mentions share."""
    return sum(
        max(0, min(end, other_end) - max(start, other_start))
        for start, end in one.parts
        for other_start, other_end in other.parts
    )


def contains(outer: Mention, inner: Mention) -> bool:
    """Return True if `inner` lies within `outer` and has a different span."""
    return outer.parts != inner.parts and all(
        any(start <= s and e <= end for start, end in outer.parts) for s, e in inner.parts
    )


def nesting(mentions: Iterable[Mention]) -> dict[Mention, tuple[int, bool]]:
    """Return the depth of each mention and whether it is nested.

    The depth is the number of mentions that contain it. A mention is nested if it contains another,
    lies inside another or has exactly the same span as another.
    """
    depths = dict.fromkeys(mentions, 0)
    nested: set[Mention] = set()
    active: list[Mention] = []
    for mention in sorted(depths, key=lambda m: (m.start, -m.end)):
        active = [other for other in active if other.end > mention.start]
        for other in active:
            for outer, inner in ((other, mention), (mention, other)):
                if contains(outer, inner):
                    depths[inner] += 1
                    nested.update((outer, inner))
            if other.parts == mention.parts:
                nested.update((other, mention))
        active.append(mention)
    return {mention: (depth, mention in nested) for mention, depth in depths.items()}
