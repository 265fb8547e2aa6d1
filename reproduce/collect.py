"""From the folder of a run to its record: the log of training, and the points measured."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffusionner import __version__
from diffusionner.storage.config import STATE_FILE
from reproduce import progress, records
from reproduce.plan import Job
from reproduce.progress import Occupancy, Progress
from reproduce.records import Record
from reproduce.tables import Point

POINTS = "points.jsonl"
COMMIT = "DIFFUSIONNER_COMMIT"  # names the code where it is no clone


@dataclass(frozen=True)
class Shelf:
    """Where runs lie and where their records are kept."""

    work: Path
    output: Path

    def folder(self, job: Job) -> Path:
        return self.work / job.id

    def record(self, job: Job) -> Record | None:
        path = records.path_of(self.output, job.id)
        return records.read(path) if path.exists() else None

    def progress(self, job: Job, occupancy: Occupancy) -> Progress:
        batch_size = job.settings["training"]["batch_size"]
        sentences = job.data["train"]["sentences"]
        return progress.read(self.folder(job), batch_size, sentences, occupancy)

    def is_trained(self, job: Job) -> bool:
        return records.path_of(self.output, job.id).exists()

    def has_weights(self, job: Job) -> bool:
        return (self.folder(job) / "model.safetensors").exists()

    def keep_training(self, job: Job, occupancy: Occupancy) -> None:
        """Write the record of a run that is trained; the state to resume from can go then."""
        done = self.progress(job, occupancy)
        training = {
            "epochs": [epoch.to_dict() for epoch in done.epochs],
            "best_epoch": done.best_epoch,
            "dev_f1": done.best_f1,
            "seconds": round(done.seconds, 1),
            "gpu_seconds": round(done.gpu_seconds, 1),
            "evaluation_seconds": round(done.evaluation_seconds, 1),
            "sentences_per_second": round(done.mean_speed, 1),
        }
        records.write(self.output, Record(job.id, {**_about(job), "training": training}))
        (self.folder(job) / STATE_FILE).unlink(missing_ok=True)

    def keep_points(self, job: Job) -> None:
        """Put what was measured since into the record; that of a shape begins with it."""
        record, path = self.record(job), self.folder(job) / POINTS
        if record is None and job.shape is not None:
            record = Record(job.id, {**_about(job), "training": None})
        if record is None or not path.exists():
            return
        values = dict(record.values)
        points = dict(values["points"])
        for line in _json_lines(path):
            if "about" in line:
                values |= line["about"]
            else:
                points[line["point"]] = line["result"]
        records.write(self.output, Record(job.id, {**values, "points": points}))
        path.unlink()

    def count_points(self, job: Job) -> int:
        """Those measured that are not in the record yet."""
        path = self.folder(job) / POINTS
        return sum("point" in line for line in _json_lines(path)) if path.exists() else 0

    def missing(self, job: Job, kinds: Iterable[str]) -> list[Point]:
        record = self.record(job)  # read once: the view asks every second
        return [
            one
            for one in job.points.values()
            if one.kind in kinds and (record is None or not record.has(one))
        ]


def _about(job: Job) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "corpus": job.corpus,
        "method": job.method,
        "seed": job.seed,
        "shape": job.shape,
        "encoder": job.encoder,
        "changes": job.changes,
        "settings": job.settings,
        "data": job.data,
        "points": {},
        "version": __version__,
        "commit": commit(),
        "date": now.isoformat(timespec="seconds"),
    }


def commit() -> str | None:
    """Of the code that runs: what the environment says, or where it is a clone."""
    if told := os.environ.get(COMMIT):
        return told
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _json_lines(path: Path) -> Iterable[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue  # torn by a kill
