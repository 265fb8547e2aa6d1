"""Layout of the efficiency table."""

from __future__ import annotations

from typing import Any

from reproduce import published
from reproduce.corpora import CORPORA, MAIN_METHOD, METHOD_TITLES, METHODS, SEQUENTIAL
from reproduce.grids import Cell, Grid, Row, Unit
from reproduce.pages import Page, TableRecords, about_alone, non_empty
from reproduce.records import Record
from reproduce.tables import (
    ALONE,
    ALONE_TITLE,
    CURVE_GAMMA,
    DEV,
    PAPER_START,
    SHAPE,
    SHORT_EPOCHS,
    SPEED,
    STUDIED,
    TABLE_GAMMAS,
    TIMED,
    UNRECORDED_POINTS,
    UNRECORDED_SPEED,
    Point,
    Table,
    point,
    shape_point,
)

COLUMNS: tuple[tuple[str, Unit], ...] = (
    ("parameters", "millions"),
    ("dev F1", "percent"),
    ("sentences/s", "speed"),
    ("turns", "text"),
    ("speed-up", "times"),
)
UNSCORED = (COLUMNS[0], *COLUMNS[2:])
STARTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("from noise", PAPER_START),
    ("from candidates", {}),
)


def efficiency(table: Table, records: TableRecords) -> Page:
    grids, claims = [], []
    for corpus in STUDIED:
        rows = non_empty(
            _efficiency_row(records, corpus, title, method, score, speed)
            for title, method, score, speed in efficiency_points()
        )
        title = CORPORA[corpus].title
        if rows:
            grids.append(Grid(title, "model", COLUMNS, rows))
            claims += _faster(records, corpus)
        if rows := non_empty(_unrecorded_rows(records, corpus)):
            grids.append(Grid(f"{title}, without CUDA graphs", "model", UNSCORED, rows))
    if rows := non_empty(_shape_rows(records)):
        grids.append(Grid(f"Shape of {SHAPE}, random weights", "model", UNSCORED, rows))
    grids.append(_published_efficiency())
    text = [
        "Parameters, F1 on dev, sentences per second from words to entities on dev sentences, and "
        "the speed-up over the autoregressive rival. Speeds are medians of several turns with "
        "nothing else running; the column `turns` has the slowest and the fastest. Speed depends "
        "on the network and on how many entities it finds, not on how long it was trained, so it "
        f"is measured on runs of {SHORT_EPOCHS} epochs. DiffusionNER starts from candidates as in "
        f"the presets, or from noise with {PAPER_START['spans']} spans as in the paper. Random "
        "weights have a real speed but find no meaningful entities: the autoregressive decoder "
        "then generates as many as the sentence has. Speeds are only compared if the same version "
        "of the program measured them.",
        about_alone(grids),
        *claims,
    ]
    return Page(text, grids)


def efficiency_points() -> list[tuple[str, str, Point, Point]]:
    """Return title, method, score and speed point of each row."""
    rows = [(title, name, DEV, SPEED) for name, title in METHOD_TITLES if name != MAIN_METHOD]
    settings = [
        (f"DiffusionNER {words}, γ = {gamma}", {"steps": gamma, **start})
        for words, start in STARTS
        for gamma in TABLE_GAMMAS
    ]
    for title, options in (*settings, (f"DiffusionNER, {ALONE_TITLE}", {"steps": ALONE})):
        rows.append((title, MAIN_METHOD, point("score", **options), point("speed", **options)))
    return rows


def _efficiency_row(
    records: TableRecords, corpus: str, title: str, method: str, scored: Point, timed: Point
) -> Row:
    runs = records.runs(corpus, method, TIMED, [timed])
    slow = records.runs(corpus, SEQUENTIAL, TIMED, [SPEED])
    size, speed, turns = _timed_cells(runs, timed)
    cells = (size, records.f1(corpus, scored, method), speed, turns, _times(runs, timed, slow))
    return Row(_dated(title, runs, timed, slow), cells)


