"""Subprocesses that train a run, measure points on it, or time a shape."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import IO, Literal

from diffusionner.files import try_lock, write_bytes
from diffusionner.storage.config import STATE_FILE
from reproduce.plan import Job
from reproduce.sources import Sources
from reproduce.store import POINTS, RunStore
from reproduce.tables import Point

Stage = Literal["training", "points", "speed"]
COMMAND = [sys.executable, "-m", "reproduce"]
WORKER = [sys.executable, "-m", "reproduce.worker"]
OUTPUT = "output.txt"
_PATIENCE = 10.0  # seconds to wait for a process to end


@dataclass
class WorkerProcess:
    job: Job
    stage: Stage
    process: subprocess.Popen[bytes]
    lock: IO[str]
    output: Path
    points: int  # to measure
    started: float

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def stop(self) -> None:
        """Wait for the process to end after SIGTERM; kill it after a while."""
        try:
            self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.send_signal(signal.SIGKILL)
            self.process.wait()
        self.lock.close()

    def error_message(self) -> str:
        """Return its last line of output, or its error message if there is one."""
        text = self.output.read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error:")]
        last = (errors or lines or ["no output"])[-1].removeprefix("error: ")
        return f"{shorten(last, 200, placeholder=' ...')} (full output: {self.output})"


def lock_folder(folder: Path) -> IO[str] | None:
    """Return a lock on the folder, or None if another process holds it.

    The subprocess inherits the lock: if it outlives a killed parent, no second one starts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = open(folder / "lock", "a", encoding="utf-8")  # noqa: SIM115 - held while the process runs
    if not try_lock(file):
        file.close()
        return None
    return file


def start(
    job: Job,
    stage: Stage,
    points: list[Point],
    places: tuple[RunStore, Sources],
    threads: int | None,
    lock: IO[str],
) -> WorkerProcess:
    store, sources = places
    folder = store.folder(job)
    if stage == "training":
        command = _train(job, folder, sources)
    else:
        command = _measure(job, folder, sources, points)
    # The package is run from a clone, which need not be the working directory.
    clone = str(Path(__file__).parents[1])
    search_path = os.pathsep.join(filter(None, [clone, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "COLUMNS": "200", "PYTHONPATH": search_path}
    if threads is not None:
        environment.setdefault("OMP_NUM_THREADS", str(threads))
    output = folder / OUTPUT
    with open(output, "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # the runner passes Ctrl-C on
            pass_fds=(lock.fileno(),),
        )
    return WorkerProcess(job, stage, process, lock, output, len(points), time.monotonic())


def _train(job: Job, folder: Path, sources: Sources) -> list[str]:
    return [
        *COMMAND,
        "train",
        str(sources.preset(job.corpus)),
        "training.checkpoint_minutes=2",
        *job.overrides,
        f"training.output={json.dumps(str(folder))}",
        *(["--resume"] if (folder / STATE_FILE).exists() else []),
    ]


def _measure(job: Job, folder: Path, sources: Sources, points: list[Point]) -> list[str]:
    splits = dict.fromkeys(["dev", *(point.split for point in points)])  # dev fits thresholds
    files = {split: sources.file(job.corpus, split) for split in splits}
    request = {
        "model": str(folder),
        "shape": job.shape,  # with random weights: settings instead of a model
        "preset": str(sources.preset(job.corpus)),
        "overrides": [one for one in job.overrides if not one.startswith("encoder.name=")],
        "files": {split: [str(path), format] for split, (path, format) in files.items()},
        "points": [
            {
                "name": point.name,
                "kind": point.kind,
                "split": point.split,
                "options": dict(point.options),
            }
            for point in points
        ],
        "out": str(folder / POINTS),
    }
    path = folder / "points.json"
    write_bytes(path, (json.dumps(request, indent=1) + "\n").encode())
    return [*WORKER, str(path)]
