"""Measurements for a card."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine, sample
from benchmarks.card import startup
from benchmarks.card.about import About
from benchmarks.timing import interleave
from diffusionner.cli.options import ProgressCallback
from diffusionner.corpus import Sentence
from diffusionner.evaluation import evaluate, score_sentences
from diffusionner.evaluation.report import PredictionScores
from diffusionner.evaluation.result import Evaluation
from diffusionner.inference.pipeline import DiffusionNER
from diffusionner.inference.stream import batch_size

STEPS = (1, 2, 5, 10)
SPANS = ("auto", "10", "20", "60")
SEEDS = range(5)
BINS = 10
TIMED_SENTENCES = 1000
REPEATS = 3


@dataclass(frozen=True)
class Bin:
    """Entities found with a score in one interval."""

    count: int
    score: float  # mean
    right: float  # share that is correct


@dataclass(frozen=True)
class Speed:
    sentences: float  # per second
    words: float  # per second
    batch_size: int
    cores: float  # used by the process; fewer than available on a busy machine


@dataclass(frozen=True)
class Figures:
    """All measurements; F1 in percent, by the start of the reverse process."""

    corpora: dict[str, Evaluation]
    curve_sentences: int  # of the first corpus, for the curves
    steps: dict[str, list[float]]  # F1 at each of STEPS
    spans: dict[str, list[float]]  # F1 at each of SPANS
    seeds: list[float]  # F1 from noise, for each of SEEDS
    speed: Speed
    startup: startup.Startup
    machine: dict[str, Any]


def measure(
    folder: Path,
    ner: DiffusionNER,
    about: About,
    device: str,
    limit: int | None,
    progress: ProgressCallback,
) -> Figures:
    """Measure everything; curves and speed on at most `limit` sentences of the first corpus."""
    measured: dict[str, Evaluation] = {}
    for one in about.corpora:
        tell = partial(progress, one.name)
        report = evaluate(ner, one.read(), mapping=one.mapping, progress=tell)
        measured[one.name] = Evaluation.from_report(report, (one.name, folder.name))
    first = about.corpora[0].read()
    some = first if limit is None else sample.draw(first, min(limit, len(first)))
    starts = ("candidates", "noise") if ner.settings.decoder.initializer != "none" else ("noise",)

    def curve(what: str, values: Sequence[Any], start: str) -> list[float]:
        options = [{"start": start, what: value} for value in values]
        return [_f1(ner, some, f"{what}, {start}", progress, **one) for one in options]

    return Figures(
        measured,
        len(some),
        {start: curve("steps", STEPS, start) for start in starts},
        {start: curve("spans", SPANS, start) for start in starts},
        curve("seed", SEEDS, "noise"),
        _speed(ner, some[:TIMED_SENTENCES], device, progress),
        startup.measure(folder, device),
        machine.describe(device),
    )


def reliability(predictions: PredictionScores) -> list[Bin | None]:
    """Return the intervals of the expected calibration error; None for an empty interval."""
    scores, right = predictions.scores, predictions.correct
    of = np.minimum((scores * BINS).astype(int), BINS - 1)
    return [
        Bin(int(here.sum()), float(scores[here].mean()), float(right[here].mean()))
        if (here := of == number).any()
        else None
        for number in range(BINS)
    ]


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and sample standard deviation."""
    return statistics.fmean(values), statistics.stdev(values)


def _f1(
    ner: DiffusionNER,
    sentences: Sequence[Sentence],
    what: str,
    progress: ProgressCallback,
    **options: Any,
) -> float:
    predicted = ner.predict_sentences(sentences, partial(progress, what), **options)
    return 100 * score_sentences(sentences, predicted).micro.f1


def _speed(
    ner: DiffusionNER, sentences: Sequence[Sentence], device: str, progress: ProgressCallback
) -> Speed:
    """Measure the speed from words, with the model's own settings."""
    tasks = {"all": lambda: ner.decode_sentences(sentences)}
    started, worked = time.perf_counter(), time.process_time()
    seconds = statistics.median(interleave(tasks, REPEATS, device, progress, "speed")["all"])
    cores = (time.process_time() - worked) / (time.perf_counter() - started)
    words = sum(len(sentence.words) for sentence in sentences)
    size = batch_size(ner.engine, ner.settings.inference)
    return Speed(len(sentences) / seconds, words / seconds, size, cores)
