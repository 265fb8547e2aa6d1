"""What runs where the model is: texts in, JSON out. Imports the library; the front does not."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import parent_process
from typing import TYPE_CHECKING, Any

from diffusionner.corpus import Entity
from diffusionner.errors import DiffusionNERError
from diffusionner.service.waiting import Task
from diffusionner.settings import Settings

if TYPE_CHECKING:
    from diffusionner.inference.pipeline import DiffusionNER
    from diffusionner.inference.trajectory import Step, Trajectory
    from diffusionner.text import TextSentence


@dataclass(frozen=True)
class About:
    """What the front must know of the model."""

    labels: list[str]
    backend: str
    settings: Settings


class Answerer:
    """Answers are the library's own."""

    def __init__(self, ner: DiffusionNER) -> None:
        self.ner = ner

    def about(self) -> About:
        backend = "torch" if hasattr(self.ner.engine, "network") else "onnx"
        return About(list(self.ner.labels), backend, self.ner.settings)

    def answer(self, task: Task, texts: Sequence[str]) -> list[bytes]:
        options = dict(task.options)
        if task.kind == "steps":
            return [self._steps(text, options, task.labels) for text in texts]
        found = self.ner.pipe(texts, **options)
        return [
            _json({"text": text, "entities": _chosen(entities, task.labels)})
            for text, entities in zip(texts, found, strict=True)
        ]

    def _steps(self, text: str, options: dict[str, Any], labels: Sequence[str] | None) -> bytes:
        options = self.ner.from_noise(options)
        parts, trajectories = self.ner.steps(text, **options)
        entities = self.ner(text, **options)
        sentences = [
            _sentence(parts[trajectory.sentence], trajectory, self.ner.labels)
            for trajectory in trajectories
        ]
        return _json({"text": text, "sentences": sentences, "entities": _chosen(entities, labels)})


def _chosen(entities: Sequence[Entity], labels: Sequence[str] | None) -> list[dict[str, Any]]:
    """As `diffusionner predict` writes them."""
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


def _step(part: TextSentence, step: Step, labels: Sequence[str]) -> dict[str, Any]:
    spans = [
        {
            "start": part.starts[span.noisy[0]],
            "end": part.ends[span.noisy[1]],
            "to_start": part.starts[span.restored[0]],
            "to_end": part.ends[span.restored[1]],
            "label": None if span.kind is None else labels[span.kind],
            "score": span.score,
        }
        for span in step.spans
    ]
    return {"timestep": step.timestep, "spans": spans}


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


# --- In a process of its own ------------------------------------------------------------------

_here: Answerer | None = None
_failure: DiffusionNERError | None = None


def load(model: str, device: str | None, processors: set[int] | None) -> None:
    """Run once when the process starts."""
    global _here, _failure
    # Who stops the service may signal all its processes; the front says when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if processors is not None:
        os.sched_setaffinity(0, processors)
    from diffusionner.inference.pipeline import DiffusionNER

    try:
        _here = Answerer(DiffusionNER.from_pretrained(model, device))
    except DiffusionNERError as error:
        _failure = error
        return
    gc.freeze()  # what is loaded stays: the collector of cycles need not go through it again
    _here.answer(Task("entities", (), None), ["Warm."])  # what is made on first use


def about() -> About:
    if _failure is not None:
        raise _failure
    assert _here is not None
    return _here.about()


def answer(task: Task, texts: list[str]) -> list[bytes]:
    assert _here is not None
    return _here.answer(task, texts)


def _end_with_parent() -> None:
    """A front that was killed cannot say so."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
