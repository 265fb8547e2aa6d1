"""Contents of a rendered table, and the rows and cells that all layouts share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from reproduce.corpora import CORPORA, MAIN_METHOD, METHODS
from reproduce.grids import Cell, Grid, Row
from reproduce.records import Record, Records, rounded
from reproduce.tables import ALONE_TITLE, TIMED, Point, Table, Variant

DEFAULT = Variant()


@dataclass(frozen=True)
class Plot:
    """A figure that depends on nothing but `data`."""

    name: str
    kind: Literal["dots", "lines", "trajectory"]
    data: dict[str, Any]

    @property
    def digest(self) -> str:
        text = json.dumps([self.kind, rounded(self.data)], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass
class Page:
    text: list[str]  # paragraphs before the tables
    grids: list[Grid] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)


class TableRecords:
    """Records as one table uses them; remembers which were used, for the list of runs."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.used: dict[str, Record] = {}

    def runs(
        self,
        corpus: str,
        method: str = MAIN_METHOD,
        variant: Variant = DEFAULT,
        points: Sequence[Point] = (),
        shape: str | None = None,
    ) -> list[Record]:
        """Return the runs that have all these points, ordered by seed."""
        found = self.records.select(corpus, method, variant, shape)
        found = [record for record in found if all(record.has(point) for point in points)]
        self.used.update((record.id, record) for record in found)
        return found

    def f1(
        self,
        corpus: str,
        point: Point,
        method: str = MAIN_METHOD,
        variant: Variant = DEFAULT,
        name: str = "f1",
    ) -> Cell:
        """Return a score in percent over the seeds."""
        found = self.runs(corpus, method, variant, [point])
        return percent(record.score(point, name) for record in found)

    def speed(self, corpus: str, point: Point, method: str = MAIN_METHOD) -> Cell:
        return Cell.of(run.speed(point) for run in self.runs(corpus, method, TIMED, [point]))

    def corpora(self, table: Table) -> list[str]:
        """Return the corpora that have runs."""
        methods = list(dict.fromkeys(name for need in table.needs for name in need.methods))
        return [
            corpus
            for corpus in table.corpora
            if any(self.records.select(corpus, method, DEFAULT) for method in methods)
        ]


Layout = Callable[[Table, TableRecords], Page]


def percent(fractions: Iterable[float | None]) -> Cell:
    return Cell.of(None if one is None else 100 * one for one in fractions)


def non_empty(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Drop rows without any value, except that of the initializer alone beside others."""
    rows = tuple(rows)
    filled = [row for row in rows if any(cell.values or cell.text for cell in row.cells)]
    return tuple(row for row in rows if filled and (row in filled or ALONE_TITLE in row.title))


def about_alone(grids: Iterable[Grid]) -> str:
    """Explain the rows and columns of the initializer alone, and say if one is not recorded."""
    cells = [
        cell
        for grid in grids
        for row in grid.rows
        for (column, unit), cell in zip(grid.columns, row.cells, strict=True)
        if unit == "percent" and (column.endswith(ALONE_TITLE) or row.title.endswith(ALONE_TITLE))
    ]
    text = (
        f"`{ALONE_TITLE}` is the same weights with `steps=0`: the initializer's candidates as it "
        "scores them, without denoising, with scores and thresholds of its own, fitted on dev."
    )
    if all(cell.values for cell in cells):
        return text
    return f"{text} Where it says –, the runs were measured before, and it is not yet recorded."


def mean_and_sd(cells: Iterable[Cell]) -> dict[str, list[float | None]]:
    """Return means and standard deviations for a plot."""
    chosen = list(cells)
    return {"mean": [cell.mean for cell in chosen], "sd": [cell.sd for cell in chosen]}


def runs_grid(used: Iterable[Record]) -> Grid:
    """Return the settings and seeds behind a table."""
    groups: dict[str, list[Record]] = {}
    for record in used:
        groups.setdefault(f"{record.corpus} {record.method} {record.recipe}", []).append(record)
    columns = ("encoder", "seeds", "epochs", "batch", "learning rates", "sentences", "parameters")
    return Grid(
        "Runs",
        "run",
        tuple((name, "text") for name in (*columns, "version", "machine")),
        tuple(_run_row(group) for group in groups.values()),
        best=False,
    )


def _run_row(group: list[Record]) -> Row:
    first = group[0].values
    training = first["settings"]["training"]
    changed = [f"{key}={value}" for key, value in first["changes"].items()]
    if first["shape"]:
        changed.append("random weights")
    elif first["encoder"]["stands_for"] != CORPORA[first["corpus"]].encoder:
        changed.append(first["encoder"]["name"])
    title = ", ".join([CORPORA[first["corpus"]].title, METHODS[first["method"]].title, *changed])
    versions = dict.fromkeys(one.version for one in group)
    machine = first.get("machine") or {}
    frozen = training["frozen_epochs"]
    trained = not first["shape"]
    texts = (
        first["encoder"]["name"],
        ", ".join(map(str, sorted(record.seed for record in group))) if trained else "",
        f"{frozen} + {training['epochs']}" if frozen else str(training["epochs"]),
        str(training["batch_size"]),
        f"{training['encoder_learning_rate']:g}, {training['learning_rate']:g}",
        f"{first['data']['train']['sentences']:,}",
        f"{group[0].parameters / 1e6:.1f}M" if group[0].parameters else "",
        ", ".join(versions),
        str(machine.get("gpu") or machine.get("processor") or ""),
    )
    shown = texts if trained else (*texts[:2], "", "", "", *texts[5:])
    return Row(title, tuple(Cell(text=text) for text in shown))
