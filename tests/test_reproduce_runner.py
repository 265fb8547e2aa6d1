"""The runner: missing runs are executed once, in parallel, resumed, within the budget."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from reproduction import CONFIGS, jobs, sources, write_records

from reproduce import processes, progress
from reproduce.cli import main
from reproduce.corpora import METHODS
from reproduce.progress import Occupancy
from reproduce.records import path_of, read
from reproduce.runner import Overview, Runner
from reproduce.sources import Sources
from reproduce.store import POINTS, RunStore
from reproduce.tables import DEV, TEST, Need, Table, point, shape_point

# Replaces `train` and the worker: writes a log line per epoch and a state to resume from.
STUB = """
import json, os, pathlib, sys, time
here = pathlib.Path(__file__).parent
def note(what):
    with open(here / "calls.jsonl", "a") as file:
        file.write(json.dumps({"what": what, "time": time.time(), "pid": os.getpid()}) + "\\n")
if sys.argv[1] == "worker":
    job = json.loads(pathlib.Path(sys.argv[2]).read_text())
    kinds = sorted({point["kind"] for point in job["points"]})
    kinds += [job["shape"]] if job["shape"] else []
    note(["begin", *kinds])
    with open(job["out"], "a") as out:
        out.write(json.dumps({"about": {"parameters": 7}}) + "\\n")
        for point in job["points"]:
            result = {"micro": {"precision": 0.5, "recall": 0.5, "f1": 0.5}}
            if point["kind"] == "speed":
                time.sleep(0.2)
                result = {"sentences_per_second": {"median": 1.0, "low": 1.0, "high": 1.0}}
            out.write(json.dumps({"point": point["name"], "result": result}) + "\\n")
    note(["end", *kinds])
    sys.exit()
told = dict(one.split("=", 1) for one in sys.argv[3:] if "=" in one)
if told.get("method") == "crf":
    print("error: out of luck")
    sys.exit(2)
folder = pathlib.Path(json.loads(told["training.output"]))
state = folder / "state.safetensors"
assert state.exists() == ("--resume" in sys.argv)
done = int(state.read_text()) if state.exists() else 0
note(["begin", "train", done])
for epoch in range(done + 1, int(told["training.epochs"]) + 1):
    with open(folder / "log.jsonl", "a") as log:
        line = {"step": epoch, "sentences_per_second": 100.0, "time": time.time()}
        log.write(json.dumps(line) + "\\n")
        line = {"step": epoch, "epoch": epoch, "f1": epoch / 10, "best": epoch}
        line["evaluation_seconds"] = 0.1
        log.write(json.dumps({**line, "time": time.time()}) + "\\n")
    (folder / "model.safetensors").write_text("weights")
    state.write_text(str(epoch))
    while epoch == 2 and (here / "wait").exists():
        time.sleep(0.02)
