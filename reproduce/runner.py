"""Carries out what is missing: several runs side by side, then the clocks, one at a time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from reproduce import tasks
from reproduce.collect import Shelf
from reproduce.estimates import SCORE, SHAPE_START, SPEED, START, Pace, time_left
from reproduce.plan import Job
from reproduce.progress import Occupancy, Progress
from reproduce.records import Records
from reproduce.sources import Sources
from reproduce.tables import Point
from reproduce.tasks import Stage, Task

SCORED = ("score", "trajectory")
TIMED = ("speed",)
_POLL = 0.2  # seconds


@dataclass(frozen=True)
class Standing:
    """A task as the view shows it."""

    task: Task
    progress: Progress
    done: int  # updates, or points
    total: int
    left: float | None  # seconds


@dataclass(frozen=True)
class Overview:
    active: list[Standing]
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
    left: dict[str, str] = field(default_factory=dict)  # runs, and why they are not done
    interrupted: bool = False


class Runner:
    def __init__(
        self,
        jobs: Iterable[Job],
        shelf: Shelf,
        sources: Sources,
        view: View,
        parallel: int = 1,
        budget: float | None = None,
    ) -> None:
        """budget: seconds."""
        self.jobs = list(jobs)
        self.shelf, self.sources, self.view = shelf, sources, view
        self.parallel = parallel
        self.deadline = None if budget is None else time.monotonic() + budget
        self.occupancy = Occupancy(shelf.work)
        self.pace = Pace(Records.load(shelf.output).all)
        self.active: list[Task] = []
        self.queue: list[Job] = []
        self.outcome = Outcome()
        self.shown = 0.0

    def run(self) -> Outcome:
        for job in self.jobs:
            self.shelf.keep_points(job)  # what was measured by one that was killed
        try:
            beside = [job for job in self.jobs if job.shape is None]
            self._phase([job for job in beside if self._stages(job, SCORED)], self.parallel, SCORED)
            # Nothing else may run while speed is measured.
            self._phase([job for job in self.jobs if self._stages(job, TIMED)], 1, TIMED)
        except KeyboardInterrupt:
            self.outcome.interrupted = True
        finally:
            self._stop_all("interrupted" if self.outcome.interrupted else "no time left")
        self._count()
        return self.outcome

    def _stages(self, job: Job, kinds: tuple[str, ...]) -> list[tuple[Stage, list[Point]]]:
        """What is missing of a job, in order."""
        stages: list[tuple[Stage, list[Point]]] = []
        trained = self.shelf.is_trained(job) or job.shape is not None
        if not trained and kinds == SCORED:
            stages.append(("training", []))
        points = self.shelf.missing(job, kinds)
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
            for task in [task for task in self.active if task.process.poll() is not None]:
                self._end(task, kinds)
            self._refresh()
            if self._late(0.0):
                self._stop_all("no time left")
        for job in self.queue:
            self.outcome.left.setdefault(job.name, "no time left")
        self.queue = []

    def _next(self, kinds: tuple[str, ...]) -> Job | None:
        """The first of the queue that fits into what is left of the budget."""
        for job in self.queue:
            if self.deadline is None or not self._late(self._estimate(job, kinds) or 0.0):
                self.queue.remove(job)
                return job
        return None

    def _estimate(self, job: Job, kinds: tuple[str, ...]) -> float | None:
        """Seconds that what is missing of a job takes."""
        stages = self._stages(job, kinds)
        total = 0.0
        for stage, points in stages:
            if stage == "training":
                known = self.pace.training(job, self.shelf.progress(job, self.occupancy))
                if known is None:
                    return None
                total += known
            else:
                start = START if job.shape is None else SHAPE_START
                total += start + (SPEED if stage == "speed" else SCORE) * len(points)
        return total

    def _late(self, seconds: float) -> bool:
        """Whether so much more time would be too much."""
        return self.deadline is not None and time.monotonic() + seconds >= self.deadline

    def _begin(self, job: Job, kinds: tuple[str, ...]) -> None:
        stages = self._stages(job, kinds)
        if not stages:
            return
        stage, points = stages[0]
        ready = job.shape is not None or self.shelf.has_weights(job)
        if stage in ("points", "speed") and not ready:
            self.outcome.left[job.name] = (
                f"trained, but {len(points)} points are missing and its weights are not in "
                f"{self.shelf.folder(job)}; remove its record to train it again"
            )
            return
        lock = tasks.lock_folder(self.shelf.folder(job))
        if lock is None:
            self.outcome.left[job.name] = "another process is at work on it"
            return
        cores = os.cpu_count() or 1
        threads = max(1, cores // self.parallel) if self.parallel > 1 and kinds == SCORED else None
        places = (self.shelf, self.sources)
        self.active.append(tasks.start(job, stage, points, places, threads, lock))
        self.occupancy.set(len(self.active))

    def _end(self, task: Task, kinds: tuple[str, ...]) -> None:
        """A process has ended: keep what it made, and go on with what comes next of its run."""
        job = task.job
        self.active.remove(task)
        self.occupancy.set(len(self.active))
        task.lock.close()
        failed = task.process.returncode != 0
        if task.stage == "training" and not failed:
            done = self.shelf.progress(job, self.occupancy)
            self.pace.add(job, done)
            self.shelf.keep_training(job, self.occupancy)
            best = f"{100 * (done.best_f1 or 0):.2f}"
            self.view.say(f"{job.name}: trained, dev F1 {best} in epoch {done.best_epoch}")
        elif task.stage in ("points", "speed"):
            self.shelf.keep_points(job)
            lacking = len(self.shelf.missing(job, kinds))
            measured = f"{task.points - lacking} of {task.points} points"
            self.view.say(f"{job.name}: {measured} measured ({task.stage})")
            failed = failed or lacking > 0
        if failed:
            self.outcome.failed[job.name] = task.complaint()
            self.view.say(f"{job.name}: failed in {task.stage}: {task.complaint()}")
        elif not self._late(0.0):
            self._begin(job, kinds)

    def _stop_all(self, why: str) -> None:
        for task in self.active:
            task.tell(signal.SIGTERM)
        for task in self.active:
            task.stop()
            self.shelf.keep_points(task.job)
            self.outcome.left[task.job.name] = f"{why}; it goes on from where it was stopped"
        self.active = []
        self.occupancy.set(0)

    def _refresh(self) -> None:
        if time.monotonic() - self.shown < 1.0:
            return
        self.shown = time.monotonic()
        standings = [self._standing(task) for task in self.active]
        waiting = [self._estimate(job, SCORED) for job in self.queue]
        known = [seconds for seconds in waiting if seconds is not None]
        total = sum(one.left or 0.0 for one in standings)
        total += sum(known) / max(1, len(known)) * len(waiting)
        complete = len(known) > 0 or not waiting
        self.view.show(
            Overview(
                active=standings,
                done=len(self.jobs) - len(self.queue) - len(self.active) - self._failures(),
                total=len(self.jobs),
                failed=self._failures(),
                left=total / max(1, len(self.active)) if complete else None,
                budget=None if self.deadline is None else self.deadline - time.monotonic(),
            )
        )

    def _standing(self, task: Task) -> Standing:
        progress = self.shelf.progress(task.job, self.occupancy)
        if task.stage == "training":
            left = time_left(task.job, progress)
            return Standing(task, progress, progress.step, task.job.updates, left)
        done = self.shelf.count_points(task.job)
        taken = time.monotonic() - task.started
        left = taken / done * (task.points - done) if done else None
        return Standing(task, progress, done, max(1, task.points), left)

    def _failures(self) -> int:
        return len(self.outcome.failed)

    def _count(self) -> None:
        """Whatever is neither done nor told otherwise was not begun."""
        for job in self.jobs:
            if self._stages(job, SCORED) or self._stages(job, TIMED):
                if job.name not in self.outcome.failed:
                    why = "interrupted" if self.outcome.interrupted else "not begun"
                    self.outcome.left.setdefault(job.name, why)
            else:
                self.outcome.done += 1
                self.outcome.left.pop(job.name, None)
