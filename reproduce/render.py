"""From records to Markdown, CSV and figures. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from diffusionner.files import bytes_writer, write_all_or_none
from reproduce import curves, efficiency, gaps, layouts, plots
from reproduce.grids import to_csv
from reproduce.pages import Layout, Page, Plot, TableRecords, runs_grid
from reproduce.records import Records
from reproduce.tables import TABLES, Table

NOTES = "notes"
LAYOUTS: dict[str, Layout] = {
    "nested": layouts.results,
    "flat": layouts.results,
    "efficiency": efficiency.efficiency,
    "ablations": layouts.ablations,
    "tuning": layouts.tuning,
    "benefit": layouts.benefit,
    "discontinuous": gaps.discontinuous,
    "steps": curves.steps,
    "spans": curves.spans,
    "convergence": curves.convergence,
    "limitations": curves.limitations,
    "figures": curves.figures,
}
# Files that a table without runs may have left behind.
_ENDINGS = (".md", ".csv", *(f".{kind}" for kind in plots.KINDS))


@dataclass
class Rendered:
    texts: dict[str, str]  # file name → content
    plots: list[Plot]


def render(table: Table, records: Records, output: Path) -> Rendered | None:
    """Return the files of a table; None if there are no runs to show."""
    used = TableRecords(records)
    page = LAYOUTS[table.name](table, used)
    if not used.used:
        return None
    notes = output / NOTES / f"{table.name}.md"
    comment = notes.read_text(encoding="utf-8") if notes.exists() else ""
    runs = runs_grid(used.used.values())
    texts = {
        f"{table.name}.md": _markdown(table, page, runs.to_markdown(), comment),
        f"{table.name}.csv": to_csv([*page.grids, runs]),
    }
    return Rendered(texts, page.plots)


def write(tables: Iterable[Table], output: Path, redraw: bool = True) -> dict[str, list[Path]]:
    """Write the files of each table; none if it has no runs.

    redraw: also draw figures whose data has not changed, which takes seconds.
    """
    records = Records.load(output)
    written: dict[str, list[Path]] = {}
    for table in tables:
        rendered = render(table, records, output)
        written[table.name] = []
        if rendered is None:
            continue
        writers: dict[Path, Callable[[Path], None]] = {
            output / name: bytes_writer(text.encode()) for name, text in rendered.texts.items()
        }
        if rendered.plots:
            plots.check(output)
        for plot in rendered.plots:
            if redraw or not all(plots.agrees(path, plot) for path in plots.paths(plot, output)):
                writers |= {output / name: write for name, write in plots.writers(plot).items()}
        write_all_or_none(writers)
        drawn = [path for plot in rendered.plots for path in plots.paths(plot, output)]
        written[table.name] = [*(output / name for name in rendered.texts), *drawn]
    return written


def disagreements(output: Path, tables: Iterable[Table] = tuple(TABLES.values())) -> list[str]:
    """Return a message for each file that does not agree with the records."""
    records = Records.load(output)
    found: list[str] = []
    for table in tables:
        rendered = render(table, records, output)
        if rendered is None:
            left = [output / f"{table.name}{ending}" for ending in _ENDINGS]
            found += [f"{path}: has no runs" for path in left if path.exists()]
            continue
        for name, text in rendered.texts.items():
            path = output / name
            if not path.exists():
                found.append(f"{path} is missing")
            elif (place := _first_difference(path.read_text(encoding="utf-8"), text)) is not None:
                found.append(f"{path}, line {place}: does not agree with the records")
        for plot in rendered.plots:
            wrong = [path for path in plots.paths(plot, output) if not plots.agrees(path, plot)]
            found += [f"{path}: missing, or drawn from other data" for path in wrong]
    return found


def _markdown(table: Table, page: Page, runs: str, notes: str) -> str:
    pictures = [f"![{plot.name}]({plot.name}.svg)" for plot in page.plots]
    source = (
        f"Written by `python -m reproduce render {table.name}` from the [records](records) of the "
        f"runs; `python -m reproduce {table.name}` runs what is missing. See "
        f"[README.md](README.md). The numbers are also in [{table.name}.csv]({table.name}.csv)."
    )
    first, *more = page.text
    parts = [f"# {table.title}", first]
    if more:
        parts.append("\n".join(f"- {line}" for line in more))
    if notes.strip():
        parts.append(notes.strip())
    parts += [*pictures, *(grid.to_markdown().strip() for grid in page.grids)]
    return "\n\n".join([*parts, runs.strip(), source]) + "\n"


def _first_difference(one: str, other: str) -> int | None:
    """Return the number of the first line that differs."""
    if one == other:
        return None
    lines, others = one.splitlines(), other.splitlines()
    for number, (a, b) in enumerate(zip(lines, others, strict=False), 1):
        if a != b:
            return number
    return min(len(lines), len(others)) + 1
