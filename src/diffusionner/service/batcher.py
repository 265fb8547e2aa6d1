"""Texts of different clients into batches, one at a time for each process that has the model."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from typing import Protocol

from diffusionner.service.limits import (
    BATCH_CHARACTERS,
    BATCH_WINDOW,
    FIRST_RATE,
    FREE_CHARACTERS,
    LAST_SECONDS,
    Limits,
)
from diffusionner.service.metrics import Metrics
from diffusionner.service.problems import Problem, busy, failed, stopping
from diffusionner.service.waiting import Line, Part, Task, Waiting

log = logging.getLogger("diffusionner.service")


class Backend(Protocol):
    """Something that has the model."""

    async def answer(self, task: Task, texts: Sequence[str]) -> list[bytes]:
        """JSON for each text."""


class Batcher:
    """A request comes in by `submit`; its answers are futures."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits = limits
        self.metrics = metrics
        self.line = Line()
        self.running = 0  # characters that are being computed
        self.rate = FIRST_RATE  # characters a second of one backend, lately
        self.backends = 1
        self.alone = True  # the last batch was of one request
        self.stopped = False
        self.changed = asyncio.Condition()
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, backends: Sequence[Backend]) -> None:
        self.backends = len(backends)
        self.tasks = [asyncio.create_task(self._serve(backend)) for backend in backends]

    async def stop(self) -> None:
        """Answer all that waits, then end; not for the sake of what nobody waits for any more."""
        self.stopped = True
        async with self.changed:
            self.changed.notify_all()
        if self.tasks:
            _, late = await asyncio.wait(self.tasks, timeout=LAST_SECONDS)
            for task in late:
                task.cancel()

    async def submit(self, task: Task, texts: Sequence[str]) -> Waiting:
        if self.stopped:
            raise stopping()
        ahead = self.line.ahead(len(texts)) + self.running
        seconds = ahead / (self.rate * self.backends)
        too_long = seconds > self.limits.wait and ahead > FREE_CHARACTERS
        if too_long or len(self.line.requests) >= self.limits.queue:
            raise busy(max(1, math.ceil(seconds)))
        request = Waiting(task, texts)
        if texts:
            self.line.add(request)
            self._observe()
            async with self.changed:
                self.changed.notify()
        return request

    def drop(self, request: Waiting, reason: str) -> None:
        """Nobody waits for it any more; what is not being computed already will not be."""
        left = self.line.remove(request)
        for answer in request.answers:
            if answer.done() and not answer.cancelled():
                answer.exception()  # else asyncio complains that nobody asked
            answer.cancel()
        if left:
            self.metrics.dropped.labels(reason).inc(left)
            self._observe()

    def _observe(self) -> None:
        self.metrics.queue_requests.set(len(self.line.requests))
        self.metrics.queue_characters.set(self.line.characters)

    async def _serve(self, backend: Backend) -> None:
        while True:
            async with self.changed:
                await self.changed.wait_for(lambda: self.line.requests or self.stopped)
            if not self.line.requests:
                return
            # A lone client would only lose by waiting for others.
            if not self.alone and self.line.characters < BATCH_CHARACTERS and not self.stopped:
                await asyncio.sleep(BATCH_WINDOW)
            if self.line.requests:
                await self._run(backend, self.line.take(BATCH_CHARACTERS))

    async def _run(self, backend: Backend, batch: list[Part]) -> None:
        self._observe()
        requests = {id(part.request) for part in batch}
        self.alone = len(requests) == 1
        self.metrics.batch_texts.observe(len(batch))
        self.metrics.batch_requests.observe(len(requests))
        started = time.monotonic()
        for part in batch:
            self.metrics.queued.observe(started - part.request.since)
        characters = sum(len(part.text) for part in batch)
        self.running += characters
        try:
            await self._answer(backend, batch)
        finally:
            self.running -= characters
        seconds = time.monotonic() - started
        if characters > BATCH_CHARACTERS // 2:  # small ones take more time for each character
            self.rate += 0.1 * (characters / max(seconds, 1e-4) - self.rate)
        self.metrics.batch_seconds.observe(seconds)
        self.metrics.texts.inc(len(batch))
        self.metrics.characters.inc(characters)

    async def _answer(self, backend: Backend, batch: list[Part]) -> None:
        """Of a batch that fails each text is tried alone: the others are not to suffer for it."""
        try:
            answers = await backend.answer(batch[0].request.task, [part.text for part in batch])
        except Exception as error:
            log.error("a batch of %d texts failed: %s", len(batch), type(error).__name__)
            if len(batch) > 1:
                for part in batch:
                    await self._answer(backend, [part])
                return
            _settle(batch[0], failed())
            return
        for part, answer in zip(batch, answers, strict=True):
            _settle(part, answer)


def _settle(part: Part, result: bytes | Problem) -> None:
    if part.answer.done():  # dropped meanwhile
        return
    if isinstance(result, Problem):
        part.answer.set_exception(result)
    else:
        part.answer.set_result(result)
