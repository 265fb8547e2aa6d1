"""Tables of numbers, as Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

Unit = Literal["percent", "speed", "times", "millions", "number", "text"]
NONE = "–"
CSV_HEADER = ("section", "row", "column", "source", "mean", "sd", "runs", "text")


@dataclass(frozen=True)
class Cell:
    """Values of several runs, a text, or a number from the paper."""

    values: tuple[float, ...] = ()
    text: str = ""
    published: bool = False

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Cell:
        """Return a cell that is empty unless every run has a value."""
        found = list(values)
        return cls(tuple(v for v in found if v is not None) if None not in found else ())

    @classmethod
    def printed(cls, value: float | None) -> Cell:
        """Return a number of the paper."""
        return cls(() if value is None else (value,), published=True)

    @property
    def mean(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def sd(self) -> float | None:
        """Sample standard deviation; None for a single value."""
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Row:
    title: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Grid:
    title: str
    head: str  # heading of the first column
    columns: tuple[tuple[str, Unit], ...]
    rows: tuple[Row, ...]
    best: bool = True  # print the highest measured value of each column in bold

    def to_markdown(self) -> str:
        names = [self.head, *(name for name, _ in self.columns)]
        lines = [f"## {self.title}", "", _line(names), _line(["---"] * len(names))]
        highest = [self._highest(number) for number in range(len(self.columns))]
        for row in self.rows:
            parts = [row.title]
            for number, cell in enumerate(row.cells):
                text = _format(cell, self.columns[number][1])
                bold = not cell.published and cell.values and text == highest[number]
                parts.append(f"**{text}**" if bold else text)
            lines.append(_line(parts))
        return "\n".join(lines) + "\n"

    def _highest(self, column: int) -> str | None:
        """Return the text of the best measured value; None if there is a single row."""
        unit = self.columns[column][1]
        cells = [row.cells[column] for row in self.rows]
        found = [cell for cell in cells if cell.values and not cell.published]
        if not self.best or unit not in ("percent", "speed", "times") or len(found) < 2:
            return None
        return _format(max(found, key=lambda cell: cell.mean or 0.0), unit)

    def lines(self) -> Iterable[Sequence[str]]:
        """Yield a CSV line for each cell with content."""
        for row in self.rows:
            for (name, _), cell in zip(self.columns, row.cells, strict=True):
                if cell.values or cell.text:
                    source = "paper" if cell.published else "measured"
                    mean = "" if cell.mean is None else f"{cell.mean:.6g}"
                    sd = "" if cell.sd is None else f"{cell.sd:.6g}"
                    runs = str(len(cell.values)) if cell.values else ""
                    yield (self.title, row.title, name, source, mean, sd, runs, cell.text)


def to_csv(grids: Iterable[Grid]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for grid in grids:
        writer.writerows(grid.lines())
    return out.getvalue()


def _line(parts: Sequence[str]) -> str:
    return "| " + " | ".join(part.replace("|", "\\|") for part in parts) + " |"


def _format(cell: Cell, unit: Unit) -> str:
    if cell.mean is None:
        return cell.text or NONE
    mean, sd = cell.mean, cell.sd
    if unit == "percent":
        return f"{mean:.2f}" + ("" if sd is None else f" ± {sd:.2f}")
    if unit == "times":
        return f"{mean:.2f}×"
    if unit == "millions":
        return f"{mean:.1f}M"
    if unit == "speed":
        return f"{mean:.0f}" if mean >= 100 else f"{mean:.2f}"
    return f"{mean:.1f}" + ("" if sd is None else f" ± {sd:.1f}")
