"""What is kept of a run: a small JSON file with all that the tables show. It needs no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from diffusionner.errors import DataError
from diffusionner.files import write_bytes
from reproduce.corpora import CORPORA
from reproduce.plan import flat, recipe
from reproduce.tables import Point, Variant

FOLDER = "records"


@dataclass(frozen=True)
class Record:
    """One run: what it is, how training went, and the points measured since."""

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
        """Dev F1 after each epoch, with sentences and seconds until then."""
        return list(self.values["training"]["epochs"])

    @property
    def parameters(self) -> int | None:
        return self.values.get("parameters")

    def has(self, point: Point) -> bool:
        return point.name in self.values["points"]

    def score(self, point: Point, name: str = "f1") -> float | None:
        """A fraction of all entities: precision, recall or f1."""
        found = self.values["points"].get(point.name)
        return None if found is None else float(found["micro"][name])

    def speed(self, point: Point) -> float | None:
        """Sentences a second: the median of several turns."""
        found = self.values["points"].get(point.name)
        return None if found is None else float(found["sentences_per_second"]["median"])

    def turns(self, point: Point) -> str:
        """Sentences a second in the slowest and in the fastest turn."""
        found = self.values["points"][point.name]["sentences_per_second"]
        return f"{found['low']:.0f} to {found['high']:.0f}"

    @property
    def version(self) -> str:
        """Of the program that trained it: the commit, where it is known."""
        return str(self.values["commit"] or self.values["version"])

    def timed_by(self, point: Point) -> str:
        """The version that measured the speed; of early ones, that of the run."""
        return str(self.values["points"][point.name].get("version") or self.version)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """As `section.key`."""
        return flat(self.values["settings"])

    @cached_property
    def recipe(self) -> str:
        """Equal for runs that differ by nothing but the seed."""
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
        """The runs behind one row, by seed.

        What a run changed of its preset must be among what the row changes; what the row changes
        to the preset's own value is no change. Where there are several recipes, the one that was
        run last counts.
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


def path_of(output: Path, id: str) -> Path:
    return output / FOLDER / f"{id}.json"


def read(path: Path) -> Record:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        needed = ("corpus", "method", "seed", "shape", "encoder", "changes", "settings", "data")
        lacking = [name for name in (*needed, "training", "points", "date") if name not in values]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} is no record of a run ({error}); remove or restore it") from error
    if lacking:
        raise DataError(f"{path} lacks {', '.join(lacking)}; remove or restore it")
    return Record(path.stem, values)


def write(output: Path, record: Record) -> None:
    text = json.dumps(rounded(record.values), indent=1, ensure_ascii=False, sort_keys=True)
    write_bytes(path_of(output, record.id), (text + "\n").encode())


def rounded(values: Any) -> Any:
    """Floats to six digits: more would only be noise in the files."""
    if isinstance(values, dict):
        return {key: rounded(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [rounded(value) for value in values]
    return float(f"{values:.6g}") if isinstance(values, float) else values


def seeds_of(records: Sequence[Record]) -> str:
    return ", ".join(str(record.seed) for record in records)
