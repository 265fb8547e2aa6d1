"""What a corpus is known by: scores are only comparable when they are over the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from diffusionner.corpus import Sentence


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """How many sentences and entities, and a hash of their words, spans and labels in order.

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
        count += 1
        entities += len(spans) + len(sentence.irregular)
        state.update(repr((sentence.words, [tuple(span) for span in spans])).encode())
        if sentence.irregular:
            _, offsets = sentence.characters()
            base = offsets[0][0] if offsets else 0  # the same in any text around the sentence
            moved = sorted(
                (tuple((start - base, end - base) for start, end in parts), label)
                for parts, label in sentence.irregular
            )
            state.update(repr(moved).encode())
    return Fingerprint(count, entities, state.hexdigest())
