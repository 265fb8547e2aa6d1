"""Requests are weighed by work, refused before they run, and long ones are interrupted."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import deadly_worker
import pytest
from services import Held, running, until

from diffusionner import DiffusionNER
from diffusionner.batching import EncodedCorpus
from diffusionner.corpus import Sentence
from diffusionner.errors import CheckpointError
from diffusionner.service import worker
from diffusionner.service.limits import Limits
from diffusionner.service.metrics import Metrics
from diffusionner.service.model_process import ModelProcess, ProcessDiedError
from diffusionner.service.work import WorkEstimate
from diffusionner.service.worker import ModelServer, Operation, Slice
from diffusionner.settings import Settings
from diffusionner.text import split_sentences
from diffusionner.word_limits import WordLimits
from models import lively_model

ENTITIES = Operation("entities", ())


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return lively_model(encoder_folder)


# --- Estimates ------------------------------------------------------------------------------------


def work(text: str, context: int = 0, **options: Any) -> float:
    settings = Settings.from_dict({"encoder": {"context": context}}, "test")
    estimate = WorkEstimate(settings, options, WordLimits(50, 7, 20))
    return sum(estimate.of_sentences(split_sentences(text)))


def test_work_follows_sentences_steps_and_spans():
    tiny = work("No! ", spans=20)
    assert work("No! " * 100, spans=20) == pytest.approx(100 * tiny)
    # A sentence of four characters costs about as much as a longer one.
    assert work("Ada met Charles.", spans=20) < 2 * tiny
    assert 200 < work("No!", steps=50, spans=500) / work("No!", steps=1, spans=20) < 1500
    assert work("No!", steps=10) > 5 * work("No!", steps=1) / 2
    assert work("No!", spans=500) > 5 * work("No!", spans=50)


def test_work_of_long_words_and_sentences():
    # A long word is cut into pieces.
    assert work("x" * 100_000, spans=20) > 50 * work("x" * 1_000, spans=20)
    # White space takes no work; if it counted, the machine would seem fast.
    assert work("one" + " " * 10_000 + "two") == work("one two")
    # Windows of a long sentence overlap.
    assert work("one two " * 5_000, spans=20) > 10 * work("one two " * 250, spans=20)


@pytest.mark.parametrize(
    "alphabet", ["!", "abcdefghijklmnopqrstuvwxyz", "0123456789abcdef", "привет"]
)
def test_work_of_garbage(alphabet):
    """Each character other than a letter is a subword, and few letters of a long word are one."""
    text = "".join(random.Random(1).choices(alphabet, k=5_000))
    assert 2_000 < work(text, spans=20) < 8_000
    # Ordinary text has about one subword per word.
    assert work("Ada met Charles Babbage in London with all her notes. " * 90, spans=20) < 1_000


def test_windows_of_words_with_many_subwords():
    estimate = WorkEstimate(Settings(), {}, WordLimits())
    words = ["!?" * 50, "?!" * 50] * 20
    assert len(words) < WordLimits().sentence
    assert estimate.windows(words) > 4_000 / Settings().encoder.max_subwords
    assert estimate.windows([f"w{i}" for i in range(40)]) == 1


@pytest.mark.parametrize(
    ("text", "at_most"),
    [
        ("the quick brown fox jumped over it " * 60, 1.3),
        ("Paris " * 200, 1.3),
        ("Bank of America " * 70, 1.3),
        ("Ada, Bob, Eve; " * 60, 2),
    ],
    ids=["plain", "repeated", "phrase", "list"],
)
@pytest.mark.parametrize("context", [0, 2])
def test_estimated_windows_are_those_of_the_corpus(ner, text, at_most, context):
    estimate = WorkEstimate(Settings(), {}, limits=WordLimits())
    (sentence,) = split_sentences(text)
    tokenizer = replace(ner.subwords, word_limits=WordLimits())
    settings = replace(ner.settings.encoder, context=context)
    windows = len(EncodedCorpus([Sentence(sentence.words)], tokenizer, settings))
    assert 1 / at_most < estimate.windows(sentence.words) / windows < at_most


def test_work_of_context():
    text = "Ada Lovelace met Charles Babbage in London. " * 9
    assert work(text, context=2, spans=20) > 2 * work(text, spans=20)


@pytest.mark.parametrize(
    "body",
    [
        {"texts": ["No! " * 4], "steps": 50, "spans": 500},
        {"texts": ["No! " * 25_000], "spans": 20},
        {"texts": ["Ada met Charles. " * 20] * 900, "spans": 20},
        {"texts": ["!" * 100_000]},
    ],
    ids=["options", "tiny sentences", "many texts", "punctuation"],
)
def test_too_much_work_is_refused_before_it_runs(ner, body):
    held = Held(ner)
    with running(held) as client:
        refused = client.post("/v1/entities", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "too_much_work")
        found = re.search(r"take (\S+) seconds|is (\S+) times", refused.json()["error"]["message"])
        assert found and (float(found[1] or 0) > 30 or float(found[2] or 0) > 1)
        assert not held.given
        held.go.set()
        assert client.entities("Ada.").status_code == 200


def test_the_limit_on_work(ner):
    text = "Ada met Charles Babbage. " * 20
    for seconds, status in ((0.02, 422), (30, 200)):
        with running(worker.Predictor(ner), Limits(work=seconds)) as client:
            assert client.entities(text).status_code == status


# --- Interruptions --------------------------------------------------------------------------------


@contextmanager
def serving(ner: DiffusionNER) -> Iterator[tuple[Connection, Connection]]:
    """Serve a model in a thread; yield the connections for short and for long calls."""
    (short, their_short), (long, their_long) = multiprocessing.Pipe(), multiprocessing.Pipe()
    server = ModelServer(their_short, their_long)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiffusionNER, "from_pretrained", lambda *_: ner)
        server.load("", None)

    def serve() -> None:
        with pytest.raises(EOFError):
            server.serve()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield short, long
    finally:
        short.close()
        long.close()
        thread.join(20)
        server.hook.remove()


def test_short_calls_interrupt_long_ones(ner):
    words = "Ada Lovelace met Charles Babbage in London .".split()
    operation = Operation("entities", (("steps", 50), ("spans", 100)))
    slices = [Slice([words] * 60, 0, 60)]
    with serving(ner) as (short, long):
        long.send(None)
        assert long.recv().value.interruptible
        long.send((operation, slices))
        for _ in range(3):
            short.send((ENTITIES, [Slice([words], 0, 1)]))
            found = short.recv()
            assert found.error is None and not long.poll()
        answer = long.recv()
        long.send((operation, slices))
        assert long.recv().value == answer.value and any(answer.value[0])
        short.send((operation, [Slice([], 0, 1)]))  # invalid
        assert short.recv().error is not None


def test_a_model_that_fails_at_once_is_reported_as_such(ner, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(worker.Predictor, "run", fail)
    with serving(ner) as (_, long):
        long.send(None)
        failure = long.recv().value
        assert isinstance(failure, CheckpointError)
        assert "shapes cannot be multiplied" in str(failure)


# --- Processes that die ---------------------------------------------------------------------------


def test_a_deadly_text_is_tried_twice_and_harms_no_other(monkeypatch):
    monkeypatch.setattr(worker, "main", deadly_worker.main)

    async def check() -> None:
        metrics = Metrics()
        process = ModelProcess("", None, None, metrics)
        try:

            def run(short: bool, word: str) -> Any:
                return process.run(short, ENTITIES, [Slice([[word]], 0, 1)])

            bystander = asyncio.create_task(run(True, "slow"))
            await asyncio.sleep(0.1)
            with pytest.raises(ProcessDiedError):
                await run(False, "deadly")
            assert (await bystander).value == [["slow"]]
            assert (await run(False, "fine")).value == [["fine"]]
            assert metrics.restarts._value.get() == 2
        finally:
            process.stop()

    asyncio.run(check())
    until(lambda: not multiprocessing.active_children())
