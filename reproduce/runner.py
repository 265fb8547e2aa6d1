"""Executes missing runs: training and scoring in parallel, then speed one model at a time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from reproduce import processes
from reproduce.estimates import SCORE, SHAPE_START, SPEED, START, Pace, time_left
from reproduce.plan import Job
from reproduce.processes import Stage, WorkerProcess
from reproduce.progress import Occupancy, RunProgress
from reproduce.records import Records
from reproduce.sources import Sources
from reproduce.store import RunStore
from reproduce.tables import Point

SCORED = ("score", "trajectory")
TIMED = ("speed",)
_POLL = 0.2  # seconds


@dataclass(frozen=True)
class WorkerStatus:
    """A running process as the view shows it."""

    worker: WorkerProcess
    progress: RunProgress
    done: int  # updates, or points
    total: int
    left: float | None  # seconds


@dataclass(frozen=True)
class Overview:
    active: list[WorkerStatus]
    done: int
    total: int
    failed: int
    left: float | None  # seconds, of all runs
    budget: float | None  # seconds


class View(Protocol):
    def show(self, overview: Overview) -> None: ...

    def say(self, text: str) -> None: ...


@dataclass
class Outcome:
    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)  # incomplete runs, with the reason
    interrupted: bool = False


class Runner:
    def __init__(
        self,
        jobs: Iterable[Job],
        store: RunStore,
        sources: Sources,
        view: View,
        parallel: int = 1,
        budget: float | None = None,
    ) -> None:
        """budget: time limit in seconds."""
        self.jobs = list(jobs)
        self.store, self.sources, self.view = store, sources, view
        self.parallel = parallel
        self.deadline = None if budget is None else time.monotonic() + budget
        self.occupancy = Occupancy(store.work)
        self.pace = Pace(Records.load(store.output).all)
        self.active: list[WorkerProcess] = []
        self.queue: list[Job] = []
        self.outcome = Outcome()
        self.shown = 0.0

    def run(self) -> Outcome:
        for job in self.jobs:
            self.store.record_points(job)  # left by a process that was killed
        try:
            trained = [job for job in self.jobs if job.shape is None and self._stages(job, SCORED)]
            self._phase(trained, self.parallel, SCORED)
            # Nothing else may run while speed is measured.
            self._phase([job for job in self.jobs if self._stages(job, TIMED)], 1, TIMED)
        except KeyboardInterrupt:
            self.outcome.interrupted = True
        finally:
            self._stop_all("interrupted" if self.outcome.interrupted else "no time left")
        self._count()
        return self.outcome

    def _stages(self, job: Job, kinds: tuple[str, ...]) -> list[tuple[Stage, list[Point]]]:
        """Return the missing stages of a job, in order."""
        stages: list[tuple[Stage, list[Point]]] = []
        trained = self.store.is_trained(job) or job.shape is not None
        if not trained and kinds == SCORED:
            stages.append(("training", []))
        points = self.store.missing(job, kinds)
        if points and (trained or kinds == SCORED):
            stages.append(("points" if kinds == SCORED else "speed", points))
        return stages

    def _phase(self, queue: list[Job], parallel: int, kinds: tuple[str, ...]) -> None:
        self.queue = [job for job in queue if job.name not in self.outcome.failed]
        while self.queue or self.active:
            while len(self.active) < parallel and (job := self._next(kinds)) is not None:
                self._begin(job, kinds)
            if not self.active:
                break
            time.sleep(_POLL)
            for worker in [worker for worker in self.active if worker.process.poll() is not None]:
                self._end(worker, kinds)
            self._refresh()
            if self._exceeds_budget(0.0):
                self._stop_all("no time left")
        for job in self.queue:
            self.outcome.left.setdefault(job.name, "no time left")
        self.queue = []

    def _next(self, kinds: tuple[str, ...]) -> Job | None:
        """Return the first job of the queue that fits into the remaining budget."""
        for job in self.queue:
            if self.deadline is None or not self._exceeds_budget(self._estimate(job, kinds) or 0.0):
                self.queue.remove(job)
                return job
        return None

    def _estimate(self, job: Job, kinds: tuple[str, ...]) -> float | None:
        """Return the seconds that the missing stages of a job will take."""
        stages = self._stages(job, kinds)
        total = 0.0
        for stage, points in stages:
            if stage == "training":
                known = self.pace.training(job, self.store.progress(job, self.occupancy))
                if known is None:
                    return None
                total += known
            else:
                start = START if job.shape is None else SHAPE_START
                total += start + (SPEED if stage == "speed" else SCORE) * len(points)
        return total

    def _exceeds_budget(self, seconds: float) -> bool:
        """Return whether this many more seconds exceed the budget."""
        return self.deadline is not None and time.monotonic() + seconds >= self.deadline

    def _begin(self, job: Job, kinds: tuple[str, ...]) -> None:
        stages = self._stages(job, kinds)
        if not stages:
            return
        stage, points = stages[0]
        ready = job.shape is not None or self.store.has_weights(job)
        if stage in ("points", "speed") and not ready:
            self.outcome.left[job.name] = (
                f"trained, but {len(points)} points are missing and its weights are not in "
                f"{self.store.folder(job)}; remove its record to train it again"
            )
            return
        lock = processes.lock_folder(self.store.folder(job))
        if lock is None:
            self.outcome.left[job.name] = "another process is working on it"
            return
        cores = os.cpu_count() or 1
        threads = max(1, cores // self.parallel) if self.parallel > 1 and kinds == SCORED else None
        places = (self.store, self.sources)
        self.active.append(processes.start(job, stage, points, places, threads, lock))
        self.occupancy.set(len(self.active))

    def _end(self, worker: WorkerProcess, kinds: tuple[str, ...]) -> None:
        """Record the results of a process that has ended, and start the next stage of its run."""
        job = worker.job
        self.active.remove(worker)
        self.occupancy.set(len(self.active))
        worker.lock.close()
        failed = worker.process.returncode != 0
        if worker.stage == "training" and not failed:
            done = self.store.progress(job, self.occupancy)
            self.pace.add(job, done)
            self.store.record_training(job, self.occupancy)
            best = f"{100 * (done.best_f1 or 0):.2f}"
            self.view.say(f"{job.name}: trained, dev F1 {best} in epoch {done.best_epoch}")
        elif worker.stage in ("points", "speed"):
            self.store.record_points(job)
            lacking = len(self.store.missing(job, kinds))
            measured = f"{worker.points - lacking} of {worker.points} points"
            self.view.say(f"{job.name}: {measured} measured ({worker.stage})")
            failed = failed or lacking > 0
        if failed:
            self.outcome.failed[job.name] = worker.error_message()
            self.view.say(f"{job.name}: failed in {worker.stage}: {worker.error_message()}")
        elif not self._exceeds_budget(0.0):
            self._begin(job, kinds)

    def _stop_all(self, why: str) -> None:
        for worker in self.active:
            worker.send_signal(signal.SIGTERM)
        for worker in self.active:
            worker.stop()
            self.store.record_points(worker.job)
            self.outcome.left[worker.job.name] = f"{why}; will be resumed"
        self.active = []
        self.occupancy.set(0)

    def _refresh(self) -> None:
        if time.monotonic() - self.shown < 1.0:
            return
        self.shown = time.monotonic()
        statuses = [self._status(worker) for worker in self.active]
        waiting = [self._estimate(job, SCORED) for job in self.queue]
        known = [seconds for seconds in waiting if seconds is not None]
        total = sum(one.left or 0.0 for one in statuses)
        total += sum(known) / max(1, len(known)) * len(waiting)
        complete = len(known) > 0 or not waiting
        self.view.show(
            Overview(
                active=statuses,
                done=len(self.jobs) - len(self.queue) - len(self.active) - self._failures(),
                total=len(self.jobs),
                failed=self._failures(),
                left=total / max(1, len(self.active)) if complete else None,
                budget=None if self.deadline is None else self.deadline - time.monotonic(),
            )
        )

    def _status(self, worker: WorkerProcess) -> WorkerStatus:
        progress = self.store.progress(worker.job, self.occupancy)
        if worker.stage == "training":
            left = time_left(worker.job, progress)
            return WorkerStatus(worker, progress, progress.step, worker.job.updates, left)
        done = self.store.count_points(worker.job)
        taken = time.monotonic() - worker.started
        left = taken / done * (worker.points - done) if done else None
        return WorkerStatus(worker, progress, done, max(1, worker.points), left)

    def _failures(self) -> int:
        return len(self.outcome.failed)

    def _count(self) -> None:
        """Count complete runs; the rest was not started, unless reported otherwise."""
        for job in self.jobs:
            if self._stages(job, SCORED) or self._stages(job, TIMED):
                if job.name not in self.outcome.failed:
                    why = "interrupted" if self.outcome.interrupted else "not started"
                    self.outcome.left.setdefault(job.name, why)
            else:
                self.outcome.done += 1
                self.outcome.left.pop(job.name, None)