def _timed_cells(runs: list[Record], timed: Point) -> tuple[Cell, Cell, Cell]:
    """Return the size, the speed, and the slowest and fastest turn."""
    sizes = [run.parameters for run in runs[:1]]
    return (
        Cell.of(None if size is None else size / 1e6 for size in sizes),
        Cell.of(run.speed(timed) for run in runs),
        Cell(text=", ".join(run.turns(timed) for run in runs)),
    )


def _times(runs: list[Record], timed: Point, slow: list[Record], slow_timed: Point = SPEED) -> Cell:
    """Return the speed-up over the autoregressive rival, if the same version timed both."""
    if not runs or not slow or len(_versions(runs, timed) | _versions(slow, slow_timed)) > 1:
        return Cell()
    speed, least = (
        Cell.of(run.speed(one) for run in found).mean
        for found, one in ((runs, timed), (slow, slow_timed))
    )
    return Cell() if speed is None or not least else Cell((speed / least,))


def _versions(runs: list[Record], timed: Point) -> set[str]:
    return {run.timed_by(timed) for run in runs}


def _dated(title: str, runs: list[Record], timed: Point, slow: list[Record]) -> str:
    """Add the version to the title if another one timed the autoregressive rival."""
    own = _versions(runs, timed)
    if not own or not slow or own == _versions(slow, SPEED):
        return title
    return f"{title}, timed by {', '.join(sorted(own))}"


def _faster(records: TableRecords, corpus: str) -> list[str]:
    """Return the speed-up at γ = 5 as a sentence."""
    claims = []
    slow = records.runs(corpus, SEQUENTIAL, TIMED, [SPEED])
    for title, method, _, timed in efficiency_points():
        times = _times(records.runs(corpus, method, TIMED, [timed]), timed, slow).mean
        if times is not None and f"γ = {CURVE_GAMMA}" in title:
            claims.append(
                f"{CORPORA[corpus].title}: {title}: {times:.1f} times as fast as the "
                "autoregressive rival."
            )
    return claims


def _unrecorded_rows(records: TableRecords, corpus: str) -> list[Row]:
    """Return the rows of the rival and of γ = 5, both without CUDA graphs."""
    slow = records.runs(corpus, SEQUENTIAL, TIMED, [UNRECORDED_SPEED])
    rows = [(METHODS[SEQUENTIAL].title, slow, UNRECORDED_SPEED)]
    for (words, _), timed in zip(STARTS, UNRECORDED_POINTS, strict=True):
        runs = records.runs(corpus, MAIN_METHOD, TIMED, [timed])
        rows.append((f"DiffusionNER {words}, γ = {CURVE_GAMMA}", runs, timed))
    return [
        Row(
            title,
            (*_timed_cells(runs, timed), _times(runs, timed, slow, UNRECORDED_SPEED)),
        )
        for title, runs, timed in rows
    ]


def _shape_rows(records: TableRecords) -> list[Row]:
    slow = records.runs("genia", SEQUENTIAL, points=[SPEED], shape=SHAPE)
    rows = []
    for method, title in sorted(METHOD_TITLES, key=lambda one: one[0] == MAIN_METHOD):
        names: dict[str, int | None] = {title: None}
        if method == MAIN_METHOD:
            names = {f"{title}, γ = {gamma}": gamma for gamma in TABLE_GAMMAS}
            names[f"{title}, {ALONE_TITLE}"] = ALONE
        for name, gamma in names.items():
            timed = shape_point(gamma)
            runs = records.runs("genia", method, points=[timed], shape=SHAPE)
            cells = (*_timed_cells(runs, timed), _times(runs, timed, slow))
            rows.append(Row(_dated(name, runs, timed, slow), cells))
    return rows


def _published_efficiency() -> Grid:
    rows = tuple(
        Row(title, tuple(map(Cell.printed, values)))
        for title, values in published.EFFICIENCY.items()
    )
    renamed = (COLUMNS[0], ("F1", "percent"), *(one for one in COLUMNS[2:] if one[0] != "turns"))
    return Grid("In the paper: ACE04, BERT-large, GeForce RTX 3090", "model", renamed, rows)
