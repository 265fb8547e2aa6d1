"""Processes that run the model."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

from diffusionner.errors import CheckpointError, DiffusionNERError
from diffusionner.service import worker
from diffusionner.service.metrics import Metrics
from diffusionner.service.worker import Answer, ModelInfo, Operation, Slice

log = logging.getLogger("diffusionner.service")


class ProcessDiedError(Exception):
    pass


class ModelProcess:
    """A process that runs the model; if it dies, it is restarted and its batches are repeated once.

    It has two lanes. A call on the short lane interrupts one on the long lane.
    """

    def __init__(
        self, model: str, device: str | None, cores: set[int] | None, metrics: Metrics
    ) -> None:
        self.arguments = (model, device, cores)
        self.metrics = metrics
        self.threads = ThreadPoolExecutor(2)  # each waits for the answer of one lane
        self.repeating = asyncio.Lock()
        self.stopped = False
        self.on_failure: Callable[[Exception], None] = lambda error: None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.short, short = context.Pipe()
        self.long, long = context.Pipe()
        arguments = (*self.arguments, short, long)
        self.process = context.Process(target=worker.main, args=arguments, daemon=True)
        self.process.start()
        short.close()
        long.close()

    async def info(self) -> ModelInfo:
        try:
            info = (await self._call(False, None)).value
        except ProcessDiedError:
            raise CheckpointError(
                "the process loading the model died; is there enough memory?"
            ) from None
        assert isinstance(info, ModelInfo)
        return info

    async def run(self, short: bool, operation: Operation, slices: Sequence[Slice]) -> Answer:
        async with self.repeating:  # wait for batches that are being repeated
            pass
        try:
            return await self._call(short, (operation, slices))
        except ProcessDiedError:
            # Alone, so that a text that kills the process again harms no other.
            async with self.repeating:
                try:
                    return await self._call(short, (operation, slices))
                except DiffusionNERError as error:
                    self.on_failure(error)
                    raise

    async def _call(self, short: bool, call: object) -> Answer:
        process, connection = self.process, self.short if short else self.long
        loop = asyncio.get_running_loop()
        try:
            answer = await loop.run_in_executor(self.threads, _exchange, connection, call)
        except (EOFError, OSError):
            if self.process is process and not self.stopped:
                self._restart()
            raise ProcessDiedError from None
        if isinstance(answer.value, DiffusionNERError):  # it cannot load the model
            raise answer.value
        return answer

    def _restart(self) -> None:
        log.error("the model process died; restarting it")
        self.metrics.restarts.inc()
        self.process.kill()  # a connection may fail before the process has ended
        self.process.join()
        # The old connections are closed once no thread waits on them any more.
        self._start()

    def stop(self) -> None:
        """Stop at once, without waiting for a batch that nobody needs any more."""
        self.stopped = True
        self.process.kill()  # it ignores other signals
        self.process.join()
        self.threads.shutdown()  # their calls have ended with the process


def _exchange(connection: Connection, call: object) -> Answer:
    connection.send(call)
    answer: Answer = connection.recv()
    return answer


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
