"""Figures: dots with error bars, curves, and the denoising of a sentence."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffusionner.data import plots as data_plots
from reproduce.corpora import METHODS
from reproduce.pages import Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("png", "svg")
_PANEL = (5.5, 3.6)  # inches
_MARKERS = "osD^vPX*"
_NO_ENTITY = "0.75"  # grey
# A method looks the same in every figure.
_OF_METHODS = {method.title: number for number, method in enumerate(METHODS.values())}


def check(folder: Path) -> None:
    """Raise DataError if figures cannot be drawn."""
    data_plots.check_path(folder / "plot.svg")


def writers(plot: Plot) -> dict[str, Callable[[Path], None]]:
    """Return a writer for each file. It stores the digest of the data, for `agrees`."""
    import matplotlib

    figure = _DRAW[plot.kind](plot.data)

    def save(kind: str) -> Callable[[Path], None]:
        # No date or random identifiers, so that the same data gives the same file.
        about = {"Description": f"data {plot.digest}"}
        metadata = {"svg": {**about, "Date": None}, "png": {**about, "Software": None}}[kind]

        def write(file: Path) -> None:
            with matplotlib.rc_context({"svg.hashsalt": "diffusionner"}), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about characters missing in the font
                figure.savefig(file, format=kind, dpi=150, metadata=metadata)

        return write

    return {f"{plot.name}.{kind}": save(kind) for kind in KINDS}


def paths(plot: Plot, folder: Path) -> list[Path]:
    return [folder / f"{plot.name}.{kind}" for kind in KINDS]


def agrees(path: Path, plot: Plot) -> bool:
    """Return whether a file was drawn from this data."""
    return path.exists() and f"data {plot.digest}".encode() in path.read_bytes()


def _figure(panels: int, columns: int, height: float = _PANEL[1]) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure  # not pyplot, which looks for a display

    rows = -(-panels // columns)
    figure = Figure(figsize=(_PANEL[0] * columns, height * rows + 0.8), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[panels:]:
        unused.remove()
    return figure, axes[:panels]


def _styles(panels: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the style of each series, the same in all panels.

    Series that are not methods get styles that no method has, beginning with that of DiffusionNER,
    since they are variants of it.
    """
    names = list(dict.fromkeys(one["name"] for panel in panels for one in panel["series"]))
    methods = {_OF_METHODS[name] for name in names if name in _OF_METHODS}
    taken = set(_OF_METHODS.values()) - {0} | methods if methods else set()
    free = (number for number in itertools.count() if number not in taken)
    numbers = {name: _OF_METHODS[name] if name in _OF_METHODS else next(free) for name in names}
    return {
        name: {"marker": _MARKERS[number % len(_MARKERS)], "color": f"C{number}", "label": name}
        for name, number in numbers.items()
    }


def _dots(data: Mapping[str, Any]) -> Figure:
    """Draw a dot for each group and series, with its standard deviation."""
    panels = data["panels"]
    styles = _styles(panels)
    figure, charts = _figure(len(panels), min(2, len(panels)), 4.2)
    for chart, panel in zip(charts, panels, strict=True):
        series, groups = panel["series"], panel["groups"]
        for number, one in enumerate(series):
            shift = (number + 0.5) / max(1, len(series)) * 0.6 - 0.3
            known = [g for g in range(len(groups)) if one["mean"][g] is not None]
            chart.errorbar(
                [group + shift for group in known],
                [one["mean"][group] for group in known],
                yerr=[one["sd"][group] or 0.0 for group in known],
                linestyle="none",
                capsize=2,
                **styles[one["name"]],
            )
        chart.set_xticks(range(len(groups)), groups, rotation=25, ha="right")
        chart.set(title=panel["title"], ylabel=panel["ylabel"], xlim=(-0.5, len(groups) - 0.5))
        chart.grid(axis="y", alpha=0.3)
    _legend(figure, charts)
    return figure


