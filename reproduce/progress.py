"""Progress and cost of a run, read from the log of its training."""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OCCUPANCY = "occupancy.jsonl"


@dataclass(frozen=True)
class Epoch:
    """Dev F1 after an epoch, and the cost of training until then, without evaluation."""

    epoch: int
    f1: float
    sentences: int
    seconds: float
    gpu_seconds: float  # share of `seconds` when several runs use the GPU

    def to_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "f1": self.f1,
            "sentences": self.sentences,
            "seconds": round(self.seconds, 1),
            "gpu_seconds": round(self.gpu_seconds, 1),
        }


@dataclass
class RunProgress:
    step: int = 0
    epochs: list[Epoch] = field(default_factory=list)
    best_epoch: int = 0
    speed: float = 0.0  # latest sentences per second
    seconds: float = 0.0  # of training
    gpu_seconds: float = 0.0
    evaluation_seconds: float = 0.0

    @property
    def best_f1(self) -> float | None:
        return max((epoch.f1 for epoch in self.epochs), default=None)

    @property
    def mean_speed(self) -> float:
        return self.epochs[-1].sentences / self.seconds if self.epochs and self.seconds else 0.0


class Occupancy:
    """Number of runs that share the device over time, kept in the work folder."""

    def __init__(self, work: Path) -> None:
        self.path = work / OCCUPANCY
        self.times: list[float] = []
        self.counts: list[int] = []
        for record in json_lines(self.path):
            self.times.append(record["time"])
            self.counts.append(record["runs"])

    def set(self, runs: int) -> None:
        if self.counts and self.counts[-1] == runs:
            return
        now = time.time()
        self.times.append(now)
        self.counts.append(runs)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"time": round(now, 3), "runs": runs}) + "\n")

    def share(self, start: float, end: float) -> float:
        """Return the seconds between two times, each divided by the number of runs at that time."""
        total, at = 0.0, start
        index = bisect_right(self.times, start) - 1
        while at < end:
            following = self.times[index + 1] if index + 1 < len(self.times) else end
            until = min(following, end)
            total += (until - at) / max(1, self.counts[index] if index >= 0 else 1)
            at, index = until, index + 1
        return total


def read(folder: Path, batch_size: int, sentences: int, occupancy: Occupancy) -> RunProgress:
    """Read `log.jsonl` of a run that trains on this many sentences.

    Each line has the speed since the previous one. Evaluation, and the time between stopping and
    resuming a run, are therefore not counted.
    """
    progress = RunProgress()
    per_epoch = -(-sentences // batch_size)
    seen = 0
    for line in json_lines(folder / "log.jsonl"):
        step = int(line["step"])
        whole, part = divmod(step, per_epoch)
        reached = whole * sentences + min(part * batch_size, sentences)
        progress.step = step
        if "sentences_per_second" in line:
            progress.speed = float(line["sentences_per_second"])
            taken = (reached - seen) / progress.speed
            progress.seconds += taken
            progress.gpu_seconds += occupancy.share(line["time"] - taken, line["time"])
            seen = reached
        elif "f1" in line:
            progress.best_epoch = int(line["best"])
            progress.evaluation_seconds += float(line.get("evaluation_seconds", 0.0))
            progress.epochs.append(
                Epoch(
                    int(line["epoch"]),
                    float(line["f1"]),
                    reached,
                    progress.seconds,
                    progress.gpu_seconds,
                )
            )
    return progress


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete JSON lines of a file; none if it does not exist."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue  # being written, or cut off by a kill
