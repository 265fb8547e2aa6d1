"""From records to files: Markdown, CSV and pictures of each table. Seconds, and no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from diffusionner.files import bytes_writer, write_all_or_none
from reproduce import curves, efficiency, layouts, plots
from reproduce.grids import to_csv
from reproduce.records import Records
from reproduce.sheets import Layout, Plot, Sheet, Shown, list_of_runs
from reproduce.tables import TABLES, Table

NOTES = "notes"
LAYOUTS: dict[str, Layout] = {
    "nested": layouts.results,
    "flat": layouts.results,
    "efficiency": efficiency.efficiency,
    "ablations": layouts.ablations,
    "tuning": layouts.tuning,
    "steps": curves.steps,
    "spans": curves.spans,
    "convergence": curves.convergence,
    "limitations": curves.limitations,
    "figures": curves.figures,
}
# What a table that is no longer there may have left.
_ENDINGS = (".md", ".csv", *(f".{kind}" for kind in plots.KINDS))


@dataclass
class Rendered:
    texts: dict[str, str]  # file name → content
    plots: list[Plot]


def render(table: Table, records: Records, output: Path) -> Rendered | None:
    """None where there are no runs to show."""
    shown = Shown(records)
    sheet = LAYOUTS[table.name](table, shown)
    if not shown.used:
        return None
    notes = output / NOTES / f"{table.name}.md"
    said = notes.read_text(encoding="utf-8") if notes.exists() else ""
    runs = list_of_runs(shown.used.values())
    texts = {
        f"{table.name}.md": _markdown(table, sheet, runs.to_markdown(), said),
        f"{table.name}.csv": to_csv([*sheet.grids, runs]),
    }
    return Rendered(texts, sheet.plots)


def write(tables: Iterable[Table], output: Path, redraw: bool = True) -> dict[str, list[Path]]:
    """Write what the records give: the files of each table, none where it has no runs.

    redraw: also the pictures that were drawn from the same numbers before, which takes seconds.
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
    """What in the folder is not what its records give, each in a line."""
    records = Records.load(output)
    found: list[str] = []
    for table in tables:
        rendered = render(table, records, output)
        if rendered is None:
            left = [output / f"{table.name}{ending}" for ending in _ENDINGS]
            found += [f"{path}: no run is behind it" for path in left if path.exists()]
            continue
        for name, text in rendered.texts.items():
            path = output / name
            if not path.exists():
                found.append(f"{path} is missing")
            elif (place := _first_difference(path.read_text(encoding="utf-8"), text)) is not None:
                found.append(f"{path}, line {place}: not what the records give")
        for plot in rendered.plots:
            wrong = [path for path in plots.paths(plot, output) if not plots.agrees(path, plot)]
            found += [f"{path}: missing, or drawn from other numbers" for path in wrong]
    return found


def _markdown(table: Table, sheet: Sheet, runs: str, notes: str) -> str:
    pictures = [f"![{plot.name}]({plot.name}.svg)" for plot in sheet.plots]
    source = (
        f"Written by `python -m reproduce render {table.name}` from the [records](records) of the "
        f"runs, which `python -m reproduce {table.name}` makes; see [README.md](README.md). "
        f"The numbers are also in [{table.name}.csv]({table.name}.csv)."
    )
    first, *more = sheet.text
    parts = [f"# {table.title}", first]
    if more:
        parts.append("\n".join(f"- {line}" for line in more))
    if notes.strip():
        parts.append(notes.strip())
    parts += [*pictures, *(grid.to_markdown().strip() for grid in sheet.grids)]
    return "\n\n".join([*parts, runs.strip(), source]) + "\n"


def _first_difference(one: str, other: str) -> int | None:
    """The number of the first line that differs."""
    if one == other:
        return None
    lines, others = one.splitlines(), other.splitlines()
    for number, (a, b) in enumerate(zip(lines, others, strict=False), 1):
        if a != b:
            return number
    return min(len(lines), len(others)) + 1
