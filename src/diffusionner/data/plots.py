"""Plots of corpus statistics, one colour per corpus."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from diffusionner.data.statistics import Statistics, most_frequent
from diffusionner.errors import DataError
from diffusionner.files import write_all_or_none

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EXTENSIONS = (".png", ".svg", ".pdf")
_SHOWN = 0.999  # share of sentences and entities in range: outliers would squeeze the rest
_MAX_LABELS = 30


def check_path(path: Path) -> None:
    """Raise DataError if no plot can be written to `path`."""
    if path.suffix.lower() not in EXTENSIONS:
        raise DataError(f"{path}: a plot must be one of {', '.join(EXTENSIONS)}; rename it")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise DataError(
            "plots need the package 'matplotlib'; install it, in a clone, with: "
            "pip install '.[plot]'"
        ) from error


def plot(corpora: Mapping[str, Statistics], path: Path) -> None:
    """Draw four charts: lengths and nesting in percent of each corpus, labels in numbers."""
    check_path(path)
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot, which needs a display

    labels = sum((statistics.labels for statistics in corpora.values()), Counter[str]())
    shown = most_frequent(labels)[:_MAX_LABELS]
    figure = Figure(figsize=(11, 7 + 0.1 * len(shown)), layout="constrained")
    ((lengths, sizes), (nesting, types)) = figure.subplots(2, 2)
    _draw_curves(lengths, {name: s.sentence_lengths for name, s in corpora.items()})
    lengths.set(title="sentence length", xlabel="words", ylabel="% of sentences")
    _draw_bars(sizes, [statistics.entity_lengths for statistics in corpora.values()])
    sizes.set(title="entity length", xlabel="words", ylabel="% of entities")
    _draw_bars(nesting, [statistics.nesting_depths for statistics in corpora.values()])
    nesting.set(title="nesting depth", xlabel="containing entities", ylabel="% of entities")
    _draw_labels(types, [statistics.labels for statistics in corpora.values()], shown)
    more = len(labels) - len(shown)
    types.set(title=f"labels ({more} more)" if more else "labels", xlabel="entities")
    figure.legend(
        *lengths.get_legend_handles_labels(), loc="outside upper center", ncols=min(4, len(corpora))
    )
    extension = path.suffix.lower()[1:]
    # No date and no random identifiers: the same corpus gives the same file.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(extension)
    with matplotlib.rc_context({"svg.hashsalt": "diffusionner"}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one for each character missing from the font
        write_all_or_none(
            {path: lambda file: figure.savefig(file, format=extension, dpi=150, metadata=metadata)}
        )


def _percentages(counts: Counter[int]) -> dict[int, float]:
    total = counts.total() or 1
    return {size: 100 * counts[size] / total for size in sorted(counts)}


def _draw_curves(axes: Axes, corpora: Mapping[str, Counter[int]]) -> None:
    for name, counts in corpora.items():
        shares = _percentages(counts)
        sizes = range(1, max(shares, default=1) + 1)
        axes.plot(list(sizes), [shares.get(size, 0.0) for size in sizes], label=_escape(name))
    axes.set_xlim(0, max(map(_largest_shown, corpora.values())) + 1)


def _draw_bars(axes: Axes, corpora: Sequence[Counter[int]]) -> None:
    from matplotlib.ticker import MaxNLocator

    width = 0.8 / len(corpora)
    for number, counts in enumerate(corpora):
        shares = _percentages(counts)
        shift = (number + 0.5) * width - 0.4
        axes.bar([size + shift for size in shares], list(shares.values()), width)
    first = min((size for counts in corpora for size in counts), default=0)
    axes.set_xlim(first - 0.5, max(map(_largest_shown, corpora)) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_labels(axes: Axes, corpora: Sequence[Counter[str]], shown: list[str]) -> None:
    width = 0.8 / len(corpora)
    for number, counts in enumerate(corpora):
        shift = (number + 0.5) * width - 0.4
        places = [row + shift for row in range(len(shown))]
        axes.barh(places, [counts[label] for label in shown], width)
    axes.set_yticks(range(len(shown)), [_escape(label) for label in shown])
    axes.invert_yaxis()


def _largest_shown(counts: Counter[int]) -> int:
    """Return the smallest size that covers the share `_SHOWN`."""
    seen, total = 0, counts.total()
    for size in sorted(counts):
        seen += counts[size]
        if seen >= _SHOWN * total:
            return size
    return 1


def _escape(text: str) -> str:
    """Escape dollars, which start a formula, and drop underscores that hide a legend entry."""
    return text.replace("$", r"\$").lstrip("_") or text
