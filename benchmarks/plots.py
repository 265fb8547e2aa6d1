"""The record of a speed measurement as figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.throughput import ENCODER, WORDS
from diffusionner.data import plots as data_plots
from diffusionner.files import write_all_or_none

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {"steps": "denoising steps γ", "spans": "noisy spans K", "batch_size": "batch size"}


def check(folder: Path) -> None:
    """Raise DataError if figures cannot be drawn, before anything is measured."""
    data_plots.check_path(folder / "throughput.png")


def draw(record: dict[str, Any], folder: Path) -> None:
    from matplotlib.figure import Figure  # not pyplot, which looks for a display

    figures = {"throughput": Figure(figsize=(12, 4.5), layout="constrained")}
    _throughput(record["throughput"], figures["throughput"])
    if record["stages"]:
        size = (9, 2 + 0.6 * len(record["stages"]))
        figures["stages"] = Figure(figsize=size, layout="constrained")
        _stages(record["stages"], figures["stages"])
    if record["scaling"]:
        figures["scaling"] = Figure(figsize=(10, 4), layout="constrained")
        _scaling(record["scaling"], figures["scaling"])
    write_all_or_none({folder / f"{name}.png": _writer(figure) for name, figure in figures.items()})


def _writer(figure: Figure) -> Any:
    return lambda file: figure.savefig(file, format="png", dpi=150)


def _throughput(rows: Sequence[dict[str, Any]], figure: Figure) -> None:
    """Draw a chart per axis; the dashed line of the same colour is the encoder alone."""
    charts = figure.subplots(1, len(AXES), sharey=True)
    models = list(dict.fromkeys((row["subject"], row["precision"]) for row in rows))
    for chart, (axis, label) in zip(charts, AXES.items(), strict=True):
        for number, model in enumerate(models):
            mine = [row for row in rows if (row["subject"], row["precision"]) == model]
            base = next(row for row in mine if row["what"] == WORDS)
            others = [name for name in AXES if name != axis]
            varied = [
                row
                for row in mine
                if row["what"] == WORDS and all(row[name] == base[name] for name in others)
            ]
            colour = f"C{number}"
            name = " ".join(model)
            numbers = [row for row in varied if isinstance(row[axis], int)]
            _curve(chart, axis, numbers, color=colour, marker="o", label=name)
            for row in varied:
                if row[axis] == "auto":
                    chart.axhline(_speed(row), color=colour, linestyle=":", label=f"{name}, K auto")
            baseline = [row for row in mine if row["what"] == ENCODER]
            if axis == "batch_size":
                _curve(chart, axis, baseline, color=colour, linestyle="--", marker=".")
            else:
                speed = _speed(baseline[0])
                chart.axhline(speed, color=colour, linestyle="--", label=f"{name}, encoder alone")
        chart.set(xlabel=label)
    most = max(row["sentences_per_second"]["high"] for row in rows)
    charts[0].set(ylabel="sentences per second", ylim=(0, 1.08 * most))
    handles = charts[list(AXES).index("spans")].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize="small")


def _curve(chart: Axes, axis: str, rows: Sequence[dict[str, Any]], **style: Any) -> None:
    rows = sorted(rows, key=lambda row: row[axis])
    chart.plot([row[axis] for row in rows], [_speed(row) for row in rows], **style)
    low = [row["sentences_per_second"]["low"] for row in rows]
    high = [row["sentences_per_second"]["high"] for row in rows]
    chart.fill_between([row[axis] for row in rows], low, high, color=style["color"], alpha=0.15)


def _speed(row: dict[str, Any]) -> float:
    return float(row["sentences_per_second"]["median"])


def _stages(rows: Sequence[dict[str, Any]], figure: Figure) -> None:
    chart = figure.subplots()
    names = [f"{row['subject']} {row['precision']}" for row in rows]
    start = [0.0] * len(rows)
    for number, stage in enumerate(rows[0]["ms_per_sentence"]):
        values = [row["ms_per_sentence"][stage]["median"] for row in rows]
        chart.barh(names, values, left=start, label=stage, color=f"C{number}")
        start = [a + b for a, b in zip(start, values, strict=True)]
    chart.set(xlabel="ms per sentence, without overlap", title="γ = 1")
    figure.legend(loc="outside lower center", ncols=5, fontsize="small")


def _scaling(rows: Sequence[dict[str, Any]], figure: Figure) -> None:
    seconds, memory = figure.subplots(1, 2)
    for row in rows:
        name = f"{row['subject']} {row['precision']}"
        counts = [size["sentences"] for size in row["sizes"]]
        each = [size["ms_per_sentence"]["median"] / 1000 for size in row["sizes"]]
        total = [count * one for count, one in zip(counts, each, strict=True)]
        seconds.loglog(counts, total, marker="o", label=name)
        linear = [count * each[-1] for count in counts]
        seconds.loglog(counts, linear, color="grey", linestyle=":", label="linear")
        memory.semilogx(counts, [size["resident_mb"] for size in row["sizes"]], marker="o")
        on_gpu = [size["gpu_mb"] for size in row["sizes"]]
        if None not in on_gpu:
            memory.semilogx(counts, on_gpu, marker="s", label=f"{name}, GPU")
            memory.legend(fontsize="small")
    seconds.set(xlabel="sentences", ylabel="seconds")
    seconds.legend(fontsize="small")
    sizes = [size for row in rows for size in row["sizes"]]
    most = max(max(size["resident_mb"], size["gpu_mb"] or 0.0) for size in sizes)
    memory.set(xlabel="sentences", ylabel="peak memory, MB", ylim=(0, 1.2 * most))
