"""Sentences per second from words or text to entities, beside those of the encoder alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import sample
from benchmarks.subjects import Subject
from benchmarks.timing import (
    Summary,
    interleave,
    percentile,
    synchronise,
    timed,
)
from diffusionner.batching import Batch, EncodedCorpus
from diffusionner.cli.options import ProgressCallback
from diffusionner.corpus import Sentence
from diffusionner.diffusion import Candidates, ReverseStart
from diffusionner.inference.engine import Engine, Pending
from diffusionner.inference.onnx_engine import OnnxEngine, encoder_inputs
from diffusionner.inference.pipeline import DiffusionNER
from diffusionner.inference.stream import PredictionTask, predict
from diffusionner.model.base import Network
from diffusionner.model.tensors import to_device
from diffusionner.settings import DENOISING, InferenceSettings

MOST_UNCOUNTED = 8  # turns until all is recorded
ENCODER, WORDS, TEXT = "encoder alone", "words to entities", "text to entities"


@dataclass(frozen=True)
class Point:
    """One thing to measure. The encoder alone knows neither steps nor spans."""

    subject: str
    what: str
    precision: str
    batch_size: int
    steps: int | None = None
    spans: int | str | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"steps": self.steps, "spans": self.spans, "batch_size": self.batch_size}


@dataclass(frozen=True)
class Axes:
    """The values to try, one axis at a time, from a base point."""

    steps: tuple[int, ...]
    spans: tuple[int | str, ...]
    batch_sizes: tuple[int, ...]
    base_steps: int
    base_spans: int | str
    base_batch_size: int

    def points(
        self,
        subject: str,
        precision: str,
        whole: bool,
        denoises: bool = True,
        from_text: bool = True,
    ) -> Iterator[Point]:
        """whole: vary every axis, not only measure the base; denoises: it has steps and spans;
        from_text: it can be measured so.
        """
        base = Point(subject, WORDS, precision, self.base_batch_size)
        if denoises:
            base = replace(base, steps=self.base_steps, spans=self.base_spans)
        sizes = self.batch_sizes if whole else ()
        for size in dict.fromkeys((self.base_batch_size, *sizes)):
            yield Point(subject, ENCODER, precision, size)
        points = [base, replace(base, what=TEXT)]
        if whole:
            of_steps = [replace(base, steps=steps) for steps in self.steps if denoises]
            of_spans = [replace(base, spans=spans) for spans in self.spans if denoises]
            points += [replace(one, what=what) for one in of_steps for what in (WORDS, TEXT)]
            points += of_spans
            points += [replace(one, what=TEXT) for one in of_spans if one.spans == "auto"]
            points += [replace(base, batch_size=size) for size in self.batch_sizes]
        yield from dict.fromkeys(p for p in points if from_text or p.what != TEXT)


@dataclass
class Measured:
    """Speed at a point, and as a share of the encoder alone on the same batches."""

    point: Point
    sentences_per_second: Summary
    words_per_second: float
    share_of_encoder: float | None
    times_first: float | None  # as fast as the first subject at this point

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        return {**values.pop("point"), **values}


@dataclass
class Loaded:
    """A subject in one precision, ready to run."""

    subject: Subject
    precision: str
    ner: DiffusionNER

    @property
    def network(self) -> Network:
        """What a torch model runs, in this precision."""
        running: Network = getattr(self.ner.engine, "running")  # noqa: B009
        return running

    @property
    def paced(self) -> bool:
        """Whether it must be told how many entities to generate, having random weights."""
        return self.subject.random and self.ner.settings.method == "autoregressive"

    def words_task(
        self, sentences: Sequence[Sentence], options: dict[str, Any]
    ) -> Callable[[], object]:
        return (paced_task if self.paced else words_task)(self.ner, sentences, options)


def had_by(ner: DiffusionNER, options: dict[str, Any]) -> dict[str, Any]:
    """Of these options those that the model has: a rival has none of denoising."""
    rival = not ner.settings.denoises
    return {name: value for name, value in options.items() if not (rival and name in DENOISING)}


def sample_size(loaded: Loaded, sentences: Sequence[Sentence], axes: Axes, seconds: float) -> int:
    """How many sentences take about so long at the base."""
    options = had_by(loaded.ner, {"steps": axes.base_steps, "spans": axes.base_spans})
    count = 8
    while True:
        chosen = sample.draw(sentences, count)
        run = loaded.words_task(chosen, {**options, "batch_size": axes.base_batch_size})
        taken = settle(loaded, run)
        if taken > seconds / 4 or count > 1_000_000:
            return max(axes.base_batch_size, round(len(chosen) * seconds / taken))
        count *= 4


def settle(loaded: Loaded, task: Callable[[], object]) -> float:
    """Run it until nothing is recorded any more, a few times at most; seconds of the last time."""
    engine, recorded = loaded.ner.engine, -1
    for _ in range(MOST_UNCOUNTED):
        taken = timed(task, loaded.subject.device)
        before, recorded = recorded, getattr(engine, "recordings", 0)
        if recorded == before:
            break
    return taken


def measure(
    points: Sequence[Point],
    models: Sequence[Loaded],
    sentences: Sequence[Sentence],
    repeats: int,
    device: str,
    tell: ProgressCallback,
) -> list[Measured]:
    """All points on the same sentences, in turns."""
    by_name = {(one.subject.name, one.precision): one for one in models}
    tasks = {
        point: _task(point, by_name[point.subject, point.precision], sentences) for point in points
    }
    seconds = interleave(tasks, repeats, device, tell, "throughput")
    words = sum(len(s.words) for s in sentences)
    first = models[0].subject.name
    measured = []
    for point in points:
        speeds = Summary.of([len(sentences) / taken for taken in seconds[point]])
        yardstick = replace(point, what=ENCODER, steps=None, spans=None)
        share = times = None
        if point.what != ENCODER:
            share = _ratio(seconds, yardstick, point)
        if point.subject != first:
            own = models[0].precision
            times = _ratio(seconds, replace(point, subject=first, precision=own), point)
        measured.append(
            Measured(point, speeds, speeds.median * words / len(sentences), share, times)
        )
    return measured


def _ratio(seconds: dict[Point, list[float]], one: Point, other: Point) -> float | None:
    """How much less the other takes than the one, turn by turn: drift cancels out."""
    if one not in seconds:
        return None
    turns = zip(seconds[one], seconds[other], strict=True)
    return Summary.of([a / b for a, b in turns]).median


def _task(point: Point, loaded: Loaded, sentences: Sequence[Sentence]) -> Callable[[], object]:
    if point.what == ENCODER:
        return encoder_task(loaded, sentences, point.batch_size)
    if point.what == WORDS:
        return loaded.words_task(sentences, point.options)
    texts = sample.texts(sentences)

    def run() -> None:
        loaded.ner.subwords.caches.clear()
        list(loaded.ner.pipe(texts, **point.options))

    return run


def words_task(
    ner: DiffusionNER, sentences: Sequence[Sentence], options: dict[str, Any]
) -> Callable[[], object]:
    """As of a model that has met none of the words yet."""
    words, docs = [s.words for s in sentences], [s.doc for s in sentences]

    def run() -> None:
        ner.subwords.caches.clear()
        ner.predict_tokens(words, docs, **options)

    return run


def paced_task(
    ner: DiffusionNER, sentences: Sequence[Sentence], options: dict[str, Any]
) -> Callable[[], object]:
    """As many entities are generated of each sentence as it has.

    Its subwords are known beforehand: a device would not have waited for them.
    """
    corpus = EncodedCorpus(sentences, ner.subwords, ner.settings.encoder)
    gold = [[(start, end) for start, end, _ in s.entities] for s in sentences]
    inference = ner.settings.with_inference(options).inference
    rule, every = ner.score_rule(inference), range(len(sentences))
    return lambda: predict(ner.engine, PredictionTask(corpus, every, gold), inference, rule)


def _run_packed(engine: Any, transformer: Any, batches: Sequence[Batch[np.ndarray]]) -> None:
    """Run the transformer of a GPU engine, without padding."""
    with engine.exclusive():
        for batch in batches:
            transformer.subwords(batch)


def encoder_task(
    loaded: Loaded, sentences: Sequence[Sentence], batch_size: int
) -> Callable[[], object]:
    """The pretrained transformer alone, as its engine runs it, on the batches of words to entities.

    They are on the device already, where its weights are in bf16: nothing is converted meanwhile.
    Only an engine without padding still packs and moves them. Of an exported model it is the graph
    that runs once per sentence, which has the layers above the transformer in it.
    """
    batches = _batches(loaded.ner, sentences, batch_size)
    engine = loaded.ner.engine
    if isinstance(engine, OnnxEngine):
        feeds = [encoder_inputs(batch) for batch in batches]
        # As many at a time as the engine itself runs.
        return lambda: list(engine.workers.map(engine.encoder.run, feeds))
    packed = getattr(engine, "transformer", None)
    if packed is not None:
        return lambda: _run_packed(engine, packed, batches)
    device = torch.device(loaded.subject.device)
    transformer = loaded.network.encoder.transformer
    # Nothing else of a batch: what lies there counts as memory of inference.
    moved = [
        transformer_inputs(*to_device([batch.subwords, batch.attention], device))
        for batch in batches
    ]

    @torch.inference_mode()
    def run() -> None:
        for inputs in moved:
            transformer(**inputs)

    return run


class _Recorder:
    """An engine that keeps the batches it is given and finds nothing in them."""

    def __init__(self, engine: Engine) -> None:
        self.labels = engine.labels
        self.subword_multiple, self.prefetch = engine.subword_multiple, engine.prefetch
        self.batches: list[Batch[np.ndarray]] = []

    def launch(
        self,
        batch: Batch[np.ndarray],
        start: ReverseStart[np.ndarray],
        settings: InferenceSettings,
    ) -> Pending:
        self.batches.append(batch)
        zeros = np.zeros((len(start.slots), 1, 0), dtype=np.int64)
        nothing = Candidates(
            zeros, zeros, zeros, zeros, zeros, zeros > 0, zeros > 0, zeros[..., None]
        )
        return lambda: nothing


def _batches(
    ner: DiffusionNER, sentences: Sequence[Sentence], batch_size: int
) -> list[Batch[np.ndarray]]:
    """Those of words to entities, in their order."""
    recorder = _Recorder(ner.engine)
    noting = DiffusionNER(recorder, ner.subwords, ner.settings, ner.calibration)
    words, docs = [s.words for s in sentences], [s.doc for s in sentences]
    noting.predict_tokens(words, docs, batch_size=batch_size)
    return recorder.batches


def transformer_inputs(subwords: Tensor, attention: Tensor) -> dict[str, Tensor]:
    """What the sentence encoder gives to the transformer.

    On a GPU the mask is in its final form: with a 2-D one the host waits in every batch to see
    whether it masks at all, and the encoder alone would seem slower than it is.
    """
    mask = attention.bool()[:, None, None] if attention.is_cuda else attention
    return {"input_ids": subwords, "attention_mask": mask}


def latency(subject: Subject, words: Sequence[str], calls: int) -> dict[str, Any]:
    """Loading, the very first call and then many, each of one short text."""
    started = time.perf_counter()
    ner = subject.load()
    synchronise(subject.device)
    loading = time.perf_counter() - started
    text = " ".join(words)
    found: dict[str, Any] = {"subject": subject.name, "words": len(words), "load_s": loading}
    for spans in ("auto", 60) if ner.settings.denoises else ("none",):
        options = had_by(ner, {"steps": 1, "spans": spans})

        def call(options: dict[str, Any] = options) -> object:
            return ner(text, **options)

        first = timed(call, subject.device)
        if "first_call_ms" not in found:
            found["first_call_ms"] = 1000 * first
        for _ in range(3):
            once = timed(call, subject.device)
        # Where a call takes seconds, a hundred of them tell no more than a few.
        count = max(5, min(calls, int(10 / once)))
        taken = [1000 * timed(call, subject.device) for _ in range(count)]
        found[f"spans_{spans}"] = {
            "calls": count,
            "p50_ms": percentile(taken, 0.5),
            "p95_ms": percentile(taken, 0.95),
        }
    return found
