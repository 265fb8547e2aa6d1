"""Admit requests and compute them in batches that different clients share.

A request travels like this: `read` splits its texts into sentences and estimates their work;
`submit` refuses it or queues it as a `Job` in one of two lanes; each lane takes batches of parts
from its jobs in turn and sends them to a model process (`worker.py`), in which a batch of the short
lane interrupts one of the long lane; the results complete the documents of the job, for which
`endpoints.py` waits.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import TypeAlias

from diffusionner.errors import DiffusionNERError
from diffusionner.refinement import GivenSpans
from diffusionner.service.api_errors import ApiError, failed, not_loaded, too_much_work
from diffusionner.service.job import Document, Job, Part
from diffusionner.service.limits import (
    BATCH_SECONDS,
    BATCH_WINDOW,
    BATCH_WORK,
    FREE_SHORT_WORK,
    FREE_WORK,
    INITIAL_RATE,
    SENTENCE_WORK,
    SHORT_WORK,
    SPLIT_CHARACTERS,
    STOP_SECONDS,
    Limits,
)
from diffusionner.service.metrics import Metrics
from diffusionner.service.model_process import ModelProcess
from diffusionner.service.work import WorkEstimate
from diffusionner.service.worker import ModelInfo
from diffusionner.text import TextSentence, split_sentences

log = logging.getLogger("diffusionner.service")
Place: TypeAlias = Callable[[Sequence[TextSentence]], GivenSpans]


class Lane:
    """Queued jobs, either short or long ones."""

    def __init__(self, short: bool) -> None:
        self.short = short
        self.jobs: deque[Job] = deque()
        self.running = 0.0  # work being computed
        self.shared = False  # the last batch came from several jobs
        self.changed = asyncio.Condition()

    @property
    def work(self) -> float:
        return sum(job.work for job in self.jobs)

    def work_ahead(self, new: Job) -> float:
        """Return the work done before a new job."""
        if self.short:
            ahead = [job for job in self.jobs if _place(job) < _place(new)]
            work = sum(job.work for job in ahead)
        else:  # they take turns
            ahead = list(self.jobs)
            work = sum(min(job.work, new.work) for job in ahead)
        batches = {job.operation: job.batch_work for job in ahead}  # at least one of each
        return self.running + work + sum(batches.values())

    def next_batch(self, work: float) -> list[Part]:
        """Remove and return at least one part; all have the operation of the first job.

        Jobs take turns, part by part. Those with other operations are first in the next batch. In
        the short lane, the shortest jobs are first.
        """
        if self.short:
            self.jobs = deque(sorted(self.jobs, key=_place))
        operation = self.jobs[0].operation
        turns = deque(job for job in self.jobs if job.operation == operation)
        others = [job for job in self.jobs if job.operation != operation]
        batch: list[Part] = []
        while turns and (not batch or turns[0].parts[0].work <= work):
            job = turns.popleft()
            part = job.pop()
            batch.append(part)
            work -= part.work
            if job.parts:
                turns.append(job)
        self.jobs = deque([*others, *turns])
        return batch


def _place(job: Job) -> float:
    """Return a job's rank in the short lane; no job overtakes one received a second earlier."""
    return job.work + SHORT_WORK * job.received


