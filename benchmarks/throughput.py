"""Sentences per second from words or text to entities, compared with the encoder alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
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
from diffusionner.diffusion import BeliefDenoiser, Candidates, ReverseStart
from diffusionner.inference.engine import Engine, Pending
from diffusionner.inference.onnx_engine import OnnxEngine, encoder_inputs
from diffusionner.inference.pipeline import DiffusionNER
from diffusionner.inference.stream import PredictionTask, predict
from diffusionner.model.base import Network
from diffusionner.model.tensors import to_device
from diffusionner.settings import DENOISING, InferenceSettings

MAX_WARM_UP = 8  # turns until all graphs are recorded
ENCODER, WORDS, TEXT = "encoder alone", "words to entities", "text to entities"


@dataclass(frozen=True)
class Point:
    """A configuration to measure. The encoder alone has neither steps nor spans."""

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
    """Values to try, one axis at a time, starting from a base point."""

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
        """Yield the points of a model.

        whole: vary every axis instead of only measuring the base; denoises: the model has steps and
        spans; from_text: it can be measured from text.
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
    """Speed at a point, also as a share of the encoder alone on the same batches."""

    point: Point
    sentences_per_second: Summary
    words_per_second: float
    share_of_encoder: float | None
    times_first: float | None  # speed relative to the first model at this point

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        return {**values.pop("point"), **values}


@dataclass
class Loaded:
    """A model in one precision, ready to run."""

    subject: Subject
    precision: str
    ner: DiffusionNER

    @property
    def network(self) -> Network:
        """The network that a torch model runs in this precision."""
        running: Network = getattr(self.ner.engine, "running")  # noqa: B009
        return running

    @property
    def paced(self) -> bool:
        """True if random weights must be given the number of entities to generate."""
        return self.subject.random and self.ner.settings.method == "autoregressive"

    def words_task(
        self, sentences: Sequence[Sentence], options: dict[str, Any]
    ) -> Callable[[], object]:
        return (paced_task if self.paced else words_task)(self.ner, sentences, options)


def supported_options(ner: DiffusionNER, options: dict[str, Any]) -> dict[str, Any]:
    """Drop the options of denoising for a rival."""
    rival = not ner.settings.denoises
    return {name: value for name, value in options.items() if not (rival and name in DENOISING)}


def sample_size(loaded: Loaded, sentences: Sequence[Sentence], axes: Axes, seconds: float) -> int:
    """Return the number of sentences that take about so long at the base point."""
    options = supported_options(loaded.ner, {"steps": axes.base_steps, "spans": axes.base_spans})
    count = 8
    while True:
        chosen = sample.draw(sentences, count)
        run = loaded.words_task(chosen, {**options, "batch_size": axes.base_batch_size})
        taken = warm_up(loaded, run)
        if taken > seconds / 4 or count > 1_000_000:
            return max(axes.base_batch_size, round(len(chosen) * seconds / taken))
        count *= 4


def warm_up(loaded: Loaded, task: Callable[[], object]) -> float:
    """Run a task until no graphs are recorded any more; return the seconds of the last run."""
    engine, recorded = loaded.ner.engine, -1
    for _ in range(MAX_WARM_UP):
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
    progress: ProgressCallback,
) -> list[Measured]:
    """Measure all points on the same sentences, in turns."""
    by_name = {(one.subject.name, one.precision): one for one in models}
    tasks = {
        point: _task(point, by_name[point.subject, point.precision], sentences) for point in points
    }
    seconds = interleave(tasks, repeats, device, progress, "throughput")
    words = sum(len(s.words) for s in sentences)
    first = models[0].subject.name
    measured = []
    for point in points:
        speeds = Summary.of([len(sentences) / taken for taken in seconds[point]])
        baseline = replace(point, what=ENCODER, steps=None, spans=None)
        share = times = None
        if point.what != ENCODER:
            share = _ratio(seconds, baseline, point)
        if point.subject != first:
            own = models[0].precision
            times = _ratio(seconds, replace(point, subject=first, precision=own), point)
        measured.append(
            Measured(point, speeds, speeds.median * words / len(sentences), share, times)
        )
    return measured


def _ratio(seconds: dict[Point, list[float]], one: Point, other: Point) -> float | None:
    """Return the median ratio of seconds, turn by turn, so that drift cancels out."""
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
    """Return a task that predicts from words, with an empty word cache."""
    words, docs = [s.words for s in sentences], [s.doc for s in sentences]

    def run() -> None:
        ner.subwords.caches.clear()
        ner.predict_tokens(words, docs, **options)

    return run


