"""The processes that the model runs in."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from diffusionner.errors import CheckpointError
from diffusionner.service import worker
from diffusionner.service.metrics import Metrics
from diffusionner.service.waiting import Task

log = logging.getLogger("diffusionner.service")
Result = TypeVar("Result")
TRIES = 2


class ModelProcess:
    """A process with the model, started again when it dies; what it was computing is repeated."""

    def __init__(
        self, model: str, device: str | None, processors: set[int] | None, metrics: Metrics
    ) -> None:
        self.arguments = (model, device, processors)
        self.metrics = metrics
        self.pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), worker.load, self.arguments
        )

    async def about(self) -> worker.About:
        """Waits until the model is loaded."""
        try:
            return await self._call(worker.about)
        except BrokenProcessPool:
            raise CheckpointError(
                "the process that was to load the model died; is there memory enough?"
            ) from None

    async def answer(self, task: Task, texts: Sequence[str]) -> list[bytes]:
        for _ in range(TRIES - 1):
            try:
                return await self._call(worker.answer, task, list(texts))
            except BrokenProcessPool:
                self._restart()
        try:
            return await self._call(worker.answer, task, list(texts))
        except BrokenProcessPool:
            self._restart()
            raise

    async def _call(self, function: Callable[..., Result], *arguments: object) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, function, *arguments)

    def _restart(self) -> None:
        log.error("the model's process died; starting another")
        self.metrics.restarts.inc()
        self.pool.shutdown(wait=False)
        self.pool = self._start()

    def stop(self) -> None:
        """At once: what it may still be loading or computing, nobody waits for."""
        for process in list(self.pool._processes.values()):
            process.kill()  # it heeds no other signal
        self.pool.shutdown()


def processes(model: str, device: str | None, count: int, metrics: Metrics) -> list[ModelProcess]:
    """So many, each with its share of the processors where there are enough."""
    shares: list[set[int] | None] = [None] * count
    if count > 1 and hasattr(os, "sched_getaffinity"):
        all_ = sorted(os.sched_getaffinity(0))
        if len(all_) >= count:
            shares = [set(all_[number::count]) for number in range(count)]
    return [ModelProcess(model, device, share, metrics) for share in shares]
