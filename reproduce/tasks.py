"""One process at work on a run: training it, measuring points of it, or timing a shape."""

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
from reproduce.collect import POINTS, Shelf
from reproduce.plan import Job
from reproduce.sources import Sources
from reproduce.tables import Point

Stage = Literal["training", "points", "speed"]
COMMAND = [sys.executable, "-m", "reproduce"]
WORKER = [sys.executable, "-m", "reproduce.worker"]
OUTPUT = "output.txt"
_PATIENCE = 10.0  # seconds that a process has to end by itself


@dataclass
class Task:
    job: Job
    stage: Stage
    process: subprocess.Popen[bytes]
    lock: IO[str]
    output: Path
    points: int  # to be measured
    started: float

    def tell(self, number: signal.Signals) -> None:
        """A signal to it and to whatever it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def stop(self) -> None:
        """Wait until it has ended, as it was told to; not for ever."""
        try:
            self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.tell(signal.SIGKILL)
            self.process.wait()
        self.lock.close()

    def complaint(self) -> str:
        """What it said last, its error if it named one."""
        text = self.output.read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error:")]
        said = (errors or lines or ["nothing"])[-1].removeprefix("error: ")
        return f"{shorten(said, 200, placeholder=' ...')} (all it said: {self.output})"


def lock_folder(folder: Path) -> IO[str] | None:
    """A lock that is held until the last process that has it ends; None if another holds it.

    The process at work inherits it: one that outlives a killed parent is not joined by a second.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = open(folder / "lock", "a", encoding="utf-8")  # noqa: SIM115 - held while at work
    if not try_lock(file):
        file.close()
        return None
    return file


def start(
    job: Job,
    stage: Stage,
    points: list[Point],
    places: tuple[Shelf, Sources],
    threads: int | None,
    lock: IO[str],
) -> Task:
    shelf, sources = places
    folder = shelf.folder(job)
    if stage == "training":
        command = _train(job, folder, sources)
    else:
        command = _measure(job, folder, sources, points)
    environment = {**os.environ, "COLUMNS": "200"}
    if threads is not None:
        environment.setdefault("OMP_NUM_THREADS", str(threads))
    output = folder / OUTPUT
    with open(output, "w", encoding="utf-8") as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is ours to pass on
            pass_fds=(lock.fileno(),),
        )
    return Task(job, stage, process, lock, output, len(points), time.monotonic())


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
    splits = dict.fromkeys(point.split for point in points)
    files = {split: sources.file(job.corpus, split) for split in splits}
    asked = {
        "model": str(folder),
        "shape": job.shape,  # whose weights are random: there is no model, but its settings
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
    write_bytes(path, (json.dumps(asked, indent=1) + "\n").encode())
    return [*WORKER, str(path)]
