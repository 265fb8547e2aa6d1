"""Group texts of different clients into batches, one at a time per model process."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence

from diffusionner.service.api_errors import ApiError, failed
from diffusionner.service.limits import (
    BATCH_CHARACTERS,
    BATCH_WINDOW,
    FREE_CHARACTERS,
    INITIAL_RATE,
    STOP_SECONDS,
    Limits,
)
from diffusionner.service.metrics import Metrics
from diffusionner.service.model_process import ModelProcess
from diffusionner.service.request_queue import QueuedRequest, QueuedText, RequestQueue
from diffusionner.service.worker import Operation

log = logging.getLogger("diffusionner.service")


class Batcher:
    """Queues requests and computes their texts in batches."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits = limits
        self.metrics = metrics
        self.queue = RequestQueue()
        metrics.queue_requests.set_function(lambda: len(self.queue.requests))
        metrics.queue_characters.set_function(lambda: self.queue.characters)
        self.running = 0  # characters being computed
        self.rate = INITIAL_RATE  # recent characters per second of one backend
        self.backends = 1
        self.single_client = True  # the last batch came from one request
        self.stopped = False
        self.changed = asyncio.Condition()
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, backends: Sequence[ModelProcess]) -> None:
        self.backends = len(backends)
        self.tasks = [asyncio.create_task(self._serve(backend)) for backend in backends]

    async def stop(self) -> None:
        """Finish all queued requests, then stop; cancel batches that take too long."""
        self.stopped = True
        async with self.changed:
            self.changed.notify_all()
        if self.tasks:
            _, late = await asyncio.wait(self.tasks, timeout=STOP_SECONDS)
            for task in late:
                task.cancel()

    async def submit(self, operation: Operation, texts: Sequence[str]) -> QueuedRequest:
        """Queue the texts; raise ApiError if too much work is queued already."""
        if self.stopped:
            message = "the service is stopping; retry later"
            raise ApiError(503, "stopping", message, {"retry-after": "1"})
        ahead = self.queue.characters_ahead(len(texts)) + self.running
        seconds = ahead / (self.rate * self.backends)
        too_long = seconds > self.limits.wait and ahead > FREE_CHARACTERS
        if too_long or len(self.queue.requests) >= self.limits.queue:
            retry = max(1, math.ceil(seconds))
            message = f"the queue is full; retry in {retry} s"
            raise ApiError(429, "busy", message, {"retry-after": str(retry)})
        request = QueuedRequest(operation, texts)
        if texts:
            self.queue.requests.append(request)
            async with self.changed:
                self.changed.notify()
        return request

    def drop(self, request: QueuedRequest, reason: str) -> None:
        """Remove a request whose client no longer waits; running texts are still computed."""
        left = self.queue.remove(request)
        for result in request.results:
            if result.done() and not result.cancelled():
                result.exception()  # else asyncio logs that it was never retrieved
            result.cancel()
        if left:
            self.metrics.dropped.labels(reason).inc(left)

    async def _serve(self, backend: ModelProcess) -> None:
        queue = self.queue
        while True:
            async with self.changed:
                await self.changed.wait_for(lambda: queue.requests or self.stopped)
            if not queue.requests:
                return
            # A single client would gain nothing from waiting for others.
            wait = not self.single_client and not self.stopped
            if wait and queue.characters < BATCH_CHARACTERS:
                await asyncio.sleep(BATCH_WINDOW)
            if queue.requests:
                await self._run(backend, queue.next_batch(BATCH_CHARACTERS))

    async def _run(self, backend: ModelProcess, batch: list[QueuedText]) -> None:
        requests = {id(queued.request) for queued in batch}
        self.single_client = len(requests) == 1
        self.metrics.batch_texts.observe(len(batch))
        self.metrics.batch_requests.observe(len(requests))
        started = time.monotonic()
        for queued in batch:
            self.metrics.queued.observe(started - queued.request.received)
        characters = sum(len(queued.text) for queued in batch)
        self.running += characters
        try:
            await self._compute(backend, batch)
        finally:
            self.running -= characters
        seconds = time.monotonic() - started
        if characters > BATCH_CHARACTERS // 2:  # small batches take longer per character
            self.rate += 0.1 * (characters / max(seconds, 1e-4) - self.rate)
        self.metrics.batch_seconds.observe(seconds)
        self.metrics.texts.inc(len(batch))
        self.metrics.characters.inc(characters)

    async def _compute(self, backend: ModelProcess, batch: list[QueuedText]) -> None:
        """Set the results of a batch; if it fails, retry each text alone."""
        try:
            texts = [queued.text for queued in batch]
            results = await backend.run(batch[0].request.operation, texts)
        except Exception as error:
            log.error("a batch of %d texts failed: %s", len(batch), type(error).__name__)
            if len(batch) > 1:
                for queued in batch:
                    await self._compute(backend, [queued])
            elif not batch[0].result.done():
                batch[0].result.set_exception(failed())
            return
        for queued, result in zip(batch, results, strict=True):
            if not queued.result.done():  # not dropped meanwhile
                queued.result.set_result(result)
