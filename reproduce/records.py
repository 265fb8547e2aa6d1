"""Records of runs: small JSON files with everything that the tables show. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from diffusionner.errors import DataError
from diffusionner.evaluation.counts import Counts, IntArray
from diffusionner.files import write_bytes
from reproduce.corpora import CORPORA
from reproduce.plan import flatten, recipe
from reproduce.tables import Point, RunRequest, Variant

FOLDER = "records"


@dataclass(frozen=True)
class Record:
    """One run: its settings, its training, and the points measured on it."""

    id: str
    values: dict[str, Any]

    @property
    def corpus(self) -> str:
        return str(self.values["corpus"])

    @property
    def method(self) -> str:
        return str(self.values["method"])

    @property
    def seed(self) -> int:
        return int(self.values["seed"])

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """Dev F1 after each epoch, with the sentences and seconds until then."""
        return list(self.values["training"]["epochs"])

    @property
    def parameters(self) -> int | None:
        return self.values.get("parameters")

    def has(self, point: Point) -> bool:
        return point.name in self.values["points"]

    def score(self, point: Point, name: str = "f1") -> float | None:
        """Return precision, recall or f1 as a fraction."""
        found = self.values["points"].get(point.name)
        return None if found is None else float(found["micro"][name])

    def apart(self, point: Point) -> tuple[Counts, Counts] | None:
        """Return the counts of contiguous and of discontinuous entities."""
        found = self.values["points"].get(point.name)
        if found is None:
            return None
        names = ("correct", "predicted", "gold")
        every, gapped = (
            [int(found.get(part, {}).get(name, 0)) for name in names]
            for part in ("micro", "discontinuous")
        )
        return Counts(*(a - b for a, b in zip(every, gapped, strict=True))), Counts(*gapped)

    def counts(self, point: Point) -> IntArray | None:
        """Return correct, predicted and gold entities of each sentence, [sentences, 3]."""
        found = self.values["points"].get(point.name, {}).get("counts")
        return None if found is None else decode_counts(found)

    def speed(self, point: Point) -> float | None:
        """Return the sentences per second, the median of several turns."""
        found = self.values["points"].get(point.name)
        return None if found is None else float(found["sentences_per_second"]["median"])

    def turns(self, point: Point) -> str:
        """Return the sentences per second of the slowest and the fastest turn."""
        found = self.values["points"][point.name]["sentences_per_second"]
        return f"{found['low']:.0f} to {found['high']:.0f}"

    @property
    def version(self) -> str:
        """Commit of the program that trained it, or else its version."""
        return str(self.values["commit"] or self.values["version"])

    def timed_by(self, point: Point) -> str:
        """Return the version that measured the speed; for early records, that of the run."""
        return str(self.values["points"][point.name].get("version") or self.version)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Settings as `section.key`."""
        return flatten(self.values["settings"])

    @cached_property
    def recipe(self) -> str:
        """Key that is equal for runs that differ only in the seed."""
        return recipe(self.values["encoder"], self.values["data"], self.settings)


class Records:
    """All records of a folder."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.all = sorted(records, key=lambda record: record.id)

    @classmethod
    def load(cls, output: Path) -> Records:
        return cls(read(path) for path in sorted((output / FOLDER).glob("*.json")))

    def select(
        self, corpus: str, method: str, variant: Variant, shape: str | None = None
    ) -> list[Record]:
        """Return the runs of one row of a table, ordered by seed.

        A run may only change settings of its preset that the row changes too; a row may change a
        setting to the preset's own value. If there are several recipes, the latest one counts.
        """
        asked = variant.encoder or CORPORA[corpus].encoder
        changes = dict(variant.changes)
        found = [
            record
            for record in self.all
            if (record.corpus, record.method) == (corpus, method)
            and record.values["shape"] == shape
            and record.values["encoder"]["stands_for"] == asked
            and set(record.values["changes"]) <= set(changes)
            and all(record.settings.get(k) == v for k, v in changes.items())
        ]
        if not found:
            return []
        last = max(found, key=lambda record: (record.values["date"], record.id)).recipe
        same = [record for record in found if record.recipe == last]
        return sorted(same, key=lambda record: record.seed)

    def of(self, request: RunRequest) -> list[Record]:
        """Return the records of one run."""
        found = self.select(request.corpus, request.method, request.variant, request.shape)
        return [record for record in found if record.seed == request.seed]


def encode_counts(counts: IntArray) -> str:
    """Return counts [sentences, 3] as a compact string: "correct/predicted/gold ..."."""
    return " ".join("/".join(map(str, row)) for row in counts.tolist())


def decode_counts(text: str) -> IntArray:
    rows = [[int(number) for number in row.split("/")] for row in text.split()]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def path_of(output: Path, id: str) -> Path:
    return output / FOLDER / f"{id}.json"


def read(path: Path) -> Record:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        needed = ("corpus", "method", "seed", "shape", "encoder", "changes", "settings", "data")
        lacking = [name for name in (*needed, "training", "points", "date") if name not in values]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{path} is not the record of a run ({error}); remove or restore it"
        ) from error
    if lacking:
        raise DataError(f"{path} lacks {', '.join(lacking)}; remove or restore it")
    return Record(path.stem, values)


def write(output: Path, record: Record) -> None:
    text = json.dumps(rounded(record.values), indent=1, ensure_ascii=False, sort_keys=True)
    write_bytes(path_of(output, record.id), (text + "\n").encode())


def rounded(values: Any) -> Any:
    """Round floats to six digits."""
    if isinstance(values, dict):
        return {key: rounded(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [rounded(value) for value in values]
    return float(f"{values:.6g}") if isinstance(values, float) else values
