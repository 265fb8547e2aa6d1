"""`diffusionner annotate` after a kill or a full disk: no record is lost or duplicated."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyarrow import parquet

from diffusionner import DiffusionNER
from diffusionner.annotation import run, writers
from diffusionner.annotation.journal import Journal, Position
from diffusionner.annotation.run import ModelSpec, annotate_records
from diffusionner.annotation.sources import find_sources
from diffusionner.errors import DataError, WriteError
from diffusionner.storage.beliefs import fitted_beliefs
from models import lively_model

COUNT = 300
# The command without a model, slow enough to be killed.
SLOW = """
import sys, time
from pathlib import Path
from diffusionner import Entity
from diffusionner.annotation import writers
from diffusionner.annotation.run import ModelSpec, annotate
from diffusionner.annotation.sources import find_sources

def slow(records, context):
    for record in records:
        time.sleep(0.002)
        yield record, [Entity(0, len(record.content), "X", 0.5, record.content)]

writers.FLUSH_RECORDS = 7
model = ModelSpec.load(Path(sys.argv[3]), {})
given = find_sources([sys.argv[1]])
target = None if sys.argv[2] == "-" else Path(sys.argv[2])
done = annotate(given, target, model, slow, print, part_rows=25)
print(done.records)
"""


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return lively_model(encoder_folder, "encoder.context=2", "inference.spans=10")


@pytest.fixture(scope="module")
def model(ner: DiffusionNER, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "model"
    ner.save_pretrained(folder)
    return folder


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an input of 300 records in documents of seven."""
    monkeypatch.chdir(tmp_path)
    records = [{"id": n, "text": f"Ada met {n}.", "doc": n // 7} for n in range(COUNT)]
    Path("in.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return tmp_path


def read(path: str) -> list[dict]:
    if path.endswith(".parquet"):
        return parquet.read_table(path).to_pylist()
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def start(model: Path, target: str, given: str = "in.jsonl", **options) -> subprocess.Popen:
    command = [sys.executable, "-c", SLOW, given, target, str(model)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


# --- Killed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["out.jsonl", "out.parquet"])
def test_killed_again_and_again(model, work, target):
    chance = random.Random(0)
    kills = 0
    while not Path(target).exists():
        process = start(model, target)
        journal = Path(target + ".journal")
        before = journal.stat().st_size if journal.exists() else 0
        while process.poll() is None and not (journal.exists() and journal.stat().st_size > before):
            time.sleep(0.005)
        time.sleep(chance.random() / 5)
        if process.poll() is None:
            process.kill()
            kills += 1
        _, err = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), err
        assert kills < 50
    assert kills > 2
    records = read(target)
    assert [r["id"] for r in records] == list(range(COUNT))
    assert all(r["entities"][0]["text"] == r["text"] for r in records)
    assert sorted(p.name for p in work.iterdir()) == ["in.jsonl", target]


class Crash(BaseException):
    """Raised by tests to stop a run; nothing may catch it."""


def crash_at(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, which: int) -> None:
    """Raise Crash in the n-th call of a method, or after half of its work."""
    original: Callable = getattr(kind, name)
    calls = 0

    def called(self, *arguments):
        nonlocal calls
        calls += 1
        if calls == which:
            if name == "write":
                original(self, arguments[0][:1])  # written, never noted
            raise Crash
        return original(self, *arguments)

    monkeypatch.setattr(kind, name, called)


@pytest.mark.parametrize("target", ["out.jsonl", "out.parquet"])
@pytest.mark.parametrize("where", ["write", "append"])
def test_stopped_at_every_flush(ner, model, work, monkeypatch, target, where):
    """Sentences after the interruption have the same context as without it."""
    stop_and_resume(ner, model, monkeypatch, target, where)


def test_stopped_within_a_document_whose_beliefs_are_denoised(
    encoder_folder, work, tmp_path, monkeypatch
):
    changes = ("decoder.initializer=types", "decoder.beliefs=true", "inference.start=candidates")
    ner = lively_model(encoder_folder, *changes, "encoder.context=1", "inference.spans=auto")
    ner.network.beliefs.load_weights(fitted_beliefs())
    ner.save_pretrained(tmp_path / "model")
    model = tmp_path / "model"
    lines = Path("in.jsonl").read_text().splitlines(keepends=True)
    lines.insert(4, '{"id": -1, "text": "", "doc": "empty"}\n')  # does not divide a document
    Path("in.jsonl").write_text("".join(lines))
    stop_and_resume(DiffusionNER.from_pretrained(model), model, monkeypatch, "out.jsonl", "append")


def stop_and_resume(
    ner: DiffusionNER, model: Path, monkeypatch: pytest.MonkeyPatch, target: str, where: str
) -> None:
    """Stop at each flush, which is within a document, and compare with an undisturbed run."""
    monkeypatch.setattr(writers, "FLUSH_RECORDS", 5)
    text = "".join(Path("in.jsonl").read_text().splitlines(keepends=True)[:23])
    Path("in.jsonl").write_text(text)
    described, engine = ModelSpec.load(model, {}), partial(annotate_records, ner, {})

    def go(path: str) -> None:
        run.annotate(find_sources(["in.jsonl"]), Path(path), described, engine, print, part_rows=5)

    whole = "whole" + Path(target).suffix
    go(whole)
    assert sum(len(r["entities"]) for r in read(whole)) > 23
    writer = writers.ParquetWriter if target.endswith(".parquet") else writers.JsonLinesWriter
    for which in range(1, 6):
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crash_at(patch, writer if where == "write" else Journal, where, which)
            go(target)
        go(target)
        for ours, expected in zip(read(target), read(whole), strict=True):
            assert ours["id"] == expected["id"]
            scores = [[e.pop("score") for e in r["entities"]] for r in (ours, expected)]
            assert scores[0] == pytest.approx(scores[1], abs=1e-5)
            assert ours == expected
        shutil.rmtree(target) if Path(target).is_dir() else Path(target).unlink()


def test_killed_at_the_very_end(model, work, monkeypatch):
    """The output is complete, but its journal still exists."""
    engine, described = (
        partial(annotate_records, DiffusionNER.from_pretrained(model), {}),
        ModelSpec.load(model, {}),
    )
    monkeypatch.setattr(Path, "unlink", lambda self, **_: (_ for _ in ()).throw(Crash))
    with pytest.raises(Crash):
        run.annotate(find_sources(["in.jsonl"]), Path("out.jsonl"), described, engine, print)
    monkeypatch.undo()
    monkeypatch.chdir(work)
    done = run.annotate(find_sources(["in.jsonl"]), Path("out.jsonl"), described, engine, print)
    assert done.records == COUNT == len(read("out.jsonl"))
    assert not Path("out.jsonl.journal").exists()


def test_the_command_itself(model, work):
    """The real command, killed once it has written something."""
    Path("in.jsonl").write_text("".join(f'{{"id": {n}, "text": "Ada {n}"}}\n' for n in range(3000)))
    command = [sys.executable, "-m", "diffusionner", "annotate", "in.jsonl", "out.jsonl"]
    command += ["--model", str(model), "--batch-size", "8"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment)
    journal = Path("out.jsonl.journal")  # its second line is the first that notes records
    while first.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") > 1):
        time.sleep(0.01)
    first.kill()
    first.communicate()
    assert first.returncode == -signal.SIGKILL and not Path("out.jsonl").exists()
    resumed = subprocess.run(command, check=True, env=environment, capture_output=True)
    assert b"records of out.jsonl are already written" in resumed.stderr
    assert [r["id"] for r in read("out.jsonl")] == list(range(3000))


# --- Resumed after changes ---------------------------------------------------------------------


@pytest.fixture
def stopped(ner, model, work, monkeypatch) -> Callable[..., Position]:
    """A function that resumes a run that was stopped after ten records."""

    def go(
        options: dict | None = None, folder: Path = model, report: Callable[[str], None] = print
    ) -> Position:
        described = ModelSpec.load(folder, options or {})
        engine = partial(annotate_records, ner, options or {})
        return run.annotate(
            find_sources(["in.jsonl"]), Path("out.jsonl"), described, engine, report
        )

    monkeypatch.setattr(writers, "FLUSH_RECORDS", 5)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, Journal, "append", 3)
        go()
    return go


def change(line: int, text: str) -> None:
    lines = Path("in.jsonl").read_text().splitlines(keepends=True)
    Path("in.jsonl").write_text("".join([*lines[:line], text, *lines[line + 1 :]]))


def test_resuming_is_reported(stopped):
    told: list[str] = []
    stopped(report=told.append)
    assert told == ["resuming: 10 records of out.jsonl are already written"]
    Path("out.jsonl").unlink()
    told.clear()
    stopped(report=told.append)
    assert not told


def test_changed_input(stopped):
    original = Path("in.jsonl").read_text()
    change(3, '{"id": 3, "text": "Bob"}\n')
    with pytest.raises(DataError, match="the input has changed: its first 10 records"):
        stopped()
    Path("in.jsonl").write_text("".join(original.splitlines(keepends=True)[:4]))
    with pytest.raises(DataError, match="the input has changed"):
        stopped()
    Path("in.jsonl").write_text(original)
    assert stopped().records == COUNT


def test_unread_input_may_change(stopped):
    change(20, '{"id": 20, "text": "fixed"}\n')
    stopped()
    records = read("out.jsonl")
    assert [r["id"] for r in records] == list(range(COUNT)) and records[20]["text"] == "fixed"


def test_changed_options_and_model(stopped, model, tmp_path):
    with pytest.raises(DataError, match="an earlier run; the options changed since"):
        stopped({"threshold": 0.9})
    other = tmp_path / "other"
    shutil.copytree(model, other)
    (other / "README.md").write_text("a card changes nothing")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        DataError, match=r"the model changed since. .* remove out\.jsonl\.journal and"
    ):
        stopped(folder=other)
    assert stopped({"batch_size": 3}).records == COUNT


def test_two_runs_at_once(stopped):
    with (
        open("out.jsonl.journal", "ab") as held,
        pytest.raises(WriteError, match=r"another process is writing out\.jsonl"),
    ):
        import fcntl

        fcntl.flock(held, fcntl.LOCK_EX)
        stopped()
    assert stopped().records == COUNT


def test_missing_and_damaged_files(stopped):
    content = Path("out.jsonl.partial").read_bytes()
    Path("out.jsonl.partial").write_bytes(content[:10])
    with pytest.raises(DataError, match="does not begin with the 10 records in its journal"):
        stopped()
    assert Path("out.jsonl.partial").read_bytes() == content[:10]
    Path("out.jsonl.partial").write_bytes(content)
    journal = Path("out.jsonl.journal").read_bytes()
    Path("out.jsonl.journal").write_text("something else\n")
    with pytest.raises(DataError, match="not a journal of this command"):
        stopped()
    Path("out.jsonl.journal").unlink()
    with pytest.raises(WriteError, match=r"exists without its journal out\.jsonl\.journal"):
        stopped()
    Path("out.jsonl.journal").write_bytes(journal + b'{"records": 15')  # cut short
    assert stopped().records == COUNT
    assert [r["id"] for r in read("out.jsonl")] == list(range(COUNT))


def edit(path: str, old: bytes, new: bytes) -> None:
    content = Path(path).read_bytes()
    assert content.count(old) == 1
    Path(path).write_bytes(content.replace(old, new))


@pytest.mark.parametrize("name", ["records", "written"])
def test_changed_numbers_of_the_last_line(stopped, name):
    """The position before it is used."""
    last = json.loads(Path("out.jsonl.journal").read_bytes().splitlines()[-1].partition(b" ")[2])
    edit("out.jsonl.journal", b'"%s": %d' % (name.encode(), last[name]), b'"%s": 7' % name.encode())
    told: list[str] = []
    assert stopped(report=told.append).records == COUNT
    assert told == ["resuming: 5 records of out.jsonl are already written"]
    assert [r["id"] for r in read("out.jsonl")] == list(range(COUNT))


@pytest.mark.parametrize("damage", ["number", "removed", "swapped", "model", "cut"])
def test_damage_within_the_journal(stopped, damage):
    """Is an error that names the line; no file changes."""
    journal = Path("out.jsonl.journal")
    lines = journal.read_bytes().splitlines(keepends=True)
    first, *positions = lines
    assert len(positions) == 2
    changed = {
        "number": [first, positions[0].replace(b'"records": 5', b'"records": 6'), positions[1]],
        "removed": positions,
        "swapped": [first, positions[1], positions[0]],
        "model": [first.replace(b'"model": "', b'"model": "0'), *positions],
        "cut": [first[:30]],
    }[damage]
    journal.write_bytes(b"".join(changed))
    before = journal.read_bytes(), Path("out.jsonl.partial").read_bytes()
    bad = 2 if damage in ("number", "swapped") else 1
    with pytest.raises(DataError, match=rf"out\.jsonl\.journal:{bad}: this line .* is damaged"):
        stopped()
    assert (journal.read_bytes(), Path("out.jsonl.partial").read_bytes()) == before
    journal.write_bytes(b"".join(lines))
    assert stopped().records == COUNT


def test_changed_output(stopped):
    content = Path("out.jsonl.partial").read_bytes()
    edit("out.jsonl.partial", b"Ada met 4.", b"Ada met 5.")
    with pytest.raises(DataError, match=r"out\.jsonl\.partial has changed since the run stopped"):
        stopped()
    Path("out.jsonl.partial").write_bytes(content)
    assert stopped().records == COUNT


def test_changed_parquet_output(ner, model, work, monkeypatch):
    """Changed, missing and additional files of the output."""

    def go() -> Position:
        described, engine = ModelSpec.load(model, {}), partial(annotate_records, ner, {})
        given = find_sources(["in.jsonl"])
        return run.annotate(given, Path("out.parquet"), described, engine, print, part_rows=100)

    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, Journal, "append", 3)
        go()
    first, second = (Path(f"out.parquet.partial/part-0000{n}.parquet") for n in (0, 1))
    content = first.read_bytes()
    shutil.copy(second, first)
    with pytest.raises(DataError, match=r"out\.parquet\.partial has changed since"):
        go()
    first.unlink()
    with pytest.raises(DataError, match=r"out\.parquet\.partial has changed since"):
        go()
    assert len(list(Path("out.parquet.partial").iterdir())) == 2  # also the one never noted
    first.write_bytes(content)
    assert go().records == COUNT
    assert [r["id"] for r in read("out.parquet")] == list(range(COUNT))


