"""Layouts of the curves over steps, spans and epochs, the limitations and the figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import stdev
from typing import Any

from reproduce.corpora import CORPORA, METHOD_TITLES
from reproduce.efficiency import efficiency_points
from reproduce.grids import Cell, Grid, Row, Unit
from reproduce.pages import (
    Page,
    Plot,
    TableRecords,
    about_alone,
    mean_and_sd,
    non_empty,
    percent,
)
from reproduce.records import Record
from reproduce.tables import (
    ALONE_TITLE,
    CURVE_GAMMA,
    EVALUATION_SPANS,
    NOISE_SEEDS,
    SHORT_EPOCHS,
    SPANS,
    SPREADS,
    STARTS,
    STUDIED,
    TRAJECTORY,
    Kind,
    Point,
    Table,
    point,
    start_gammas,
)

CONVERGED = 0.99  # of the best dev F1


def steps(table: Table, records: TableRecords) -> Page:
    grids, panels = [], []
    kinds: dict[Kind, tuple[str, Unit]] = {
        "score": ("dev F1", "percent"),
        "speed": ("sentences/s", "speed"),
    }
    for corpus in STUDIED:
        for start in STARTS:
            gammas = start_gammas(start)
            for kind, (name, unit) in kinds.items():
                rows = non_empty(
                    Row(
                        f"K = {spans}",
                        tuple(
                            _measured(records, corpus, kind, steps=g, spans=spans, start=start)
                            for g in gammas
                        ),
                    )
                    for spans in SPANS
                )
                if not rows:
                    continue
                title = f"{CORPORA[corpus].title}, from {start}: {name}"
                columns = tuple((f"γ = {g}" if g else ALONE_TITLE, unit) for g in gammas)
                grids.append(Grid(title, "spans", columns, rows, best=kind == "score"))
                panels.append(_panel(title, "denoising steps γ", name, rows, gammas))
    text = [
        "F1 on dev and sentences per second by the number of denoising steps γ, for several "
        "numbers of noisy spans K at inference, starting from Gaussian spans as in the paper and "
        "(F1 only) from the initializer's candidates. Speeds are medians of several turns with "
        f"nothing else running, of runs of {SHORT_EPOCHS} epochs; the scored models are those of "
        "the results tables. Thresholds were fitted on dev at the preset's γ. The paper shows this "
        "for ACE04 as a figure without numbers. It finds that more steps help a little, and most "
        "with few spans.",
        about_alone(grids),
    ]
    return Page(text, grids, _lines_plot(table, panels, columns=3))


def spans(table: Table, records: TableRecords) -> Page:
    grids, panels = [], []
    columns: tuple[tuple[str, Unit], ...] = tuple((str(k), "percent") for k in EVALUATION_SPANS)
    for corpus in STUDIED:
        rows = non_empty(
            Row(
                f"from {start}",
                tuple(
                    _measured(records, corpus, "score", steps=CURVE_GAMMA, spans=k, start=start)
                    for k in EVALUATION_SPANS
                ),
            )
            for start in STARTS
        )
        if rows:
            title = CORPORA[corpus].title
            grids.append(Grid(f"{title}: dev F1 by K_eval", "start", columns, rows))
            panels.append(_panel(title, "spans K_eval", "dev F1", rows, EVALUATION_SPANS))
    text = [
        f"F1 on dev by the number of spans at inference, with γ = {CURVE_GAMMA}. The number of "
        "spans in training is the preset's. The paper's figure, for ACE04 with 60 spans in "
        "training, has no numbers. It finds a loss below 30 spans and a slight gain above 60."
    ]
    return Page(text, grids, _lines_plot(table, panels, columns=2))


def convergence(table: Table, records: TableRecords) -> Page:
    grids: list[Grid] = []
    panels = []
    for corpus in STUDIED:
        runs = {title: records.runs(corpus, name) for name, title in METHOD_TITLES}
        known = {title: found for title, found in runs.items() if found}
        if not known:
            continue
        name = CORPORA[corpus].title
        epochs = sorted({e["epoch"] for found in known.values() for r in found for e in r.epochs})
        numbers: list[tuple[str, Callable[[dict[str, Any]], float], Unit]] = [
            ("dev F1", lambda epoch: 100 * epoch["f1"], "percent"),
            ("GPU-minutes", lambda epoch: epoch["gpu_seconds"] / 60, "number"),
        ]
        tables = [
            Grid(
                f"{name}: {what} after each epoch",
                "method",
                tuple((str(epoch), unit) for epoch in epochs),
                tuple(
                    Row(title, tuple(_at_epoch(found, epoch, value) for epoch in epochs))
                    for title, found in known.items()
                ),
                best=False,
            )
            for what, value, unit in numbers
        ]
        grids += tables
        panels.append(_panel(name, "epochs", "dev F1", tables[0].rows, epochs))
        minutes = _panel(name, "GPU-minutes", "dev F1", tables[0].rows, epochs)
        for series, row in zip(minutes["series"], tables[1].rows, strict=True):
            series["x"] = [cell.mean for cell in row.cells]
        panels.append(minutes)
    text = [
        "F1 on dev after each epoch, mean over the seeds, against epochs and against minutes of "
        "training without evaluation. If several runs share a GPU, each is charged its share of "
        "every minute, so that the minutes of all runs add up to those of the GPU."
    ]
    return Page(text, grids, _lines_plot(table, panels, columns=2))


def limitations(table: Table, records: TableRecords) -> Page:
    spread: list[Row] = []
    groups: list[list[Cell]] = []
    columns: list[tuple[str, Unit]] = []
    for corpus in STUDIED:
        names = ("mean F1", "sd over noise seeds", "range")
        columns += [(f"{CORPORA[corpus].title}: {name}", "percent") for name in names]
    for title, options in SPREADS:
        points = [point("score", **options, seed=seed) for seed in range(NOISE_SEEDS)]
        found = [records.runs(corpus, points=points) for corpus in STUDIED]
        cells = [_spread(runs, points) for runs in found]
        spread.append(Row(title, tuple(cell for three in cells for cell in three)))
        groups.append([percent(_all_scores(runs, points)) for runs in found])
    panels = [
        {
            "title": CORPORA[corpus].title,
            "ylabel": "dev F1",
            "groups": [title for title, _ in SPREADS],
            "series": [
                {
                    "name": f"runs, each with {NOISE_SEEDS} noise seeds",
                    **mean_and_sd(group[number] for group in groups),
                }
            ],
        }
        for number, corpus in enumerate(STUDIED)
    ]
    grids = [Grid("Randomness of sampling", "start", tuple(columns), non_empty(spread), best=False)]
    grids.append(_convergence_grid(records))
    text = [
        "The paper names three limitations. Sampling is random: the first table has F1 on dev with "
        f"{NOISE_SEEDS} noise seeds at inference for the same weights; candidates have no noise. "
        "Training converges slowly: the second table has epochs and GPU-minutes until dev F1 "
        f"reaches {CONVERGED:.0%} of the run's best, for all methods. Discontinuous entities "
        "cannot be found: `diffusionner data check` reports the resulting F1 ceiling of a corpus."
    ]
    has_spread = any(cell.values for group in groups for cell in group)
    plots = [Plot(table.name, "dots", {"panels": panels})] if has_spread else []
    return Page(text, [grid for grid in grids if grid.rows], plots)


def figures(table: Table, records: TableRecords) -> Page:
    grids, panels, plots = [], [], []
    for corpus in STUDIED:
        lines: dict[str, list[tuple[str, Cell, Cell]]] = {}
        rows = []
        for title, method, scored, timed in efficiency_points():
            f1, speed = records.f1(corpus, scored, method), records.speed(corpus, timed, method)
            both = f1.values and speed.values
            rows.append(Row(title, (f1, speed) if both else (Cell(), Cell())))
            if both:
                lines.setdefault(title.partition(", γ")[0], []).append((title, f1, speed))
        if not lines:
            continue
        name = CORPORA[corpus].title
        columns: tuple[tuple[str, Unit], ...] = (("dev F1", "percent"), ("sentences/s", "speed"))
        grids.append(Grid(f"F1 against speed: {name}", "model", columns, non_empty(rows)))
        series = [
            {
                "name": title,
                "x": [speed.mean for _, _, speed in line],
                "y": [f1.mean for _, f1, _ in line],
                "sd": [f1.sd for _, f1, _ in line],
                "labels": _short([one.removeprefix(title)[2:] for one, _, _ in line]),
            }
            for title, line in lines.items()
        ]
        panels.append(
            {
                "title": name,
                "xlabel": "sentences/s",
                "ylabel": "dev F1",
                "series": series,
            }
        )
    if panels:
        plots.append(Plot("f1-against-speed", "lines", {"panels": panels, "columns": 2}))
    for run in records.runs("genia", points=[TRAJECTORY])[:1]:
        plots.append(Plot("denoising", "trajectory", run.values["points"][TRAJECTORY.name]))
    text = [
        "F1 on dev against sentences per second for all methods, DiffusionNER with γ = 1, 5 and "
        f"10 (speeds of runs of {SHORT_EPOCHS} epochs; error bars are the standard deviation of F1 "
        "over the seeds), and the denoising of one sentence with the GENIA model, from Gaussian "
        "spans: noisy spans in grey, predicted spans in colour.",
        about_alone(grids),
    ]
    return Page(text, grids, plots)


def _short(labels: Sequence[str]) -> list[str]:
    """Shorten all labels but the first, γ = 1, to their number: near points have little room."""
    return [*labels[:1], *(label.rpartition(" ")[2] for label in labels[1:])]


def _measured(records: TableRecords, corpus: str, kind: Kind, **options: Any) -> Cell:
    one = point(kind, **options)
    return records.f1(corpus, one) if kind == "score" else records.speed(corpus, one)


def _panel(
    title: str, xlabel: str, ylabel: str, rows: Sequence[Row], x: Sequence[float]
) -> dict[str, Any]:
    series = []
    for row in rows:
        known = [i for i, cell in enumerate(row.cells) if cell.values]
        values = mean_and_sd(row.cells[i] for i in known)
        line = {"x": [x[i] for i in known], "y": values["mean"], "sd": values["sd"]}
        series.append({"name": row.title, **line})
    return {"title": title, "xlabel": xlabel, "ylabel": ylabel, "series": series}


def _lines_plot(table: Table, panels: list[dict[str, Any]], columns: int) -> list[Plot]:
    return [Plot(table.name, "lines", {"panels": panels, "columns": columns})] if panels else []


def _at_epoch(runs: Sequence[Record], epoch: int, value: Callable[[dict[str, Any]], float]) -> Cell:
    found = [next((e for e in run.epochs if e["epoch"] == epoch), None) for run in runs]
    return Cell.of(None if one is None else value(one) for one in found)


def _all_scores(runs: Sequence[Record], points: Sequence[Point]) -> list[float | None]:
    return [run.score(one) for run in runs for one in points]


def _spread(runs: Sequence[Record], points: Sequence[Point]) -> tuple[Cell, Cell, Cell]:
    """Return mean, sd and range over the noise seeds, each for all trained models."""
    found = [[100 * (run.score(one) or 0.0) for one in points] for run in runs]
    means = Cell(tuple(sum(scores) / len(scores) for scores in found))
    sds = Cell(tuple(stdev(scores) for scores in found))
    return means, sds, Cell(tuple(max(scores) - min(scores) for scores in found))


def _convergence_grid(records: TableRecords) -> Grid:
    columns: list[tuple[str, Unit]] = []
    for corpus in STUDIED:
        title = CORPORA[corpus].title
        columns += [(f"{title}: epochs", "number"), (f"{title}: GPU-minutes", "number")]
        columns += [(f"{title}: best dev F1", "percent")]
    rows = []
    for method, title in METHOD_TITLES:
        cells: list[Cell] = []
        for corpus in STUDIED:
            runs = [run for run in records.runs(corpus, method) if run.epochs]
            reached = [_converged(run) for run in runs]
            cells.append(Cell(tuple(float(epoch["epoch"]) for epoch in reached)))
            cells.append(Cell(tuple(epoch["gpu_seconds"] / 60 for epoch in reached)))
            cells.append(percent(run.values["training"]["dev_f1"] for run in runs))
        rows.append(Row(title, tuple(cells)))
    name = f"Until {CONVERGED:.0%} of the best dev F1"
    return Grid(name, "method", tuple(columns), non_empty(rows), best=False)


def _converged(run: Record) -> dict[str, Any]:
    best = max(epoch["f1"] for epoch in run.epochs)
    return next(epoch for epoch in run.epochs if epoch["f1"] >= CONVERGED * best)