def lines(data: Mapping[str, Any]) -> Figure:
    from matplotlib.ticker import StrMethodFormatter

    panels = data["panels"]
    styles = _styles(panels)
    figure, charts = _figure(len(panels), min(data["columns"], len(panels)))
    for chart, panel in zip(charts, panels, strict=True):
        for number, one in enumerate(panel["series"]):
            _line(chart, one, styles[one["name"]], below=number % 2 == 0)
        chart.set(title=panel["title"], xlabel=panel["xlabel"], ylabel=panel["ylabel"])
        chart.grid(alpha=0.3)
        places = {x for one in panel["series"] for x in one["x"]}
        if all(isinstance(x, int) for x in places):
            chart.set_xticks(sorted(places))
        # Speed axes begin at 0, so that small differences look small.
        if panel["xlabel"] == "sentences/s":
            chart.margins(y=0.12)
            chart.set_xlim(0, 1.1 * max(chart.dataLim.xmax, 1))
            chart.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        if panel["ylabel"] == "sentences/s":
            chart.set_ylim(0, 1.1 * max(chart.dataLim.ymax, 1))
            chart.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    _legend(figure, charts)
    return figure


def _line(chart: Axes, one: Mapping[str, Any], style: Mapping[str, Any], below: bool) -> None:
    """Draw a line with a band, or labelled points with error bars; labels are above or below."""
    points = [i for i in range(len(one["x"])) if None not in (one["x"][i], one["y"][i])]
    x, y = [one["x"][i] for i in points], [one["y"][i] for i in points]
    chart.plot(x, y, **style)
    if "sd" in one:
        spread = [one["sd"][i] or 0.0 for i in points]
        if "labels" in one:
            chart.errorbar(x, y, yerr=spread, fmt="none", color=style["color"], alpha=0.4)
        else:
            low = [a - b for a, b in zip(y, spread, strict=True)]
            high = [a + b for a, b in zip(y, spread, strict=True)]
            chart.fill_between(x, low, high, color=style["color"], alpha=0.15)
    for i in points if "labels" in one else ():
        end = (one["sd"][i] or 0.0) if "sd" in one else 0.0  # of the error bar
        chart.annotate(
            one["labels"][i],
            (one["x"][i], one["y"][i] + (-end if below else end)),
            (0, -3 if below else 3),
            textcoords="offset points",
            ha="center",
            va="top" if below else "bottom",
            fontsize=7,
            color=style["color"],
        )


def _legend(figure: Figure, charts: list[Axes]) -> None:
    """Draw one legend for all panels."""
    found: dict[str, Any] = {}
    for chart in charts:
        handles, names = chart.get_legend_handles_labels()
        found |= dict(zip(names, handles, strict=True))
    figure.legend(
        list(found.values()), list(found), loc="outside lower center", ncols=3, fontsize="small"
    )


def _trajectory(data: Mapping[str, Any]) -> Figure:
    """Draw one row per step: noisy spans in grey, predicted spans coloured by type."""
    from matplotlib.figure import Figure

    words, steps = data["words"], data["steps"]
    labels = sorted({s["label"] for step in steps for s in step["spans"] if s["label"]})
    size = (max(7.0, 0.62 * len(words)), 1.6 * len(steps) + 1.4)
    figure = Figure(figsize=size, layout="constrained")
    charts = list(figure.subplots(len(steps), 1, squeeze=False, sharex=True).flat)
    for number, (chart, step) in enumerate(zip(charts, steps, strict=True), 1):
        for lane, span in enumerate(step["spans"]):
            (left, right), (first, last) = span["noisy"], span["restored"]
            chart.plot([left - 0.4, right + 0.4], [lane, lane], color="0.9", linewidth=4)
            colour = f"C{labels.index(span['label'])}" if span["label"] else _NO_ENTITY
            width = 1.0 + 2.0 * span["score"]
            chart.plot([first - 0.4, last + 0.4], [lane, lane], color=colour, linewidth=width)
        chart.set_ylabel(f"step {number}\nt = {step['timestep']}", rotation=0, ha="right")
        chart.set(yticks=[], xlim=(-0.6, len(words) - 0.4))
        chart.invert_yaxis()
    charts[-1].set_xticks(range(len(words)), [_plain(w) for w in words], rotation=35, ha="right")
    for number, label in enumerate(labels):
        charts[0].plot([], [], color=f"C{number}", linewidth=3, label=_plain(label))
    charts[0].plot([], [], color=_NO_ENTITY, linewidth=1, label="no entity")
    charts[0].plot([], [], color="0.9", linewidth=4, label="noisy span")
    figure.legend(loc="outside upper center", ncols=len(labels) + 2, fontsize="small")
    return figure


def _plain(text: str) -> str:
    """Escape dollars, which begin a formula."""
    return text.replace("$", r"\$")


_DRAW: dict[str, Callable[[Mapping[str, Any]], Figure]] = {
    "dots": _dots,
    "lines": lines,
    "trajectory": _trajectory,
}
