"""`diffusionner data stats`"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffusionner.cli.data import shared
from diffusionner.cli.options import say
from diffusionner.files import to_json, write_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from diffusionner.data.statistics import Statistics


def stats(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Corpora.")],
    format: shared.Format = None,
    json_path: shared.Json = None,
    plot_path: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE", help="Also plot lengths, nesting, labels (.png, .svg, .pdf)."
        ),
    ] = None,
) -> None:
    """Show the statistics of corpora that the paper reports, and more.

    An entity is nested if it contains another of its sentence or lies inside another (or has the
    same words as one with another label). Averages are over all sentences. The fingerprint changes
    with any word, entity or label: scores are comparable if it is the same. Irregular annotations
    do not align with token boundaries.

    Example: `diffusionner data stats train.jsonl dev.jsonl test.jsonl --plot corpus.svg`
    """
    from rich.console import Console

    from diffusionner import formats
    from diffusionner.data import plots
    from diffusionner.data.statistics import collect_statistics

    if plot_path is not None:
        plots.check_path(plot_path)
    with shared.counting("reading") as counted:
        found = {
            str(path): collect_statistics(counted(formats.iterate(path, format))) for path in files
        }
    columns = zip(shared.short_names(found), found.values(), strict=True)
    statistics = {name: each for name, (each, _) in columns}
    console = Console()
    console.print(_table(statistics))
    for path, (_, fingerprint) in found.items():
        say(console, f"{path}: {fingerprint}")
    if json_path is not None:
        values = [
            {"file": path, "fingerprint": fingerprint.to_dict(), **each.to_dict()}
            for path, (each, fingerprint) in found.items()
        ]
        write_bytes(json_path, to_json(values))
    if plot_path is not None:
        plots.plot(statistics, plot_path)


def _table(corpora: Mapping[str, Statistics]) -> Table:
    """Return a column for each corpus: the paper's rows, further counts, the labels."""
    from collections import Counter

    from rich.text import Text

    from diffusionner.data.statistics import MORE_COUNTS, PAPER_COUNTS, most_frequent

    table = shared.column_table("", corpora)
    columns = corpora.values()
    for section in (PAPER_COUNTS, MORE_COUNTS):
        for name in section:
            values = [getattr(each, name) for each in columns]
            cells = (f"{v:.2f}" if isinstance(v, float) else str(v) for v in values)
            table.add_row(name.replace("_", " ").replace("ratio", "ratio (%)"), *cells)
        table.add_section()
    for label in most_frequent(sum((each.labels for each in columns), Counter())):
        counts = [(each.labels[label], each.labels.total()) for each in columns]
        cells = (f"{n} ({100 * n / total:4.1f}%)" if total else "0" for n, total in counts)
        table.add_row(Text(label), *cells)  # Text, because it may contain brackets
    return table
