"""`diffusionner annotate --engine ray`, also with a worker that is killed."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from diffusionner import DiffusionNER
from diffusionner.annotation import ray_engine, run, writers
from diffusionner.annotation.journal import Journal, Position
from diffusionner.annotation.run import ModelSpec, annotate_records
from diffusionner.annotation.sources import find_sources
from diffusionner.errors import CheckpointError
from models import lively_model

ray = pytest.importorskip("ray", reason="the package ray is not installed")
COUNT = 1500


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return lively_model(encoder_folder, "encoder.context=2", "inference.spans=8")


@pytest.fixture(scope="module")
def model(ner: DiffusionNER, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "model"
    ner.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Ray on this machine, with two cores."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=200 * 2**20,
    )
    yield
    ray.shutdown()


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Documents of five texts, and one bad line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_engine, "CHUNK", 32)
    lines = [json.dumps({"id": n, "text": f"Ada met {n}.", "doc": n // 5}) for n in range(COUNT)]
    lines.insert(100, "not JSON")
    Path("in.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def read(path: str) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def assert_like(ours: list[dict], expected: list[dict]) -> None:
    assert [r["id"] for r in ours] == [r["id"] for r in expected]
    for one, other in zip(ours, expected, strict=True):
        scores = [[e.pop("score") for e in r["entities"]] for r in (one, other)]
        assert one == other
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def workers() -> list[int]:
    """Return the ids of the worker processes."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "ray::_Worker" in " ".join(child.cmdline()):
                found.append(child.pid)
        except psutil.Error:  # ended meanwhile
            continue
    return found


def test_a_worker_is_killed(cluster, corpus, ner, model):
    """The output equals that of the local engine."""
    described = ModelSpec.load(model, {})
    killed: list[int] = []
    seen: set[int] = set()

    def watch(safe: Position, read: int) -> None:
        found = workers()
        seen.update(found)
        if not killed and found and COUNT // 10 < safe.records < COUNT // 2:
            os.kill(found[0], signal.SIGKILL)
            killed.append(found[0])

    bad: list[str] = []
    engine = ray_engine.RayEngine(described, "cpu", 2)
    given = find_sources(["in.jsonl"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writers, "FLUSH_RECORDS", 16)
        done = run.annotate(given, Path("ray.jsonl"), described, engine, bad.append, watch)
    assert killed and len(seen) >= 2 and done.records == COUNT
    assert len(bad) == given.skipped == 1 and "in.jsonl:101: not valid JSON" in bad[0]
    local = partial(annotate_records, ner, {})
    run.annotate(given, Path("local.jsonl"), described, local, bad.append)
    assert_like(read("ray.jsonl"), read("local.jsonl"))
    assert sum(len(r["entities"]) for r in read("ray.jsonl")) > COUNT


def test_one_engine_resumes_a_run_of_the_other(cluster, corpus, ner, model, monkeypatch):
    described = ModelSpec.load(model, {})
    monkeypatch.setattr(writers, "FLUSH_RECORDS", 50)
    append = Journal.append

    def stop(self: Journal, position: Position) -> None:
        append(self, position)
        if position.records >= 700:
            raise KeyboardInterrupt

    given = find_sources(["in.jsonl"])
    local = partial(annotate_records, ner, {})
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Journal, "append", stop)
        run.annotate(given, Path("out.jsonl"), described, local, print)
    engine = ray_engine.RayEngine(described, "cpu", 1)
    run.annotate(given, Path("out.jsonl"), described, engine, print)
    run.annotate(given, Path("local.jsonl"), described, local, print)
    assert_like(read("out.jsonl"), read("local.jsonl"))


def test_chunks_include_their_context(corpus):
    records = list(find_sources(["in.jsonl"]).records(print))
    chunks = list(ray_engine.make_chunks(records[40:], records[38:40], 2))
    first = 40
    for chunk in chunks:
        assert chunk.first == 2 and chunk.items[0][0] == f"Ada met {first - 2}."
        assert chunk.records[0].fields["id"] == first
        first += len(chunk.records)
        assert chunk.items[-1][0] == f"Ada met {min(first + 2, COUNT) - 1}."
    assert len(chunks[0].records) == 32 and first == COUNT


def test_chunks_of_whole_documents(corpus):
    records = list(find_sources(["in.jsonl"]).records(print))
    chunks = list(ray_engine.document_chunks(records[42:], records[40:42]))
    assert [chunk.first for chunk in chunks[:2]] == [2, 0]
    assert [len(chunk.records) for chunk in chunks[:3]] == [33, 35, 35]
    assert [one.fields["id"] for chunk in chunks for one in chunk.records] == [*range(42, COUNT)]
    docs = [{doc for _, doc in chunk.items} for chunk in chunks]
    assert sum(map(len, docs)) == len(set.union(*docs))
    assert not list(ray_engine.document_chunks([], []))
    empty = replace(records[0], content="", doc="empty")
    divided = [*records[:33], empty, *records[33:60]]
    assert [len(c.records) for c in ray_engine.document_chunks(divided, [])] == [36, 25]
    no_docs = [replace(record, doc=None) for record in records[:70]]
    assert [len(c.records) for c in ray_engine.document_chunks(no_docs, [])] == [32, 32, 6]


def test_standard_input(cluster, corpus, model, monkeypatch):
    """Read by the driver, so that workers need no access to it."""
    described = ModelSpec.load(model, {})
    engine = ray_engine.RayEngine(described, "cpu", 1)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "Ada", "id": 0}\n')))
    run.annotate(find_sources(["-"]), Path("out.jsonl"), described, engine, print)
    assert [r["id"] for r in read("out.jsonl")] == [0]


def test_worker_errors_reach_the_driver(cluster, corpus, model):
    described = ModelSpec.load(model, {})
    engine = ray_engine.RayEngine(replace(described, folder=corpus), "cpu", 1)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        run.annotate(find_sources(["in.jsonl"]), Path("out.jsonl"), described, engine, print)
