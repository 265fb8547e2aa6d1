"""What a corpus is known by: scores are only comparable when they are over the same one."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from diffusionner.corpus import Sentence


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """How many sentences and entities, and a hash of their words, spans and labels in order, and
    of what was looked for.

    Neither the file's format nor its name, its documents nor the order of the entities within a
    sentence change it.
    """

    sentences: int
    entities: int
    hash: str

    def __str__(self) -> str:
        return f"{self.sentences} sentences, {self.entities} entities, {self.hash}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def fingerprint(sentences: Iterable[Sentence]) -> Fingerprint:
    state = hashlib.blake2b(digest_size=8)
    count = entities = 0
    for sentence in sentences:
        spans = sorted(set(sentence.entities))
        irregular = set(sentence.irregular)
        count += 1
        entities += len(spans) + len(irregular)
        # Not repr: which characters it escapes depends on the version of Python.
        state.update(ascii((sentence.words, [tuple(span) for span in spans])).encode())
        if irregular:
            placed = sorted((_placed(sentence, parts), label) for parts, label in irregular)
            state.update(ascii(placed).encode())
        if sentence.types is not None:
            state.update(ascii(sorted(sentence.types)).encode())
    return Fingerprint(count, entities, state.hexdigest())


def _placed(sentence: Sentence, parts: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """The word of each part's first and last character, and the character in it.

    They are the same whatever stands between words, which not every format holds.
    """
    _, offsets = sentence.characters()
    starts = [start for start, _ in offsets] or [0]

    def place(position: int) -> tuple[int, int]:
        word = max(0, bisect_right(starts, position) - 1)
        return word, position - starts[word]

    return [place(start) + place(end - 1) for start, end in parts]
