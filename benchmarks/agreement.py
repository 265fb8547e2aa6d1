"""Agreement of the fast path with the plain network.

Fast: sorted batches and all optimisations. Plain: one sentence at a time on the CPU in float32,
without optimisations.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.subjects import Subject
from benchmarks.throughput import supported_options
from diffusionner.corpus import Entity, Sentence
from diffusionner.inference.gpu.recording import MIN_SIGHTINGS
from diffusionner.inference.pipeline import DiffusionNER

TIME_LIMIT = 20.0  # approximate seconds of the plain network, for all γ together
MIN_SENTENCES = 4  # compared however long they take
TOLERANCE = 1e-3  # of a score, in float32
# With random weights, rounding decides between words that are almost equally likely boundaries. It
# also decides which of two spans with the same boundaries is kept, and these may differ in score.
MIN_RANDOM_F1 = 0.99


@dataclass(frozen=True)
class Expected:
    """Entities that the plain network finds at one γ."""

    steps: int
    sentences: list[Sentence]  # the last few may only be context
    entities: list[list[Entity]]  # of the first sentences
    options: dict[str, Any]
    thresholds: Mapping[str, float]  # minimum score of each type


@dataclass(frozen=True)
class Agreement:
    subject: str
    precision: str
    steps: int
    sentences: int
    entities: int  # found by the plain network
    same_sentences: float  # share of the sentences with exactly the same entities
    f1: float  # of the fast path, with the plain network as gold
    score_difference: float  # maximum over entities that both found
    required: bool  # a difference is an error
    holds: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def expect(subject: Subject, sentences: Sequence[Sentence], steps: Sequence[int]) -> list[Expected]:
    """Run the plain network for each γ, on as many sentences as the time limit allows."""
    plain = subject.load_plain()
    steps = steps if plain.settings.denoises else (1,)
    deadline = time.perf_counter() + TIME_LIMIT
    found = []
    for turn, count in enumerate(steps):
        options = supported_options(plain, {"steps": count, "spans": 60})
        if subject.random:  # otherwise nothing would be found and compared
            options |= {"threshold": 0.0, "overlap": "all"}
        seconds = (deadline - time.perf_counter()) / (len(steps) - turn)
        entities = _first(plain, sentences, options, seconds)
        rule = plain.score_rule(plain.settings.with_inference(options).inference)
        thresholds = dict(zip(plain.labels, rule.scores(rule.min_sums).tolist(), strict=True))
        read = list(sentences[: len(entities) + plain.settings.encoder.context])
        found.append(Expected(count, read, entities, options, thresholds))
    return found


def _first(
    plain: DiffusionNER, sentences: Sequence[Sentence], options: dict[str, Any], seconds: float
) -> list[list[Entity]]:
    """Return the entities of the first sentences, until time is up."""
    started = time.perf_counter()
    found: list[list[Entity]] = []
    for entities in plain.stream(((s.words, s.doc) for s in sentences), batch_size=1, **options):
        found.append(entities)
        if len(found) >= MIN_SENTENCES and time.perf_counter() - started > seconds:
            break
    return found


def check(
    subject: Subject, precision: str, fast: DiffusionNER, expected: Expected, batch_size: int
) -> Agreement:
    words, docs = [s.words for s in expected.sentences], [s.doc for s in expected.sentences]
    with _without_tf32():
        for _ in range(MIN_SIGHTINGS):  # on a GPU the last run replays graphs
            ours = fast.predict_tokens(words, docs, batch_size=batch_size, **expected.options)
    theirs = expected.entities
    same, found, plain, both, difference = compare(ours[: len(theirs)], theirs, expected.thresholds)
    f1 = 2 * both / (found + plain) if found + plain else 1.0
    required = precision == "float32"
    if subject.random:
        agrees = f1 >= MIN_RANDOM_F1
    else:
        agrees = same == len(theirs) and difference <= TOLERANCE
    return Agreement(
        subject.name, precision, expected.steps, len(theirs), plain, same / len(theirs), f1,
        difference, required, agrees or not required,
    )  # fmt: skip


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Disable TF32, to which cuDNN's LSTM rounds float32 on a GPU."""
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = allowed


def compare(
    ours: Sequence[Sequence[Entity]],
    theirs: Sequence[Sequence[Entity]],
    thresholds: Mapping[str, float],
) -> tuple[int, int, int, int, float]:
    """Return the number of equal sentences, of our, their and shared entities, and the maximum
    difference of scores.

    An entity that only one side has, with a score at the threshold, does not count.
    """
    same = found = expected = both = 0
    difference = 0.0
    for one, other in zip(ours, theirs, strict=True):
        a, b = ({e[:3]: e.score for e in entities} for entities in (one, other))
        for mine, yours in ((a, b), (b, a)):
            for key in [k for k, score in mine.items() if k not in yours]:
                if abs(mine[key] - thresholds[key[2]]) < TOLERANCE:
                    del mine[key]
        shared = a.keys() & b.keys()
        difference = max([difference, *(abs(a[key] - b[key]) for key in shared)])
        same += a.keys() == b.keys()
        found, expected, both = found + len(a), expected + len(b), both + len(shared)
    return same, found, expected, both, difference
