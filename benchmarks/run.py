"""A whole speed measurement as one record."""

from __future__ import annotations

import datetime
import gc
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import (
    agreement,
    machine,
    sample,
    scaling,
    shapes,
    stages,
    throughput,
    training,
)
from benchmarks.subjects import Subject, check_precisions
from benchmarks.throughput import Axes, Loaded
from diffusionner.batching import EncodedCorpus
from diffusionner.cli.options import ProgressCallback
from diffusionner.corpus import Sentence
from diffusionner.data.fingerprint import fingerprint
from diffusionner.errors import SettingsError
from diffusionner.model.encoder import position_limit
from diffusionner.settings import Settings
from diffusionner.storage.config import read_config
from diffusionner.storage.encoders import load_encoder, load_tokenizer

CALLS = 100  # of a single sentence
SHORT = 20  # words of that sentence
SCALING = 10  # duration of the largest size, in durations of a measurement
Save = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Request:
    """Options of a speed measurement."""

    data: Path
    models: tuple[Path, ...]
    shape: str | None
    settings: Settings  # of a shape and of training
    format: str | None
    device: str
    precisions: tuple[str, ...]
    cuda_graphs: bool
    axes: Axes
    repeats: int
    seconds: float
    train: bool  # also measure training
    checked: int  # sentences to compare the fast path with the plain network on
    scaling: bool


def run(request: Request, progress: ProgressCallback, save: Save) -> dict[str, Any]:
    """Measure everything; return the record for the JSON file.

    It is saved after every section, so that an interrupted run leaves its results.
    """
    check_precisions(list(request.precisions))
    busy = machine.load()  # before the measurements add to it
    progress("reading", 0, 1)
    sentences, read = stages.read_seconds(str(request.data), request.format)
    record: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": request.device,
        "data": {
            "file": str(request.data),
            "fingerprint": fingerprint(sentences).to_dict(),
            "words_per_sentence": sum(len(s.words) for s in sentences) / len(sentences),
        },
        "repeats": request.repeats,
        "cuda_graphs": request.cuda_graphs,
    }
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        subjects = _subjects(request, sentences, scratch, progress)
        record["latency"] = _latency(subjects, sentences, progress)
        record["machine"] = {**machine.describe(request.device), "load": busy}
        record |= _inference(request, subjects, sentences, read, progress)
        save(record)
        _free()
        record["agreement"] = _agreement(request, subjects, sentences, progress)
        save(record)
        _free()
        record["training"] = []
        if request.train and (encoder := _encoder_folder(subjects, scratch)):
            job = training.Job(request.settings, encoder, sentences, scratch / "training")
            record["training"] = [training.measure(job, request.repeats, request.seconds, progress)]
            _free()
        save(record)
    return record


