"""How the tables look: curves over steps, spans and epochs, limitations, figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import stdev
from typing import Any

from reproduce.corpora import CORPORA, METHOD_TITLES
from reproduce.efficiency import efficiency_points
from reproduce.grids import Cell, Grid, Row, Unit
from reproduce.records import Record
from reproduce.sheets import Plot, Sheet, Shown, filled, mean_and_sd, percent
from reproduce.tables import (
    CURVE_GAMMA,
    EVALUATION_SPANS,
    GAMMAS,
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
)

ENOUGH = 0.99  # of the best dev F1


def steps(table: Table, shown: Shown) -> Sheet:
    """F1 and speed against γ, a curve for each K."""
    grids, panels = [], []
    columns: dict[Kind, tuple[tuple[str, Unit], ...]] = {
        "score": tuple((f"γ = {gamma}", "percent") for gamma in GAMMAS),
        "speed": tuple((f"γ = {gamma}", "speed") for gamma in GAMMAS),
    }
    names: dict[Kind, str] = {"score": "dev F1", "speed": "sentences/s"}
    for corpus in STUDIED:
        for start in STARTS:
            for kind, name in names.items():
                rows = filled(
                    Row(
                        f"K = {spans}",
                        tuple(
                            _measured(shown, corpus, point(kind, steps=g, spans=spans, start=start))
                            for g in GAMMAS
                        ),
                    )
                    for spans in SPANS
                )
                if not rows:
                    continue
                title = f"{CORPORA[corpus].title}, from {start}: {name}"
                grids.append(Grid(title, "spans", columns[kind], rows, best=kind == "score"))
                panels.append(_panel(title, "denoising steps γ", name, rows, GAMMAS))
    text = [
        "F1 on dev and sentences a second (median of several turns, nothing else running) by the "
        "number of denoising steps γ, for several numbers of noisy spans K at inference, starting "
        "from Gaussian spans as in the paper and (F1 alone) from the initializer's candidates. The "
        "models are those of the results tables, speeds those of runs of "
        f"{SHORT_EPOCHS} epochs; thresholds are the ones fitted on dev at the preset's γ. "
        "The paper shows this for ACE04 as a figure, without numbers; it finds that more steps "
        "help a little, and most when spans are few."
    ]
    return Sheet(text, grids, _lines_plot(table, panels, columns=3))


def spans(table: Table, shown: Shown) -> Sheet:
    grids, panels = [], []
    columns: tuple[tuple[str, Unit], ...] = tuple((str(k), "percent") for k in EVALUATION_SPANS)
    for corpus in STUDIED:
        rows = filled(
            Row(
                f"from {start}",
                tuple(
                    _measured(
                        shown, corpus, point("score", steps=CURVE_GAMMA, spans=k, start=start)
                    )
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
        f"F1 on dev by the number of spans at inference, with γ = {CURVE_GAMMA}; the number in "
        "training is the preset's. The paper's figure, for ACE04 with 60 spans in training, has no "
        "numbers; it finds a loss below 30 spans and a slight gain above 60."
    ]
    return Sheet(text, grids, _lines_plot(table, panels, columns=2))


def convergence(table: Table, shown: Shown) -> Sheet:
    grids: list[Grid] = []
    panels = []
    for corpus in STUDIED:
        runs = {title: shown.runs(corpus, name) for name, title in METHOD_TITLES}
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
        "training. Evaluation is not counted. Where several runs shared a GPU, each is charged its "
        "share of every minute, so the minutes of all runs add up to those of the GPU."
    ]
    return Sheet(text, grids, _lines_plot(table, panels, columns=2))


def limitations(table: Table, shown: Shown) -> Sheet:
    spread: list[Row] = []
    groups: list[list[Cell]] = []
    columns: list[tuple[str, Unit]] = []
    for corpus in STUDIED:
        names = ("mean F1", "sd over noise seeds", "highest - lowest")
        columns += [(f"{CORPORA[corpus].title}: {name}", "percent") for name in names]
    for title, options in SPREADS:
        points = [point("score", **options, seed=seed) for seed in range(NOISE_SEEDS)]
        found = [shown.runs(corpus, points=points) for corpus in STUDIED]
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
    grids = [Grid("Chance in sampling", "start", tuple(columns), filled(spread), best=False)]
    grids.append(_slowness(shown))
    text = [
        f"The paper names three limitations. Sampling is random: F1 on dev with {NOISE_SEEDS} "
        "seeds of the noise at inference, for the same weights; from candidates there is no noise. "
        f"Training converges slowly: epochs and GPU-minutes until dev F1 is {ENOUGH:.0%} of the "
        "run's best, for all methods. Entities in several parts cannot be found: see the F1 "
        "ceiling that `diffusionner data check` gives for a corpus."
    ]
    has_spread = any(cell.values for group in groups for cell in group)
    plots = [Plot(table.name, "dots", {"panels": panels})] if has_spread else []
    return Sheet(text, [grid for grid in grids if grid.rows], plots)


def figures(table: Table, shown: Shown) -> Sheet:
    grids, panels, plots = [], [], []
    for corpus in STUDIED:
        lines: dict[str, list[tuple[str, Cell, Cell]]] = {}
        for title, method, scored, timed in efficiency_points():
            f1, speed = shown.f1(corpus, scored, method), shown.speed(corpus, timed, method)
            if f1.values and speed.values:
                lines.setdefault(title.partition(", γ")[0], []).append((title, f1, speed))
        if not lines:
            continue
        name = CORPORA[corpus].title
        rows = tuple(Row(t, (f1, speed)) for line in lines.values() for t, f1, speed in line)
        columns: tuple[tuple[str, Unit], ...] = (("dev F1", "percent"), ("sentences/s", "speed"))
        grids.append(Grid(f"F1 against speed: {name}", "model", columns, rows))
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
    for run in shown.runs("genia", points=[TRAJECTORY])[:1]:
        plots.append(Plot("denoising", "trajectory", run.values["points"][TRAJECTORY.name]))
    text = [
        "F1 on dev against sentences a second for all methods, DiffusionNER with γ = 1, 5 and 10 "
        f"(speed is that of runs of {SHORT_EPOCHS} epochs; bars are the standard deviation of F1 "
        "over the seeds); and the denoising of one sentence with the GENIA model, from Gaussian "
        "spans: grey is what a step was shown, coloured what it made of it."
    ]
    return Sheet(text, grids, plots)


def _short(labels: Sequence[str]) -> list[str]:
    """γ = 1, 5 and 10: what is the same is said once, or points that are near have no room."""
    return [*labels[:1], *(label.rpartition(" ")[2] for label in labels[1:])]


def _measured(shown: Shown, corpus: str, one: Point) -> Cell:
    return shown.f1(corpus, one) if one.kind == "score" else shown.speed(corpus, one)


def _panel(
    title: str, xlabel: str, ylabel: str, rows: Sequence[Row], x: Sequence[float]
) -> dict[str, Any]:
    series = []
    for row in rows:
        values = mean_and_sd(row.cells)
        series.append({"name": row.title, "x": list(x), "y": values["mean"], "sd": values["sd"]})
    return {"title": title, "xlabel": xlabel, "ylabel": ylabel, "series": series}


def _lines_plot(table: Table, panels: list[dict[str, Any]], columns: int) -> list[Plot]:
    return [Plot(table.name, "lines", {"panels": panels, "columns": columns})] if panels else []


def _at_epoch(runs: Sequence[Record], epoch: int, value: Callable[[dict[str, Any]], float]) -> Cell:
    found = [next((e for e in run.epochs if e["epoch"] == epoch), None) for run in runs]
    return Cell.of(None if one is None else value(one) for one in found)


def _all_scores(runs: Sequence[Record], points: Sequence[Point]) -> list[float | None]:
    return [run.score(one) for run in runs for one in points]


def _spread(runs: Sequence[Record], points: Sequence[Point]) -> tuple[Cell, Cell, Cell]:
    """Mean, sd and range over the noise seeds, each over the trained models."""
    found = [[100 * (run.score(one) or 0.0) for one in points] for run in runs]
    means = Cell(tuple(sum(scores) / len(scores) for scores in found))
    sds = Cell(tuple(stdev(scores) for scores in found))
    return means, sds, Cell(tuple(max(scores) - min(scores) for scores in found))


def _slowness(shown: Shown) -> Grid:
    columns: list[tuple[str, Unit]] = []
    for corpus in STUDIED:
        title = CORPORA[corpus].title
        columns += [(f"{title}: epochs", "number"), (f"{title}: GPU-minutes", "number")]
        columns += [(f"{title}: best dev F1", "percent")]
    rows = []
    for method, title in METHOD_TITLES:
        cells: list[Cell] = []
        for corpus in STUDIED:
            runs = [run for run in shown.runs(corpus, method) if run.epochs]
            reached = [_enough(run) for run in runs]
            cells.append(Cell(tuple(float(epoch["epoch"]) for epoch in reached)))
            cells.append(Cell(tuple(epoch["gpu_seconds"] / 60 for epoch in reached)))
            cells.append(percent(run.values["training"]["dev_f1"] for run in runs))
        rows.append(Row(title, tuple(cells)))
    name = f"Until {ENOUGH:.0%} of the best dev F1"
    return Grid(name, "method", tuple(columns), filled(rows), best=False)


def _enough(run: Record) -> dict[str, Any]:
    best = max(epoch["f1"] for epoch in run.epochs)
    return next(epoch for epoch in run.epochs if epoch["f1"] >= ENOUGH * best)
