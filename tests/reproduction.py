"""Made-up corpora, runs and records for the tests of `python -m reproduce`."""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from corpus_files import EXCERPT

from reproduce import records
from reproduce.plan import Job, plan
from reproduce.records import Record
from reproduce.sources import Sources
from reproduce.tables import SHAPE_GAMMAS, Point, Table, find, shape_point

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = {
    "genia": ("train_dev.jsonl", "test.jsonl"),
    "conll03": ("train.jsonl", "dev.jsonl", "test.jsonl"),
    "more/cadec": ("train.jsonl.gz", "dev.jsonl.gz", "test.jsonl.gz"),
}


def write_corpora(folder: Path, names: Iterable[str] = tuple(FILES)) -> Path:
    """Write corpora of twenty sentences per file, all different, with entities of two types."""
    lines = re.sub('"(FAC|GPE|LOC|VEH|ORG)"', '"LOC"', EXCERPT.read_text("utf-8")).splitlines()
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for part, file in enumerate(FILES[name]):
            at = 100 * number + 20 * part
            text = "\n".join(lines[at : at + 20]) + "\n"
            opened = gzip.open if file.endswith(".gz") else open
            with opened(folder / name / file, "wt", encoding="utf-8") as out:
                out.write(text)
    return folder


def sources(tmp_path: Path, encoder: Path | None = None, *changes: str) -> Sources:
    data = tmp_path / "data"
    if not data.exists():
        write_corpora(data)
    if encoder is None:
        encoder = tmp_path / "encoders" / "e5-small"
        encoder.mkdir(parents=True, exist_ok=True)
        (encoder / "config.json").write_text("{}")
    settings = ("data.dev_from_train=10", *changes)
    return Sources(data, CONFIGS, (str(encoder),), tmp_path / "work", settings)


def jobs(table: str | Table, where: Sources, seeds: int = 1, only: Iterable[str] = ()) -> list[Job]:
    chosen = find([table]) if isinstance(table, str) else [table]
    return plan(chosen, seeds, where, tuple(only)).jobs


def write_records(output: Path, wanted: Iterable[Job]) -> list[Record]:
    """Write records of runs with random numbers, drawn from a generator of each run's own."""
    made = [_record(job) for job in wanted]
    for record in made:
        records.write(output, record)
    return [records.read(records.path_of(output, record.id)) for record in made]


def _record(job: Job) -> Record:
    draw = random.Random(job.id)
    points: Iterable[Point] = job.points.values()
    if job.shape:
        gammas = SHAPE_GAMMAS if job.method == "diffusion" else (None,)
        points = [shape_point(gamma) for gamma in gammas]
    epochs = [
        {
            "epoch": epoch,
            "f1": 0.8 - 0.3**epoch + draw.random() / 1000,
            "sentences": 10 * epoch,
            "seconds": 60.0 * epoch,
            "gpu_seconds": 30.0 * epoch,
        }
        for epoch in range(1, job.epochs + 1)
    ]
    training = {
        "epochs": epochs,
        "best_epoch": job.epochs,
        "dev_f1": max(epoch["f1"] for epoch in epochs),
        "seconds": 60.0 * job.epochs,
        "gpu_seconds": 30.0 * job.epochs,
        "evaluation_seconds": 1.0,
        "sentences_per_second": 100.0,
    }
    values = {
        "corpus": job.corpus,
        "method": job.method,
        "seed": job.seed,
        "shape": job.shape,
        "encoder": job.encoder,
        "changes": job.changes,
        "settings": job.settings,
        "data": job.data,
        "version": "0.1.0",
        "commit": "abc1234",
        "date": "2026-01-01T00:00:00+00:00",
        "machine": {"gpu": "a GPU"},
        "parameters": 33_000_000,
        "training": None if job.shape else training,
        "points": {point.name: _result(point, draw) for point in points},
    }
    return Record(job.id, values)


def _result(point: Point, draw: random.Random) -> dict[str, Any]:
    if point.kind == "speed":
        speed = 1000 * draw.random() + 100
        return {"sentences_per_second": {"median": speed, "low": speed, "high": speed}}
    if point.kind == "trajectory":
        span = {"noisy": [0, 1], "restored": [1, 1], "label": "DNA", "score": 0.5}
        steps = [{"timestep": t, "spans": [span, {**span, "label": None}]} for t in (100, 50)]
        return {"words": ["one", "two", "three"], "steps": steps}
    scores = {name: 0.7 + draw.random() / 10 for name in ("precision", "recall", "f1")}
    counts = {"correct": 70, "predicted": 100, "gold": 90}
    gapped = {"correct": 10, "predicted": 15 + int(1000 * scores["f1"]) % 10, "gold": 30}
    result = {"micro": scores | counts, "discontinuous": gapped, "sentences": 10}
    if point.split == "test":
        by_sentence = [[draw.randint(0, 2), 2, 3] for _ in range(10)]
        result["counts"] = records.encode_counts(np.array(by_sentence))
    return result
