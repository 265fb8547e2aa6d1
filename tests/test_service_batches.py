"""Batching of queued texts."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

from diffusionner.service.batcher import Batcher
from diffusionner.service.limits import Limits
from diffusionner.service.metrics import Metrics
from diffusionner.service.request_queue import QueuedRequest, RequestQueue
from diffusionner.service.worker import Operation

PLAIN = Operation("entities", (), None)
OTHER = Operation("entities", (("steps", 3),), None)


def batches(requests: list[tuple[Operation, list[str]]], characters: int) -> list[list[str]]:
    async def run() -> list[list[str]]:
        queue = RequestQueue()
        for operation, texts in requests:
            queue.requests.append(QueuedRequest(operation, texts))
        found = []
        while queue.requests:
            found.append([queued.text for queued in queue.next_batch(characters)])
        assert queue.characters == 0
        return found

    return asyncio.run(run())


def test_one_operation_per_batch_in_order_of_arrival():
    requests = [(PLAIN, ["a"]), (OTHER, ["b"]), (PLAIN, ["c"]), (OTHER, ["d"])]
    assert batches(requests, 100) == [["a", "c"], ["b", "d"]]


def test_requests_take_turns():
    requests = [(PLAIN, ["a1", "a2", "a3", "a4"]), (PLAIN, ["b1"]), (PLAIN, ["c1", "c2"])]
    assert batches(requests, 6) == [["a1", "b1", "c1"], ["a2", "c2", "a3"], ["a4"]]


def test_a_long_text_is_a_batch_of_its_own():
    assert batches([(PLAIN, ["x" * 50]), (PLAIN, ["a"])], 10) == [["x" * 50], ["a"]]


def test_characters_ahead_of_a_new_request():
    async def run() -> None:
        queue = RequestQueue()
        queue.requests.append(QueuedRequest(PLAIN, ["x" * 10] * 100))
        queue.requests.append(QueuedRequest(PLAIN, ["x" * 50]))
        assert queue.characters_ahead(1) == 10 + 50
        assert queue.characters_ahead(10) == 100 + 50
        assert queue.characters_ahead(500) == 1000 + 50

    asyncio.run(run())


def test_removed_requests_are_not_computed():
    async def run() -> None:
        queue = RequestQueue()
        first, second = QueuedRequest(PLAIN, ["a", "b"]), QueuedRequest(PLAIN, ["c"])
        queue.requests.append(first)
        queue.requests.append(second)
        queue.next_batch(1)
        assert queue.remove(first) == 1
        assert queue.remove(first) == 0
        assert [queued.text for queued in queue.next_batch(10)] == ["c"]
        assert not queue.requests and queue.characters == 0

    asyncio.run(run())


class Failing:
    async def run(self, operation: Operation, texts: Sequence[str]) -> list[bytes]:
        raise RuntimeError


class Stuck:
    async def run(self, operation: Operation, texts: Sequence[str]) -> list[bytes]:
        await asyncio.sleep(1000)
        return []


def test_failures_of_dropped_requests_are_not_logged_by_asyncio(caplog):
    async def run() -> None:
        batcher = Batcher(Limits(), Metrics())
        batcher.start([Failing()])
        request = await batcher.submit(PLAIN, ["a", "b"])
        await asyncio.wait(request.results)
        batcher.drop(request, "gone")
        await batcher.stop()

    asyncio.run(run())
    gc.collect()
    assert "a batch of 2 texts failed" in caplog.text
    assert "never retrieved" not in caplog.text


def test_stop_does_not_wait_for_dropped_requests():
    async def run() -> None:
        batcher = Batcher(Limits(), Metrics())
        batcher.start([Stuck()])
        request = await batcher.submit(PLAIN, ["a"])
        while not batcher.running:
            await asyncio.sleep(0.01)
        batcher.drop(request, "timed_out")
        await asyncio.wait_for(batcher.stop(), 10)

    asyncio.run(run())