note(["end", "train", done])
"""
EPOCHS = 3
TABLE = Table("tiny", "", (Need(("genia", "conll03"), tuple(METHODS), points=(DEV, TEST)),))


class Quiet:
    """Records messages; may press Ctrl-C after an event."""

    def __init__(self, until=lambda overview: False) -> None:
        self.until = until
        self.said: list[str] = []

    def show(self, overview: Overview) -> None:
        if self.until(overview):
            raise KeyboardInterrupt

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def place(tmp_path: Path, monkeypatch) -> Path:
    stub = tmp_path / "stub.py"
    stub.write_text(STUB)
    monkeypatch.setattr(processes, "COMMAND", [sys.executable, str(stub)])
    monkeypatch.setattr(processes, "WORKER", [sys.executable, str(stub), "worker"])
    return tmp_path


def store(place: Path) -> RunStore:
    return RunStore(place / "work", place / "out")


def found(place: Path) -> Sources:
    return sources(place, None, f"training.epochs={EPOCHS}", "training.batch_size=32")


def run(place: Path, table=TABLE, only=("*/diffusion",), seeds=1, view=None, **options):
    where = found(place)
    chosen = jobs(table, where, seeds, only)
    outcome = Runner(chosen, store(place), where, view or Quiet(), **options).run()
    return chosen, outcome


def calls(place: Path) -> list[dict]:
    path = place / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_every_run_is_executed_once(place):
    chosen, outcome = run(place)
    assert outcome.done == len(chosen) == 2 and not outcome.failed and not outcome.left
    for job in chosen:
        record = read(path_of(place / "out", job.id))
        assert [epoch["f1"] for epoch in record.epochs] == [0.1, 0.2, 0.3]
        assert record.values["training"]["best_epoch"] == 3
        assert record.score(TEST) == 0.5 and record.parameters == 7
        assert str(place) not in json.dumps(record.values)
        assert not (store(place).folder(job) / "state.safetensors").exists()
    before = calls(place)
    _, outcome = run(place)
    assert outcome.done == 2 and calls(place) == before


def test_a_record_names_the_commit(place, monkeypatch):
    monkeypatch.setenv("DIFFUSIONNER_COMMIT", "1234567")  # as outside a clone
    for job in run(place)[0]:
        assert read(path_of(place / "out", job.id)).values["commit"] == "1234567"


def test_new_points_need_no_training(place):
    run(place)
    before = len([one for one in calls(place) if one["what"][1] == "train"])
    more = Table("more", "", (Need(("genia",), points=(DEV, point("score", steps=5))),))
    chosen, outcome = run(place, more)
    assert outcome.done == 1 and store(place).record(chosen[0]).has(point("score", steps=5))
    assert store(place).record(chosen[0]).has(TEST)
    assert len([one for one in calls(place) if one["what"][1] == "train"]) == before


def test_interrupted_runs_are_resumed(place):
    (place / "wait").write_text("")
    at_two = Quiet(
        lambda now: len(now.active) == 2 and all(o.progress.step == 2 for o in now.active)
    )
    chosen, outcome = run(place, view=at_two, parallel=2)
    assert outcome.interrupted and outcome.done == 0 and len(outcome.left) == 2
    assert not any(alive(one["pid"]) for one in calls(place))
    assert not (place / "out" / "records").exists()
    (place / "wait").unlink()
    _, outcome = run(place, parallel=2)
    assert outcome.done == 2
    assert [one["what"] for one in calls(place)].count(["begin", "train", 2]) == 2
    for job in chosen:
        assert [epoch["epoch"] for epoch in store(place).record(job).epochs] == [1, 2, 3]


def test_a_killed_run_is_reported_and_resumed(place):
    (place / "wait").write_text("")

    def kill(now: Overview) -> bool:
        if now.active[0].progress.step == 2:
            os.killpg(now.active[0].worker.process.pid, signal.SIGKILL)
            (place / "wait").unlink(missing_ok=True)
        return False

    _, outcome = run(place, view=Quiet(kill))
    assert outcome.done == 1 and list(outcome.failed) == ["genia/diffusion/default/0"]
    _, outcome = run(place)
    assert outcome.done == 2 and ["begin", "train", 2] in [one["what"] for one in calls(place)]


def test_a_failure_does_not_stop_the_others(place):
    view = Quiet()
    _, outcome = run(place, only=["*/diffusion", "*/crf"], view=view, parallel=2)
    assert outcome.done == 2
    assert set(outcome.failed) == {"genia/crf/default/0", "conll03/crf/default/0"}
    assert all("out of luck" in why and "output.txt" in why for why in outcome.failed.values())
    assert any("failed in training" in line for line in view.said)


def test_runs_that_exceed_the_budget_do_not_start(place):
    run(place, only=["genia/diffusion"])
    assert len(calls(place)) == 4
    # The other run takes at least START seconds: too long for ten, not for a thousand.
    _, outcome = run(place, budget=10.0)
    assert outcome.done == 1 and outcome.left == {"conll03/diffusion/default/0": "no time left"}
    assert len(calls(place)) == 4
    _, outcome = run(place, budget=1000.0)
    assert outcome.done == 2 and not outcome.left


def test_running_processes_are_stopped_when_time_is_up(place):
    (place / "wait").write_text("")
    started = time.monotonic()
    _, outcome = run(place, only=["genia/diffusion"], budget=2.0)
    assert time.monotonic() - started < 10
    assert "no time left" in outcome.left["genia/diffusion/default/0"]
    assert not any(alive(one["pid"]) for one in calls(place))


def test_speed_is_measured_alone(place):
    need = Need(("genia", "conll03"), points=(DEV, point("speed", steps=1), point("speed")))
    _, outcome = run(place, Table("timed", "", (need,)), parallel=4)
    assert outcome.done == 2
    assert max(Occupancy(place / "work").counts) == 2
    running: set[tuple[int, str]] = set()
    for one in calls(place):
        state, kind, *_ = one["what"]
        if state == "begin":
            running.add((one["pid"], kind))
        else:
            running.discard((one["pid"], kind))
        if any(kind == "speed" for _, kind in running):
            assert len(running) == 1


def test_a_shape_is_timed_without_training(place):
    needs = [
        Need(("genia",), (method,), points=(shape_point(steps),), shape="bert-large")
        for method, steps in (("diffusion", 10), ("crf", None))
    ]
    table = Table("shape", "", tuple(needs))
    chosen, outcome = run(place, table, only=())
    assert outcome.done == 2
    assert {tuple(one["what"][1:]) for one in calls(place)} == {("speed", "bert-large")}
    assert store(place).record(chosen[1]).speed(shape_point(None)) == 1.0
    record = store(place).record(chosen[0])
    assert record.speed(shape_point(10)) == 1.0 and record.parameters == 7
    assert record.values["training"] is None
    before = calls(place)
    assert run(place, table, only=(), seeds=2)[1].done == 2 and calls(place) == before


def test_measurements_of_a_killed_worker_are_kept(place):
    chosen, _ = run(place, Table("none", "", (Need(("genia",)),)))
    job = jobs(TABLE, found(place), 1, ["genia/diffusion"])[0]
    assert job.id == chosen[0].id
    line = {"point": DEV.name, "result": {"micro": {"precision": 1.0, "recall": 1.0, "f1": 1.0}}}
    left = store(place).folder(job) / POINTS
    left.write_text(json.dumps(line) + '\n{"point": "score te')
    _, outcome = run(place, only=["genia/diffusion"])
    record = store(place).record(job)
    assert outcome.done == 1 and record.score(DEV) == 1.0 and record.score(TEST) == 0.5


def test_a_record_without_weights_is_not_trained_again(place):
    job = jobs(TABLE, found(place), 1, ["genia/diffusion"])[0]
    job.points.pop(TEST.name)
    write_records(place / "out", [job])
    _, outcome = run(place, only=["genia/diffusion"])
    assert "weights are not in" in outcome.left[job.name]
    assert calls(place) == []


def test_a_run_of_another_process_is_skipped(place):
    job = jobs(TABLE, found(place), 1, ["genia/diffusion"])[0]
    lock = processes.lock_folder(store(place).folder(job))
    _, outcome = run(place, only=["genia/diffusion"])
    assert "another process" in outcome.left[job.name] and calls(place) == []
    lock.close()
    assert run(place, only=["genia/diffusion"])[1].done == 1


def test_parallel_runs_share_gpu_seconds(tmp_path):
    occupancy = Occupancy(tmp_path)
    occupancy.times, occupancy.counts = [100.0, 110.0, 130.0], [1, 2, 0]
    assert occupancy.share(100, 110) == pytest.approx(10)
    assert occupancy.share(105, 120) == pytest.approx(5 + 5)
    assert occupancy.share(120, 140) == pytest.approx(5 + 10)


def test_time_between_two_sessions_does_not_count(tmp_path):
    lines = [
        {"step": 2, "sentences_per_second": 4.0, "time": 10.0},
        {"step": 3, "sentences_per_second": 1.0, "time": 12.0},
        {"step": 3, "epoch": 1, "f1": 0.5, "best": 1, "evaluation_seconds": 3.0, "time": 15.0},
        {"step": 6, "sentences_per_second": 2.0, "time": 9000.0},
        {"step": 6, "epoch": 2, "f1": 0.4, "best": 1, "evaluation_seconds": 3.0, "time": 9003.0},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"st')
    done = progress.read(tmp_path, batch_size=4, sentences=10, occupancy=Occupancy(tmp_path))
    assert [epoch.sentences for epoch in done.epochs] == [10, 20]
    assert [epoch.seconds for epoch in done.epochs] == [2 + 2, 4 + 5]
    assert (done.best_f1, done.best_epoch, done.evaluation_seconds) == (0.5, 1, 6.0)


def test_the_command_trains_measures_and_writes(cli, tmp_path, encoder_folder):
    """Real subprocesses, with a tiny encoder."""
    sources(tmp_path, encoder_folder)
    changes = [
        "training.epochs=1", "training.frozen_epochs=0", "training.batch_size=8",
        "data.dev_from_train=10", "encoder.character_filters=8", "encoder.context=0",
        "encoder.max_subwords=128", "decoder.heads=4", "decoder.feedforward=32",
        "diffusion.spans=8", "inference.batch_size=16",
    ]  # fmt: skip
    options = ["--data", tmp_path / "data", "--encoder", encoder_folder, "--configs", CONFIGS]
    options += ["--work", tmp_path / "work", "--output", tmp_path / "out", "--seeds", 1]
    options += [part for change in changes for part in ("--set", change)]
    options += ["--only", "genia/diffusion", "--only", "litbank/diffusion"]
    first = cli("nested", "benefit", *options, main=main)
    assert first.status == 0, first.out + first.err
    assert "LitBank: no " in first.out and "2 of 2 runs are complete" in first.out
    made = map(read, (tmp_path / "out" / "records").iterdir())
    record, passages = sorted(made, key=lambda one: len(one.values["changes"]))
    assert record.score(TEST) is not None
    assert record.parameters and record.parameters == passages.parameters
    assert passages.values["changes"]["encoder.passage_words"] == 160
    assert len(passages.values["points"]) == 9
    assert record.values["points"][TEST.name]["per_type"]
    assert (tmp_path / "out" / "nested.png").exists()
    said = list((tmp_path / "work").glob("genia-*/output.txt"))
    before = [one.stat().st_mtime_ns for one in said]
    assert cli("nested", "benefit", *options, main=main).status == 0
    assert [one.stat().st_mtime_ns for one in said] == before  # nothing was started
    output = ("--output", tmp_path / "out")
    assert cli("render", "--check", *output, main=main).status == 0
    listed = cli("list", *output, "--seeds", 1, main=main).out
    assert [line.split()[-4:-2] for line in listed.splitlines() if "nested" in line] == [
        ["20", "1"]
    ]