class Batcher:
    """Admits requests and computes them in batches, two at a time per model process."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits = limits
        self.metrics = metrics
        self.short, self.long = self.lanes = Lane(short=True), Lane(short=False)
        metrics.queue_requests.set_function(lambda: sum(len(lane.jobs) for lane in self.lanes))
        metrics.queue_work.set_function(lambda: sum(lane.work for lane in self.lanes))
        metrics.rate.set_function(lambda: self.rate)
        self.recent = (INITIAL_RATE, 1.0)  # work and seconds of recent batches, decaying
        self.best_rate = INITIAL_RATE  # of an idle machine
        self.backends = 1
        self.context = 0  # sentences that a model reads around each one
        self.interruptible = False
        self.stopped = False
        self.splitter = ThreadPoolExecutor(1)
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def rate(self) -> float:
        """Work per second of one model process."""
        return self.recent[0] / self.recent[1]

    def start(self, backends: Sequence[ModelProcess], model: ModelInfo) -> None:
        self.backends = len(backends)
        self.context = model.settings.encoder.context
        self.interruptible = model.interruptible
        self.tasks = [
            asyncio.create_task(self._serve(backend, lane))
            for backend in backends
            for lane in self.lanes
        ]

    async def stop(self) -> None:
        """Finish all queued requests, then stop; cancel batches that take too long."""
        self.stopped = True
        for lane in self.lanes:
            async with lane.changed:
                lane.changed.notify_all()
        if self.tasks:
            _, late = await asyncio.wait(self.tasks, timeout=STOP_SECONDS)
            for task in late:
                task.cancel()
        self.splitter.shutdown(wait=False)

    # --- Admission ------------------------------------------------------------------------------

    async def read(self, text: str, estimate: WorkEstimate, place: Place | None = None) -> Document:
        """Split a text into sentences and estimate the work of each; place its given spans."""
        if len(text) <= SPLIT_CHARACTERS:
            return _read(text, estimate, place)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.splitter, _read, text, estimate, place)

    async def read_all(
        self, texts: Sequence[str], estimate: WorkEstimate, places: Iterable[Place] = ()
    ) -> list[Document]:
        """Read texts; raise ApiError as soon as they are too much work.

        places: for each text, what places its given spans.
        """
        limit = self.limits.work * self.best_rate * self.backends
        documents: list[Document] = []
        total = 0.0
        for text, place in zip_longest(texts, places):
            await asyncio.sleep(0)  # other requests run between short texts, too
            document = await self.read(text, estimate, place)
            documents.append(document)
            total += sum(document.work)
            if total > limit:
                seconds = self.limits.work * total / limit
                raise too_much_work(
                    f"{len(documents)} of {len(texts)} texts would take {seconds:.3g} seconds of "
                    f"computing, and the limit is {self.limits.work:g}; divide the request into "
                    "several ones, or ask for fewer steps, spans or labels"
                )
            if estimate.largest_window > SENTENCE_WORK:
                times = estimate.largest_window / SENTENCE_WORK
                raise too_much_work(
                    f"a sentence with so many steps × spans is {times:.3g} times the work that is "
                    "allowed; ask for fewer steps, spans or labels"
                )
        return documents

    async def submit(self, job: Job) -> None:
        """Queue a job; raise ApiError if too much work is queued already."""
        if self.stopped:
            message = "the service is stopping; retry later"
            raise ApiError(503, "stopping", message, {"retry-after": "1"})
        lane = self.short if job.work <= SHORT_WORK else self.long
        ahead = lane.work_ahead(job)
        seconds = ahead / (self.rate * self.backends)
        free = FREE_SHORT_WORK if lane.short else FREE_WORK
        too_long = seconds > self.limits.wait and ahead > free
        if too_long or sum(len(lane.jobs) for lane in self.lanes) >= self.limits.queue:
            retry = max(1, math.ceil(seconds))
            message = f"the queue is full; retry in {retry} s"
            raise ApiError(429, "busy", message, {"retry-after": str(retry)})
        if job.parts:
            await self._queue(lane, job)

    async def _queue(self, lane: Lane, job: Job) -> None:
        lane.jobs.append(job)
        async with lane.changed:
            lane.changed.notify()

    def drop(self, job: Job, reason: str) -> None:
        """Remove a job whose client no longer waits; a running batch is still computed."""
        texts = job.drop()
        for lane in self.lanes:
            if job in lane.jobs:
                lane.jobs.remove(job)
        if texts:
            self.metrics.dropped.labels(reason).inc(texts)

    # --- Computation ----------------------------------------------------------------------------

    async def _serve(self, backend: ModelProcess, lane: Lane) -> None:
        while True:
            async with lane.changed:
                await lane.changed.wait_for(lambda: lane.jobs or self.stopped)
            if not lane.jobs:
                return
            # A single client would gain nothing from waiting for others.
            if lane.shared and not self.stopped and lane.work < BATCH_WORK:
                await asyncio.sleep(BATCH_WINDOW)
            if lane.jobs:
                await self._run(backend, lane, lane.next_batch(self._batch_work(lane)))

    def _batch_work(self, lane: Lane) -> float:
        """Return the work of a batch; without interruptions, long requests need short batches."""
        if lane.short or self.interruptible:
            return BATCH_WORK
        return min(BATCH_WORK, BATCH_SECONDS * self.rate)

    async def _run(self, backend: ModelProcess, lane: Lane, batch: list[Part]) -> None:
        jobs = {part.job for part in batch}
        lane.shared = len(jobs) > 1
        self.metrics.batch_texts.observe(len({part.document for part in batch}))
        self.metrics.batch_requests.observe(len(jobs))
        now = time.monotonic()
        for part in batch:
            self.metrics.queued.observe(now - part.job.received)
        work = batch[0].job.batch_work + sum(part.work for part in batch)
        lane.running += work
        try:
            await self._compute(backend, lane, batch)
        finally:
            lane.running -= work
        for job in jobs:  # the next share of a long sentence
            if job.parts and job not in lane.jobs:
                await self._queue(lane, job)

    async def _compute(self, backend: ModelProcess, lane: Lane, batch: list[Part]) -> None:
        """Store the results of a batch; if it fails, retry each part alone."""
        job = batch[0].job
        try:
            slices = [part.slice(self.context) for part in batch]
            answer = await backend.run(lane.short, job.operation, slices)
            problem = answer.error
        except DiffusionNERError:
            for part in batch:
                part.job.fail(part, not_loaded())
            return
        except Exception as error:
            problem = type(error).__name__
        if problem is None:
            self._measure(job.batch_work + sum(part.work for part in batch), answer.seconds)
            for part, results in zip(batch, answer.value, strict=True):
                if part.job.finish(part, results):
                    self.metrics.texts.inc()
                    self.metrics.characters.inc(len(part.document.text))
            return
        log.error("a batch of %d parts failed: %s", len(batch), problem)
        if len(batch) == 1:
            job.fail(batch[0], failed())
            return
        for part in batch:
            await self._compute(backend, lane, [part])

    def _measure(self, work: float, seconds: float) -> None:
        before, seconds_before = self.recent
        keep = 0.98 ** min(50.0, 10 * seconds)  # about five seconds of computing count
        self.recent = (keep * before + work, keep * seconds_before + seconds)
        # Falls by half in ten minutes of computing if the machine has become slower.
        slower = self.best_rate - self.rate
        self.best_rate = self.rate + max(0.0, slower) * 0.5 ** (seconds / 600)
        self.metrics.batch_seconds.observe(seconds)


def _read(text: str, estimate: WorkEstimate, place: Place | None) -> Document:
    sentences = split_sentences(text)
    given = None if place is None else place(sentences)
    counts = None if given is None else [len(placed) for placed in given.placed]
    return Document(text, sentences, list(estimate.of_sentences(sentences, counts)), given)
