"""Whether what is fast finds the same entities as the network run plainly.

Fast: sorted batches, everything the package does to save time. Plain: one sentence at a time, on
the CPU in float32, the network as it is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.subjects import Subject
from benchmarks.throughput import had_by
from diffusionner.corpus import Entity, Sentence
from diffusionner.inference.gpu.recording import MIN_SIGHTINGS
from diffusionner.inference.pipeline import DiffusionNER

PATIENCE = 20.0  # seconds of a plain network, roughly, for all γ together
FEW = 4  # sentences that are compared however long they take
TOLERANCE = 1e-3  # of a score, in float32
# With random weights, rounding decides between words that are almost equally likely boundaries. It
# also decides which of two spans with the same boundaries stays, and these may differ in score.
LEAST_RANDOM_F1 = 0.99


@dataclass(frozen=True)
class Expected:
    """What a plain network finds at one γ, with which every precision is compared."""

    steps: int
    sentences: list[Sentence]  # the last few may only be context
    entities: list[list[Entity]]  # of the first ones
    options: dict[str, Any]
    least: Mapping[str, float]  # score that an entity of each type needs


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


def expect(subject: Subject, sentences: Sequence[Sentence], steps: Sequence[int]) -> list[Expected]:
    """For each γ, of as many of the first sentences as its share of the time allows."""
    plain = subject.load_plain()
    steps = steps if plain.settings.denoises else (1,)
    deadline = time.perf_counter() + PATIENCE
    found = []
    for turn, count in enumerate(steps):
        options = had_by(plain, {"steps": count, "spans": 60})
        if subject.random:  # nothing would be found, and nothing compared
            options |= {"threshold": 0.0, "overlap": "all"}
        seconds = (deadline - time.perf_counter()) / (len(steps) - turn)
        entities = _first(plain, sentences, options, seconds)
        rule = plain.score_rule(plain.settings.with_inference(options).inference)
        least = dict(zip(plain.labels, rule.scores(rule.min_sums).tolist(), strict=True))
        read = list(sentences[: len(entities) + plain.settings.encoder.context])
        found.append(Expected(count, read, entities, options, least))
    return found


def _first(
    plain: DiffusionNER, sentences: Sequence[Sentence], options: dict[str, Any], seconds: float
) -> list[list[Entity]]:
    """What is found in the first sentences until the time is over."""
    started = time.perf_counter()
    found: list[list[Entity]] = []
    for entities in plain.stream(((s.words, s.doc) for s in sentences), batch_size=1, **options):
        found.append(entities)
        if len(found) >= FEW and time.perf_counter() - started > seconds:
            break
    return found


def check(
    subject: Subject, precision: str, fast: DiffusionNER, expected: Expected, batch_size: int
) -> Agreement:
    words, docs = [s.words for s in expected.sentences], [s.doc for s in expected.sentences]
    with _without_tf32():
        for _ in range(MIN_SIGHTINGS):  # on a GPU the last time is by recordings
            ours = fast.predict_tokens(words, docs, batch_size=batch_size, **expected.options)
    theirs = expected.entities
    same, found, wanted, both, furthest = compare(ours[: len(theirs)], theirs, expected.least)
    f1 = 2 * both / (found + wanted) if found + wanted else 1.0
    required = precision == "float32"
    if subject.random:
        agrees = f1 >= LEAST_RANDOM_F1
    else:
        agrees = same == len(theirs) and furthest <= TOLERANCE
    return Agreement(
        subject.name, precision, expected.steps, len(theirs), wanted, same / len(theirs), f1,
        furthest, required, agrees or not required,
    )  # fmt: skip


@contextmanager
def _without_tf32() -> Iterator[None]:
    """cuDNN's LSTM rounds float32 to TF32 on a GPU, which is no mistake of the fast path."""
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = allowed


def compare(
    ours: Sequence[Sequence[Entity]], theirs: Sequence[Sequence[Entity]], least: Mapping[str, float]
) -> tuple[int, int, int, int, float]:
    """Sentences that are the same, our entities, theirs, both's, and how far scores are apart.

    An entity that only one side has, because its score is just at the least, does not count.
    """
    same = found = expected = both = 0
    furthest = 0.0
    for one, other in zip(ours, theirs, strict=True):
        a, b = ({e[:3]: e.score for e in entities} for entities in (one, other))
        for mine, yours in ((a, b), (b, a)):
            for key in [k for k, score in mine.items() if k not in yours]:
                if abs(mine[key] - least[key[2]]) < TOLERANCE:
                    del mine[key]
        shared = a.keys() & b.keys()
        furthest = max([furthest, *(abs(a[key] - b[key]) for key in shared)])
        same += a.keys() == b.keys()
        found, expected, both = found + len(a), expected + len(b), both + len(shared)
    return same, found, expected, both, furthest
