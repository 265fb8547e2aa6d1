"""Whether what is fast finds the same entities as the network run plainly.

Fast: sorted batches, everything the package does to save time. Plain: one sentence at a time, on
the CPU in float32, the network as it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from diffusionner.bench.subjects import Subject
from diffusionner.bench.timing import timed
from diffusionner.corpus import Entity, Sentence
from diffusionner.inference.pipeline import DiffusionNER

PATIENCE = 20.0  # seconds of the plain network
TOLERANCE = 1e-3  # of a score, in float32
# With random weights, rounding decides between words that are almost equally likely boundaries.
LEAST_RANDOM_F1 = 0.99


@dataclass(frozen=True)
class Agreement:
    subject: str
    precision: str
    steps: int
    sentences: int
    entities: int  # that the plain network found
    same_sentences: float  # share of the sentences with exactly the same entities
    f1: float  # of the fast ones, the plain ones taken as gold
    score_difference: float  # the largest, of entities that both found
    required: bool  # a difference is a mistake
    holds: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def affordable(plain: DiffusionNER, sentences: Sequence[Sentence], most: int) -> int:
    """How many sentences to compare, at most: a large network takes its time."""
    few = [s.words for s in sentences[:4]]
    taken = timed(lambda: plain.predict_tokens(few, steps=1, spans=60, batch_size=1), "cpu")
    return max(len(few), min(most, round(len(few) * PATIENCE / taken)))


def check(
    subject: Subject,
    precision: str,
    fast: DiffusionNER,
    plain: DiffusionNER,
    sentences: Sequence[Sentence],
    steps: int,
    batch_size: int,
) -> Agreement:
    options: dict[str, Any] = {"steps": steps, "spans": 60}
    if subject.random:  # nothing would be found, and nothing compared
        options |= {"threshold": 0.0, "overlap": "all"}
    words, docs = [s.words for s in sentences], [s.doc for s in sentences]
    ours = fast.predict_tokens(words, docs, batch_size=batch_size, **options)
    theirs = plain.predict_tokens(words, docs, batch_size=1, **options)
    threshold = plain.settings.with_inference(options).inference.threshold
    same, found, expected, both, furthest = compare(ours, theirs, threshold)
    f1 = 2 * both / (found + expected) if found + expected else 1.0
    required = precision == "float32"
    enough = f1 >= LEAST_RANDOM_F1 if subject.random else same == len(sentences)
    return Agreement(
        subject.name, precision, steps, len(sentences), expected, same / len(sentences), f1,
        furthest, required, not required or (enough and furthest <= TOLERANCE),
    )  # fmt: skip


def compare(
    ours: Sequence[Sequence[Entity]], theirs: Sequence[Sequence[Entity]], threshold: float
) -> tuple[int, int, int, int, float]:
    """Sentences that are the same, our entities, theirs, both's, and how far scores are apart.

    An entity that only one side has, because its score is at the threshold, does not count.
    """
    same = found = expected = both = 0
    furthest = 0.0
    for one, other in zip(ours, theirs, strict=True):
        a, b = ({e[:3]: e.score for e in entities} for entities in (one, other))
        for mine, yours in ((a, b), (b, a)):
            for key in [k for k, score in mine.items() if k not in yours]:
                if abs(mine[key] - threshold / 3) < TOLERANCE:
                    del mine[key]
        shared = a.keys() & b.keys()
        furthest = max([furthest, *(abs(a[key] - b[key]) for key in shared)])
        same += a.keys() == b.keys()
        found, expected, both = found + len(a), expected + len(b), both + len(shared)
    return same, found, expected, both, furthest
