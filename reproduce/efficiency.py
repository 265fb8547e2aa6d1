"""How the table of efficiency looks."""

from __future__ import annotations

from typing import Any

from reproduce import published
from reproduce.corpora import CORPORA, MAIN_METHOD, METHOD_TITLES, METHODS, SEQUENTIAL
from reproduce.grids import Cell, Grid, Row, Unit
from reproduce.records import Record
from reproduce.sheets import Sheet, Shown, filled
from reproduce.tables import (
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


def efficiency(table: Table, shown: Shown) -> Sheet:
    grids, said = [], []
    for corpus in STUDIED:
        rows = filled(
            _efficiency_row(shown, corpus, title, method, score, speed)
            for title, method, score, speed in efficiency_points()
        )
        title = CORPORA[corpus].title
        if rows:
            grids.append(Grid(title, "model", COLUMNS, rows))
            said += _faster(shown, corpus)
        if rows := filled(_unrecorded_rows(shown, corpus)):
            grids.append(Grid(f"{title}, without CUDA graphs", "model", UNSCORED, rows))
    if rows := filled(_shape_rows(shown)):
        grids.append(Grid(f"Shape of {SHAPE}, random weights", "model", UNSCORED, rows))
    grids.append(_published_efficiency())
    text = [
        "Parameters, F1 on dev, and sentences a second from words to entities on dev sentences "
        "(median of several turns, nothing else running; turns: the slowest and the fastest), "
        "against the autoregressive rival. Speed depends on the network and on how many entities "
        "it finds, not on how long it was trained: it is measured of runs of "
        f"{SHORT_EPOCHS} epochs. Rows of DiffusionNER start from candidates as the presets do, or "
        f"from noise with {PAPER_START['spans']} spans as in the paper. Random weights have real "
        "speed but no entities: the autoregressive decoder then generates as many as a sentence "
        "has. Only what the same version of the program timed is compared.",
        *said,
    ]
    return Sheet(text, grids)


def efficiency_points() -> list[tuple[str, str, Point, Point]]:
    """Title, method, what is scored and what is timed of each row."""
    rows = [(title, name, DEV, SPEED) for name, title in METHOD_TITLES if name != MAIN_METHOD]
    for words, start in STARTS:
        for gamma in TABLE_GAMMAS:
            points = [point(kind, steps=gamma, **start) for kind in ("score", "speed")]
            rows.append((f"DiffusionNER {words}, γ = {gamma}", MAIN_METHOD, points[0], points[1]))
    return rows


def _efficiency_row(
    shown: Shown, corpus: str, title: str, method: str, scored: Point, timed: Point
) -> Row:
    runs = shown.runs(corpus, method, TIMED, [timed])
    slow = shown.runs(corpus, SEQUENTIAL, TIMED, [SPEED])
    size, speed, turns = _timed_cells(runs, timed)
    cells = (size, shown.f1(corpus, scored, method), speed, turns, _times(runs, timed, slow))
    return Row(_dated(title, runs, timed, slow), cells)


def _timed_cells(runs: list[Record], timed: Point) -> tuple[Cell, Cell, Cell]:
    """Of what was timed: its size, how fast it is, and its slowest and fastest turn."""
    sizes = [run.parameters for run in runs[:1]]
    return (
        Cell.of(None if size is None else size / 1e6 for size in sizes),
        Cell.of(run.speed(timed) for run in runs),
        Cell(text=", ".join(run.turns(timed) for run in runs)),
    )


def _times(runs: list[Record], timed: Point, slow: list[Record], slow_timed: Point = SPEED) -> Cell:
    """How many times as fast as the autoregressive rival, if timed by the same version."""
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
    """With the version that timed it, where the autoregressive rival was timed by another."""
    own = _versions(runs, timed)
    if not own or not slow or own == _versions(slow, SPEED):
        return title
    return f"{title}, timed by {', '.join(sorted(own))}"


def _faster(shown: Shown, corpus: str) -> list[str]:
    """The claim that is made for γ = 5, in words."""
    said = []
    slow = shown.runs(corpus, SEQUENTIAL, TIMED, [SPEED])
    for title, method, _, timed in efficiency_points():
        times = _times(shown.runs(corpus, method, TIMED, [timed]), timed, slow).mean
        if times is not None and f"γ = {CURVE_GAMMA}" in title:
            said.append(
                f"{CORPORA[corpus].title}: {title}: {times:.1f} times as fast as the "
                "autoregressive rival."
            )
    return said


def _unrecorded_rows(shown: Shown, corpus: str) -> list[Row]:
    """The rival and γ = 5, both launched kernel by kernel."""
    slow = shown.runs(corpus, SEQUENTIAL, TIMED, [UNRECORDED_SPEED])
    rows = [(METHODS[SEQUENTIAL].title, slow, UNRECORDED_SPEED)]
    for (words, _), timed in zip(STARTS, UNRECORDED_POINTS, strict=True):
        runs = shown.runs(corpus, MAIN_METHOD, TIMED, [timed])
        rows.append((f"DiffusionNER {words}, γ = {CURVE_GAMMA}", runs, timed))
    return [
        Row(
            title,
            (*_timed_cells(runs, timed), _times(runs, timed, slow, UNRECORDED_SPEED)),
        )
        for title, runs, timed in rows
    ]


def _shape_rows(shown: Shown) -> list[Row]:
    slow = shown.runs("genia", SEQUENTIAL, points=[SPEED], shape=SHAPE)
    rows = []
    for method, title in sorted(METHOD_TITLES, key=lambda one: one[0] == MAIN_METHOD):
        gammas: tuple[int | None, ...] = TABLE_GAMMAS if method == MAIN_METHOD else (None,)
        for gamma in gammas:
            timed = shape_point(gamma)
            runs = shown.runs("genia", method, points=[timed], shape=SHAPE)
            name = title if gamma is None else f"{title}, γ = {gamma}"
            cells = (*_timed_cells(runs, timed), _times(runs, timed, slow))
            rows.append(Row(_dated(name, runs, timed, slow), cells))
    return rows


def _published_efficiency() -> Grid:
    rows = tuple(
        Row(title, tuple(map(Cell.printed, values)))
        for title, values in published.EFFICIENCY.items()
    )
    renamed = (COLUMNS[0], ("F1", "percent"), *(one for one in COLUMNS[2:] if one[0] != "turns"))
    return Grid("The paper's: ACE04, BERT-large, GeForce RTX 3090", "model", renamed, rows)