def test_journal_of_an_older_version(stopped):
    Path("out.jsonl.journal").write_text('{"run": {"model": "a"}}\n{"records": 10}\n')
    with pytest.raises(
        DataError, match=r"written by version 0\.2 or older.* remove out\.jsonl\.journal and"
    ):
        stopped()


def test_another_file_under_the_name_of_the_output(stopped):
    """A journal that was left behind does not vouch for it."""
    Path("out.jsonl.partial").unlink()
    Path("out.jsonl").write_text("mine\n")
    with pytest.raises(WriteError, match="already exists"):
        stopped()
    assert Path("out.jsonl").read_text() == "mine\n" and Path("out.jsonl.journal").exists()


def test_the_input_grows_after_a_kill_at_the_very_end(stopped, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(Path, "unlink", lambda self, **_: (_ for _ in ()).throw(Crash))
        stopped()
    assert Path("out.jsonl").exists()
    with open("in.jsonl", "a") as file:
        file.write(json.dumps({"id": COUNT, "text": "Ada"}) + "\n")
    assert stopped().records == COUNT + 1
    assert [r["id"] for r in read("out.jsonl")] == list(range(COUNT + 1))


# --- Full disk ----------------------------------------------------------------------------------


def small_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then writing fails as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def test_file_size_limit(model, work):
    limited = start(model, "out.jsonl", preexec_fn=small_files)
    _, err = limited.communicate()
    assert limited.returncode and "out.jsonl.partial cannot be written: File too large" in err
    free = start(model, "out.jsonl")
    out, err = free.communicate()
    assert free.returncode == 0 and out.split()[-1] == str(COUNT), err
    assert [r["id"] for r in read("out.jsonl")] == list(range(COUNT))


@pytest.mark.parametrize(("target", "size"), [("out.jsonl", "20k"), ("out.parquet", "28k")])
def test_a_full_disk(model, work, target, size):
    """A real file system of some kilobytes, if one can be mounted."""
    script = f"""
set -e
mount -t tmpfs -o size={size} tmpfs small
"$0" -c "$1" in.jsonl small/{target} "$2" && exit 3 || true
ls small
mount -o remount,size=10m small
"$0" -c "$1" in.jsonl small/{target} "$2"
cp -r small/{target} .
"""
    Path("small").mkdir()
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if (
        shutil.which("unshare") is None
        or subprocess.run(
            [*unshare, "mount", "-t", "tmpfs", "tmpfs", "small"], capture_output=True
        ).returncode
    ):
        pytest.skip("no file system can be mounted here")
    done = subprocess.run(
        [*unshare, "bash", "-c", script, sys.executable, SLOW, str(model)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"{target}.partial cannot be written: No space left on device" in done.stderr
    assert f"{target}.journal" in done.stdout
    assert [r["id"] for r in read(target)] == list(range(COUNT))


@pytest.mark.parametrize("target", ["out.jsonl", "out.parquet"])
def test_message_of_a_full_disk(ner, model, work, monkeypatch, target):
    monkeypatch.setattr(writers, "FLUSH_RECORDS", 5)
    described, engine = ModelSpec.load(model, {}), partial(annotate_records, ner, {})
    written = 0

    def fsync(descriptor: int) -> None:
        nonlocal written
        written += 1
        if written == 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(WriteError, match=r"No space left on device\. \d+ records are safe") as full:
        run.annotate(
            find_sources(["in.jsonl"]), Path(target), described, engine, print, part_rows=5
        )
    safe = int(str(full.value).split(" records are safe")[0].split()[-1])
    assert 0 < safe < COUNT and safe % 5 == 0
    monkeypatch.undo()
    monkeypatch.chdir(work)
    run.annotate(find_sources(["in.jsonl"]), Path(target), described, engine, print)
    assert [r["id"] for r in read(target)] == list(range(COUNT))


def test_full_standard_output(model, work):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", SLOW, "in.jsonl", "-", str(model)],
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert done.returncode
    assert b"standard output cannot be written: No space left on device" in done.stderr
