"""Processes that run the model."""

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
from diffusionner.service.worker import ModelInfo, Operation

log = logging.getLogger("diffusionner.service")
Result = TypeVar("Result")


class ModelProcess:
    """A process that runs the model; if it dies, it is restarted and its batch is repeated once."""

    def __init__(
        self, model: str, device: str | None, cores: set[int] | None, metrics: Metrics
    ) -> None:
        self.arguments = (model, device, cores)
        self.metrics = metrics
        self.pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, context, worker.load, self.arguments)

    async def info(self) -> ModelInfo:
        try:
            return await self._call(worker.info)
        except BrokenProcessPool:
            raise CheckpointError(
                "the process loading the model died; is there enough memory?"
            ) from None

    async def run(self, operation: Operation, texts: Sequence[str]) -> list[bytes]:
        for last_attempt in (False, True):
            try:
                return await self._call(worker.run, operation, list(texts))
            except BrokenProcessPool:
                self._restart()
                if last_attempt:
                    raise
        raise AssertionError

    async def _call(self, function: Callable[..., Result], *arguments: object) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, function, *arguments)

    def _restart(self) -> None:
        log.error("the model process died; restarting it")
        self.metrics.restarts.inc()
        self.pool.shutdown(wait=False)
        self.pool = self._start()

    def stop(self) -> None:
        """Stop at once, without waiting for a batch that nobody needs any more."""
        for process in list(self.pool._processes.values()):
            process.kill()  # it ignores other signals
        self.pool.shutdown()


def start_processes(
    model: str, device: str | None, count: int, metrics: Metrics
) -> list[ModelProcess]:
    """Start model processes; each gets its share of the cores if there are enough."""
    shares: list[set[int] | None] = [None] * count
    if count > 1 and hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= count:
            shares = [set(cores[number::count]) for number in range(count)]
    return [ModelProcess(model, device, share, metrics) for share in shares]
