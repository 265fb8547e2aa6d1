"""Code that runs in a model process: texts in, JSON out. Only this process loads the library."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import parent_process
from typing import TYPE_CHECKING, Any, NamedTuple

from diffusionner.corpus import Entity
from diffusionner.errors import DiffusionNERError
from diffusionner.settings import Settings

if TYPE_CHECKING:
    from diffusionner.inference.pipeline import DiffusionNER
    from diffusionner.inference.trajectory import Trajectory, TrajectoryStep
    from diffusionner.text import TextSentence


class Operation(NamedTuple):
    """Computation requested for a text; texts with equal operations can share a batch."""

    kind: str  # "entities" or "steps"
    options: tuple[tuple[str, object], ...]
    labels: tuple[str, ...] | None


@dataclass(frozen=True)
class ModelInfo:
    """Description of the loaded model."""

    labels: list[str]
    backend: str
    settings: Settings


class JsonPredictor:
    """Runs operations and returns their results as JSON."""

    def __init__(self, ner: DiffusionNER) -> None:
        self.ner = ner

    def info(self) -> ModelInfo:
        backend = "torch" if hasattr(self.ner.engine, "network") else "onnx"
        return ModelInfo(list(self.ner.labels), backend, self.ner.settings)

    def run(self, operation: Operation, texts: Sequence[str]) -> list[bytes]:
        options = dict(operation.options)
        if operation.kind == "steps":
            return [self._steps(text, options, operation.labels) for text in texts]
        results = self.ner.pipe(texts, **options)
        return [
            _json({"text": text, "entities": _select(entities, operation.labels)})
            for text, entities in zip(texts, results, strict=True)
        ]

    def _steps(self, text: str, options: dict[str, Any], labels: Sequence[str] | None) -> bytes:
        options = {**options, "start": "noise"}
        parts, trajectories = self.ner.steps(text, **options)
        entities = self.ner(text, **options)
        sentences = [
            _sentence(parts[trajectory.sentence], trajectory, self.ner.labels)
            for trajectory in trajectories
        ]
        return _json({"text": text, "sentences": sentences, "entities": _select(entities, labels)})


def _select(entities: Sequence[Entity], labels: Sequence[str] | None) -> list[dict[str, Any]]:
    return [e.to_dict() for e in entities if labels is None or e.label in labels]


def _sentence(part: TextSentence, trajectory: Trajectory, labels: Sequence[str]) -> dict[str, Any]:
    first, last = trajectory.first, trajectory.first + trajectory.words - 1
    words = zip(part.starts[first : last + 1], part.ends[first : last + 1], strict=True)
    return {
        "start": part.starts[first],
        "end": part.ends[last],
        "words": list(words),
        "steps": [_step(part, step, labels) for step in trajectory.steps],
    }


def _step(part: TextSentence, step: TrajectoryStep, labels: Sequence[str]) -> dict[str, Any]:
    spans = [
        {
            "start": part.starts[span.noisy[0]],
            "end": part.ends[span.noisy[1]],
            "to_start": part.starts[span.denoised[0]],
            "to_end": part.ends[span.denoised[1]],
            "label": None if span.type_id is None else labels[span.type_id],
            "score": span.score,
        }
        for span in step.spans
    ]
    return {"timestep": step.timestep, "spans": spans}


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


# --- Functions called in the model process ------------------------------------------------------

_predictor: JsonPredictor | None = None
_failure: DiffusionNERError | None = None


def load(model: str, device: str | None, cores: set[int] | None) -> None:
    """Load the model when the process starts."""
    global _predictor, _failure
    # Signals may reach all processes of the service; the main process ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    if cores is not None:
        os.sched_setaffinity(0, cores)
    from diffusionner.inference.pipeline import DiffusionNER

    try:
        _predictor = JsonPredictor(DiffusionNER.from_pretrained(model, device))
    except DiffusionNERError as error:
        _failure = error
        return
    gc.freeze()  # keeps the garbage collector from scanning the model again and again
    _predictor.run(Operation("entities", (), None), ["Warm."])


def info() -> ModelInfo:
    if _failure is not None:
        raise _failure
    assert _predictor is not None
    return _predictor.info()


def run(operation: Operation, texts: list[str]) -> list[bytes]:
    assert _predictor is not None
    return _predictor.run(operation, texts)


def _exit_with_parent() -> None:
    """Exit when the main process ends, even if it was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
