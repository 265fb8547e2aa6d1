"""Folders of runs and their records."""

from __future__ import annotations

import datetime
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
from reproduce.progress import Occupancy, RunProgress
from reproduce.records import Record
from reproduce.tables import Point

POINTS = "points.jsonl"
COMMIT = "DIFFUSIONNER_COMMIT"  # environment variable that names the code outside a clone


@dataclass(frozen=True)
class RunStore:
    """Runs in the work folder, and their records in the output folder."""

    work: Path
    output: Path

    def folder(self, job: Job) -> Path:
        return self.work / job.id

    def record(self, job: Job) -> Record | None:
        path = records.path_of(self.output, job.id)
        return records.read(path) if path.exists() else None

    def progress(self, job: Job, occupancy: Occupancy) -> RunProgress:
        batch_size = job.settings["training"]["batch_size"]
        sentences = job.data["train"]["sentences"]
        return progress.read(self.folder(job), batch_size, sentences, occupancy)

    def is_trained(self, job: Job) -> bool:
        return records.path_of(self.output, job.id).exists()

    def has_weights(self, job: Job) -> bool:
        return (self.folder(job) / "model.safetensors").exists()

    def record_training(self, job: Job, occupancy: Occupancy) -> None:
        """Write the record of a trained run and delete its training state."""
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
        records.write(self.output, Record(job.id, {**_describe(job), "training": training}))
        (self.folder(job) / STATE_FILE).unlink(missing_ok=True)

    def record_points(self, job: Job) -> None:
        """Move new measurements into the record; a shape's record begins with them."""
        record, path = self.record(job), self.folder(job) / POINTS
        if record is None and job.shape is not None:
            record = Record(job.id, {**_describe(job), "training": None})
        if record is None or not path.exists():
            return
        values = dict(record.values)
        points = dict(values["points"])
        for line in progress.json_lines(path):
            if "about" in line:
                values |= line["about"]
            else:
                points[line["point"]] = line["result"]
        records.write(self.output, Record(job.id, {**values, "points": points}))
        path.unlink()

    def count_points(self, job: Job) -> int:
        """Return the number of measurements that are not in the record yet."""
        return sum("point" in line for line in progress.json_lines(self.folder(job) / POINTS))

    def missing(self, job: Job, kinds: Iterable[str]) -> list[Point]:
        record = self.record(job)  # read once: the view asks every second
        return [
            one
            for one in job.points.values()
            if one.kind in kinds and (record is None or not record.has(one))
        ]


def _describe(job: Job) -> dict[str, Any]:
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
    """Return the commit of the running code, from the environment or from git."""
    if named := os.environ.get(COMMIT):
        return named
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
