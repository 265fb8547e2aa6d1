"""Identity of a corpus: scores are comparable only if they are over the same corpus."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from diffusionner.corpus import Offsets, Sentence


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Number of sentences and entities, and a hash of the words, spans, labels and `types`.

    The file format, file and document names, and the order of the entities within a sentence do
    not affect it.
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
        others = _others(sentence)
        count += 1
        entities += len(spans) + len(others)
        # Not repr: which characters it escapes depends on the Python version.
        state.update(ascii((sentence.words, [tuple(span) for span in spans])).encode())
        if others:
            places = sorted((_word_positions(sentence, parts), label) for parts, label in others)
            state.update(ascii(places).encode())
        if sentence.types is not None:
            state.update(ascii(sorted(sentence.types)).encode())
    return Fingerprint(count, entities, state.hexdigest())


def _others(sentence: Sentence) -> set[tuple[Offsets, str]]:
    """Return the annotations that are not contiguous words, by character."""
    found: set[tuple[Offsets, str]] = set(sentence.irregular)
    if sentence.discontinuous:
        _, offsets = sentence.characters()
        for fragments, label in sentence.discontinuous:
            parts = ((offsets[start][0], offsets[end - 1][1]) for start, end in fragments)
            found.add((tuple(parts), label))
    return found


def _word_positions(sentence: Sentence, parts: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Return the word, and the character in it, of the first and last character of each part.

    This does not depend on the white space between words, which not every format keeps.
    """
    _, offsets = sentence.characters()
    starts = [start for start, _ in offsets] or [0]

    def position(character: int) -> tuple[int, int]:
        word = max(0, bisect_right(starts, character) - 1)
        return word, character - starts[word]

    return [position(start) + position(end - 1) for start, end in parts]
