"""Time estimates from finished runs."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from reproduce.plan import Job
from reproduce.progress import RunProgress
from reproduce.records import Record

START = 20.0  # seconds to start a process and load a model
SHAPE_START = 60.0  # the same for a large shape, whose random weights are made first
SCORE, SPEED = 2.0, 10.0  # approximate seconds per point


class Pace:
    """Training seconds per sentence, from this session or else from the records.

    Records may come from another machine.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.before: list[tuple[str, str, float]] = []
        self.now: list[tuple[str, str, float]] = []
        for record in records:
            training = record.values["training"]
            if training and training["epochs"]:
                seconds = training["seconds"] + training["evaluation_seconds"]
                per = seconds / max(1, training["epochs"][-1]["sentences"])
                self.before.append((record.corpus, record.method, per))

    def add(self, job: Job, done: RunProgress) -> None:
        if done.epochs:
            per = (done.seconds + done.evaluation_seconds) / max(1, done.epochs[-1].sentences)
            self.now.append((job.corpus, job.method, per))

    def training(self, job: Job, done: RunProgress) -> float | None:
        """Return the remaining seconds; None if nothing is known yet."""
        per = self._per_sentence(job)
        if per is None:
            return None
        sentences = job.data["train"]["sentences"] * job.epochs
        return START + per * sentences * (1 - done.step / job.updates)

    def _per_sentence(self, job: Job) -> float | None:
        for known in (self.now, self.before):
            for like in (
                lambda corpus, method: (corpus, method) == (job.corpus, job.method),
                lambda corpus, method: method == job.method,
                lambda corpus, method: True,
            ):
                if found := [per for corpus, method, per in known if like(corpus, method)]:
                    return fmean(found)
        return None


def time_left(job: Job, done: RunProgress) -> float | None:
    """Return the remaining seconds of a running training, from its own speed."""
    if not done.step or not done.seconds:
        return None
    return (done.seconds + done.evaluation_seconds) / done.step * (job.updates - done.step)