def _inference(
    request: Request,
    subjects: Sequence[Subject],
    sentences: list[Sentence],
    read: float,
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Measure throughput, stages and scaling of all models, which stay loaded."""
    models, axes = _load(subjects, request.precisions), request.axes
    record: dict[str, Any] = {"subjects": [_describe(loaded, sentences) for loaded in models]}
    progress("sample", 0, 1)
    count = throughput.sample_size(models[0], sentences, axes, request.seconds)
    chosen = sample.draw(sentences, count)
    record["measured_sentences"] = len(chosen)
    points = [
        point
        for loaded in models
        for point in axes.points(
            loaded.subject.name,
            loaded.precision,
            whole=loaded.precision == loaded.subject.own_precision,
            denoises=loaded.ner.settings.denoises,
            from_text=not loaded.paced,
        )
    ]
    memory = machine.PeakMemory(request.device)
    measured = throughput.measure(points, models, chosen, request.repeats, request.device, progress)
    record["throughput"] = [one.to_dict() for one in measured]
    record["memory"] = memory.read()
    record["stages"] = [
        stages.measure(
            loaded, chosen, read, axes.base_spans, axes.base_batch_size, request.repeats, progress
        )
        for loaded in models
        if not loaded.subject.exported and loaded.ner.settings.denoises
    ]
    few = sample.spread(sentences, round(count * SCALING / scaling.TIMES[-1]))
    own = [loaded for loaded in models if loaded.precision == loaded.subject.own_precision]
    record["scaling"] = [
        scaling.measure(loaded, few, axes.steps, axes.base_spans, axes.base_batch_size, progress)
        for loaded in (own if request.scaling else ())
    ]
    return record


def _agreement(
    request: Request,
    subjects: Sequence[Subject],
    sentences: list[Sentence],
    progress: ProgressCallback,
) -> list[dict[str, Any]]:
    """Compare every precision, and always float32, with the plain network.

    An exported model is compared with the first torch model.
    """
    originals = [subject for subject in subjects if not subject.exported]
    count = min(request.checked, len(sentences))
    some = sample.draw(sentences, count)[:count]
    steps = tuple(dict.fromkeys((1, max(request.axes.steps, default=1))))
    progress("agreement", 0, len(subjects))
    expected = {original: agreement.expect(original, some, steps) for original in originals}
    found = []
    for number, subject in enumerate(subjects):
        progress("agreement", number, len(subjects))
        original = originals[0] if subject.exported and originals else subject
        if original.exported:
            continue  # nothing to compare it with
        own = subject.own_precision
        others = () if subject.exported else (*request.precisions, "float32")
        for precision in dict.fromkeys((own, *others)):
            fast = subject.load(precision)
            found += [
                agreement.check(subject, precision, fast, one, request.axes.base_batch_size)
                for one in expected[original]
            ]
    return [one.to_dict() for one in found]


def _subjects(
    request: Request, sentences: Sequence[Sentence], scratch: Path, progress: ProgressCallback
) -> list[Subject]:
    if request.shape is None:
        if not request.models:
            raise SettingsError(
                "nothing to measure: give --model FOLDER, or --shape for a network with random "
                f"weights, one of: {', '.join(shapes.SHAPES)}"
            )
        for path in request.models:
            read_config(path)  # fail now, not after the others are measured
        names = [_name(path, request.models) for path in request.models]
        pairs = zip(names, request.models, strict=True)
        graphs = request.cuda_graphs
        return [Subject(name, path, request.device, False, graphs) for name, path in pairs]
    progress("random weights", 0, 1)
    folder = shapes.write(request.shape, sentences, request.settings, scratch)
    return [Subject(request.shape, folder, request.device, True, request.cuda_graphs)]


def _name(path: Path, others: Sequence[Path]) -> str:
    same = [other for other in others if other.name == path.name]
    return path.name if len(same) == 1 else str(path)


def _load(subjects: Sequence[Subject], precisions: Sequence[str]) -> list[Loaded]:
    """Load every model in the requested precisions, its own first; exported ones have one."""
    loaded = []
    for subject in subjects:
        own = subject.own_precision
        others = () if subject.exported else precisions
        for precision in dict.fromkeys((own, *others)):
            loaded.append(Loaded(subject, precision, subject.load(precision)))
    return loaded


def _describe(loaded: Loaded, sentences: Sequence[Sentence]) -> dict[str, Any]:
    ner = loaded.ner
    some = sample.draw(sentences, 1000)
    corpus = EncodedCorpus(some, ner.subwords, ner.settings.encoder)
    about = {
        "name": loaded.subject.name,
        "precision": loaded.precision,
        "random_weights": loaded.subject.random,
        "subwords_per_word": len(corpus.subwords) / sum(len(s.words) for s in some),
        "settings": ner.settings.to_dict(),
    }
    if not loaded.subject.exported:
        network = ner.network
        about["parameters"] = {
            "encoder": sum(p.numel() for p in network.encoder.transformer.parameters()),
            "all": sum(p.numel() for p in network.parameters()),
        }
    return about


def _latency(
    subjects: Sequence[Subject], sentences: Sequence[Sentence], progress: ProgressCallback
) -> list[dict[str, Any]]:
    nearest = min(sentences, key=lambda s: abs(len(s.words) - SHORT))
    found = []
    for number, subject in enumerate(subjects):
        progress("latency", number, len(subjects))
        found.append(throughput.latency(subject, nearest.words, CALLS))
        _free()
    return found


def _encoder_folder(subjects: Sequence[Subject], scratch: Path) -> Path | None:
    """Return an encoder to train from: that of the first torch model."""
    folder = scratch / "encoder"
    if not folder.exists():
        trained = [subject for subject in subjects if not subject.exported]
        if not trained:
            return None
        transformer = load_encoder(str(trained[0].folder))
        tokenizer = load_tokenizer(trained[0].folder, position_limit(transformer))
        shapes.write_pretrained(transformer, tokenizer.hf, folder)
    return folder


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