def paced_task(
    ner: DiffusionNER, sentences: Sequence[Sentence], options: dict[str, Any]
) -> Callable[[], object]:
    """Return a task that generates as many entities as each sentence has.

    Subwords are computed beforehand: a device would not have waited for them.
    """
    corpus = EncodedCorpus(sentences, ner.subwords, ner.settings.encoder)
    counts = np.array([len(s.entities) for s in sentences])
    inference = ner.settings.with_inference(options).inference
    rule, every = ner.score_rule(inference), range(len(sentences))
    return lambda: predict(ner.engine, PacedTask(corpus, every, counts=counts), inference, rule)


@dataclass
class PacedTask(PredictionTask):
    """Tells a generator how many entities to generate."""

    counts: np.ndarray = field(kw_only=True)  # of every sentence

    def launch(self, engine: Engine, chosen: np.ndarray, settings: InferenceSettings) -> Pending:
        batch = self.corpus.batch(chosen, (engine.subword_multiple, 1, 1, 1, 1))
        counts = self.counts[self.corpus.windows.sentence[chosen]]
        slots = np.arange(max(1, counts.max())) < counts[:, None]
        given = np.zeros((*slots.shape, 2), dtype=np.int64)
        return engine.launch(batch, ReverseStart(slots[:, :0], True, given, slots), settings)


def _run_packed(engine: Any, transformer: Any, batches: Sequence[Batch[np.ndarray]]) -> None:
    """Run the transformer of a GPU engine, without padding."""
    with engine.exclusive():
        for batch in batches:
            transformer.subwords(batch)


def encoder_task(
    loaded: Loaded, sentences: Sequence[Sentence], batch_size: int
) -> Callable[[], object]:
    """Return a task that runs the pretrained transformer alone, on the batches of `words_task`.

    The batches are on the device already, except for an engine without padding, which packs and
    moves them. For an exported model the task runs the graph that is run once per sentence, which
    includes the layers above the transformer.
    """
    batches = _batches(loaded.ner, sentences, batch_size)
    engine = loaded.ner.engine
    if isinstance(engine, OnnxEngine):
        feeds = [encoder_inputs(batch) for batch in batches]
        # As many in parallel as in the engine itself.
        return lambda: list(engine.workers.map(engine.encoder.run, feeds))
    packed = getattr(engine, "transformer", None)
    if packed is not None:
        return lambda: _run_packed(engine, packed, batches)
    device = torch.device(loaded.subject.device)
    transformer = loaded.network.encoder.transformer
    # Nothing else of a batch, because it counts as memory of inference.
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
    """An engine that collects its batches and finds nothing."""

    def __init__(self, engine: Engine) -> None:
        self.labels = engine.labels
        self.beliefs: BeliefDenoiser | None = None
        self.subword_multiple, self.prefetch = engine.subword_multiple, engine.prefetch
        self.label_groups = engine.label_groups
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
    """Return the batches of `words_task`, in order."""
    recorder = _Recorder(ner.engine)
    noting = DiffusionNER(recorder, ner.subwords, ner.settings, ner.calibration)
    words, docs = [s.words for s in sentences], [s.doc for s in sentences]
    noting.predict_tokens(words, docs, batch_size=batch_size)
    return recorder.batches


def transformer_inputs(subwords: Tensor, attention: Tensor) -> dict[str, Tensor]:
    """Return the inputs of the transformer.

    On a GPU the mask has its final form. With a 2-D mask the host would wait in every batch to see
    whether it masks anything, and the encoder alone would seem slower than it is.
    """
    mask = attention.bool()[:, None, None] if attention.is_cuda else attention
    return {"input_ids": subwords, "attention_mask": mask}


def latency(subject: Subject, words: Sequence[str], calls: int) -> dict[str, Any]:
    """Measure loading, the first call and many further calls, each with one short text."""
    started = time.perf_counter()
    ner = subject.load()
    synchronise(subject.device)
    loading = time.perf_counter() - started
    text = " ".join(words)
    found: dict[str, Any] = {"subject": subject.name, "words": len(words), "load_s": loading}
    for spans in ("auto", 60) if ner.settings.denoises else ("none",):
        options = supported_options(ner, {"steps": 1, "spans": spans})

        def call(options: dict[str, Any] = options) -> object:
            return ner(text, **options)

        first = timed(call, subject.device)
        if "first_call_ms" not in found:
            found["first_call_ms"] = 1000 * first
        for _ in range(3):
            once = timed(call, subject.device)
        # If a call takes seconds, a few of them are enough.
        count = max(5, min(calls, int(10 / once)))
        taken = [1000 * timed(call, subject.device) for _ in range(count)]
        found[f"spans_{spans}"] = {
            "calls": count,
            "p50_ms": percentile(taken, 0.5),
            "p95_ms": percentile(taken, 0.95),
        }
    return found
