"""Batching of queued requests: turns, lanes, shares of long sentences, failures."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

from services import Client, running

from diffusionner.service.api_errors import ApiError
from diffusionner.service.batcher import Batcher, Lane
from diffusionner.service.job import Document, Job
from diffusionner.service.limits import BATCH_WORK, PART_WORK, Limits
from diffusionner.service.metrics import Metrics
from diffusionner.service.work import WorkEstimate
from diffusionner.service.worker import Answer, ModelInfo, Operation, Predictor, Slice
from diffusionner.settings import Settings
from diffusionner.text import split_sentences
from models import lively_model, written

PLAIN = Operation("entities", ())
OTHER = Operation("entities", (("steps", 3),))
INFO = ModelInfo([], "torch", Settings(), interruptible=True, word_limits=(50, 21))


def document(*names: str, work: float = 1.0) -> Document:
    """Return a text with a sentence for each name."""
    text = " ".join(f"Name {name}." for name in names)
    return Document(text, split_sentences(text), [work] * len(names))


def job(operation: Operation, *names: str, work: float = PART_WORK) -> Job:
    return Job(operation, [document(*names, work=work)])


def batches(requests: list[tuple[Operation, list[str]]], parts: int) -> list[list[str]]:
    """Return the names in each batch of this many parts."""

    async def run() -> list[list[str]]:
        lane = Lane(short=False)
        lane.jobs.extend(job(operation, *names) for operation, names in requests)
        found = []
        while lane.jobs:
            batch = lane.next_batch(parts * PART_WORK)
            found.append([part.document.sentences[part.first].words[1] for part in batch])
        assert lane.work == 0
        return found

    return asyncio.run(run())


def test_one_operation_per_batch_in_order_of_arrival():
    requests = [(PLAIN, ["a"]), (OTHER, ["b"]), (PLAIN, ["c"]), (OTHER, ["d"])]
    assert batches(requests, 100) == [["a", "c"], ["b", "d"]]


def test_requests_take_turns():
    requests = [(PLAIN, ["a1", "a2", "a3", "a4"]), (PLAIN, ["b1"]), (PLAIN, ["c1", "c2"])]
    assert batches(requests, 3) == [["a1", "b1", "c1"], ["a2", "c2", "a3"], ["a4"]]


def test_requests_with_other_options_take_turns():
    requests = [(PLAIN, ["a1", "a2", "a3"]), (OTHER, ["b1", "b2"])]
    assert batches(requests, 1) == [["a1"], ["b1"], ["a2"], ["b2"], ["a3"]]


def test_a_large_part_is_a_batch_of_its_own():
    async def run() -> None:
        lane = Lane(short=False)
        lane.jobs.append(job(PLAIN, "a", work=BATCH_WORK))
        lane.jobs.append(job(PLAIN, "b"))
        assert [len(lane.next_batch(10)) for _ in range(2)] == [1, 1]

    asyncio.run(run())


def test_parts_cover_the_text():
    async def run() -> None:
        parts = job(PLAIN, *map(str, range(100)), work=PART_WORK / 8).parts
        assert [part.first for part in parts] == [0, *(part.last for part in parts)][:-1]
        assert {part.last - part.first for part in parts} == {8, 4}
        inner = parts[1].slice(context=2)
        assert [words[1] for words in inner.sentences] == [str(i) for i in range(6, 18)]
        assert (inner.first, inner.last) == (2, 10)

    asyncio.run(run())


def test_other_requests_run_while_many_texts_are_read():
    """Even texts without words, which are no work, take time to read."""

    async def run() -> int:
        batcher, estimate = Batcher(Limits(), Metrics()), WorkEstimate(Settings(), {}, (50, 21))
        reading = asyncio.create_task(batcher.read_all(["\u200b"] * 100, estimate))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(run()) >= 100


def test_work_ahead_of_a_new_request():
    async def run() -> None:
        lane = Lane(short=False)
        lane.jobs.append(job(PLAIN, *"abcdefghij", work=100))
        lane.jobs.append(job(PLAIN, "k", work=50))
        for work, ahead in ((10, 10 + 10), (500, 500 + 50), (5000, 1000 + 50)):
            assert lane.work_ahead(job(PLAIN, "new", work=work)) == ahead

    asyncio.run(run())


def test_the_shortest_request_is_first_among_short_ones():
    async def run() -> None:
        lane = Lane(short=True)
        lane.jobs.extend(job(OTHER, str(i), work=90) for i in range(3))
        lane.jobs.append(small := job(PLAIN, "small", work=5))
        assert lane.work_ahead(small) == 0
        assert [part.job for part in lane.next_batch(100)] == [small]
        # Those that came a second earlier are not overtaken.
        lane.jobs.append(small := job(PLAIN, "small", work=5))
        small.received += 1
        assert lane.work_ahead(small) == 3 * 90
        assert [len(lane.next_batch(200)) for _ in range(3)] == [2, 1, 1]
        assert not lane.jobs

    asyncio.run(run())


def test_short_requests_with_different_options_wait_for_the_batches_of_each():
    async def run() -> int:
        batcher = Batcher(Limits(), Metrics())
        batcher.start([Stuck()], INFO)
        for number in range(200):
            options = Operation("entities", (("threshold", number / 200),))
            try:
                await batcher.submit(Job(options, [document("a", work=5)], batch_work=15))
            except ApiError as error:
                assert error.code == "busy"
                break
        for task in batcher.tasks:
            task.cancel()
        return number

    assert 80 < asyncio.run(run()) <= 102  # two seconds of work at the initial rate


def test_the_rate_of_an_idle_machine_falls_slowly():
    batcher = Batcher(Limits(), Metrics())
    for _ in range(10):
        batcher._measure(5000, 1.0)
    fast = batcher.best_rate
    assert fast > 4 * 1000
    for _ in range(20):
        batcher._measure(500, 1.0)
    assert batcher.rate < 1000 and batcher.best_rate > 0.95 * fast
    for _ in range(6000):
        batcher._measure(500, 1.0)
    assert batcher.best_rate < 600


class Backend:
    """A model process that records its batches."""

    def __init__(self) -> None:
        self.given: list[list[str]] = []

    async def run(self, short: bool, operation: Operation, slices: Sequence[Slice]) -> Answer:
        self.given.append([words[1] for one in slices for words in one.sentences])
        await asyncio.sleep(0)
        return Answer([[()] * (one.last - one.first) for one in slices], 0.01)


class Failing:
    async def run(self, short: bool, operation: Operation, slices: Sequence[Slice]) -> Answer:
        return Answer(None, 0.0, "RuntimeError")


class Stuck:
    async def run(self, short: bool, operation: Operation, slices: Sequence[Slice]) -> Answer:
        await asyncio.sleep(1000)
        raise AssertionError


def test_dropped_requests_are_computed_no_further():
    async def run() -> None:
        batcher, backend = Batcher(Limits(), Metrics()), Backend()
        batcher.start([backend], INFO)
        long = job(PLAIN, *map(str, range(500)))
        await batcher.submit(long)
        while not backend.given:
            await asyncio.sleep(0)
        batcher.drop(long, "gone")
        done = len(backend.given)
        await batcher.stop()
        assert len(backend.given) <= done + 1 and done < 5
        assert not batcher.long.jobs and batcher.long.work == 0

    asyncio.run(run())


def test_failures_of_dropped_requests_are_not_logged_by_asyncio(caplog):
    async def run() -> None:
        batcher = Batcher(Limits(), Metrics())
        batcher.start([Failing()], INFO)
        failing = Job(PLAIN, [document("a"), document("b")])
        await batcher.submit(failing)
        await asyncio.wait(failing.futures.values())
        batcher.drop(failing, "gone")
        await batcher.stop()

    asyncio.run(run())
    gc.collect()
    assert "a batch of 2 parts failed" in caplog.text
    assert "never retrieved" not in caplog.text


def test_stop_does_not_wait_for_dropped_requests():
    async def run() -> None:
        batcher = Batcher(Limits(), Metrics())
        batcher.start([Stuck()], INFO)
        stuck = job(PLAIN, "a", work=1)
        await batcher.submit(stuck)
        while not batcher.short.running:
            await asyncio.sleep(0.01)
        batcher.drop(stuck, "timed_out")
        await asyncio.wait_for(batcher.stop(), 10)

    asyncio.run(run())


# --- Parts of a text give the entities of the whole text ------------------------------------------


class Counting(Predictor):
    calls = 0

    def run(self, operation: Operation, slices: Sequence[Slice]) -> list[list[Any]]:
        self.calls += len(slices)
        return super().run(operation, slices)


def check_parts(client: Client, predictor: Counting, text: str, **options: Any) -> None:
    before = predictor.calls
    (result,) = client.entities(text, **options).json()["results"]
    assert predictor.calls - before > 2
    expected = [written(e) for e in predictor.ner(text, **options)]
    assert expected

    def places(entities: list[dict[str, Any]]) -> list[Any]:
        return [(e["start"], e["end"], e["label"], round(e["score"], 4)) for e in entities]

    assert places(result["entities"]) == places(expected)


def test_parts_of_a_text_with_context(encoder_folder):
    predictor = Counting(lively_model(encoder_folder, "encoder.context=2"))
    text = " ".join(f"Ada {i} met Charles Babbage in London. No!" for i in range(40))
    with running(predictor) as client:
        check_parts(client, predictor, text)
        check_parts(client, predictor, text, overlap="flat", steps=3)


def test_shares_of_a_long_sentence(encoder_folder):
    predictor = Counting(lively_model(encoder_folder))
    text = " ".join(f"ada {i} met charles babbage in london" for i in range(300))
    assert len(split_sentences(text)) == 1
    with running(predictor) as client:
        check_parts(client, predictor, text)
        check_parts(client, predictor, text, overlap="all")
