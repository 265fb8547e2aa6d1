"""`diffusionner data stats`"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffusionner.cli.data import shared
from diffusionner.cli.messages import say

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
    with any word, entity or label: scores are comparable if it is the same.

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
    names = shared.short_names(list(found))
    statistics = {names[path]: each for path, (each, _) in found.items()}
    console = Console()
    console.print(_table(statistics))
    for path, (_, fingerprint) in found.items():
        say(console, f"{path}: {fingerprint}")
    if json_path is not None:
        shared.write_json(
            json_path,
            [
                {"file": path, "fingerprint": fingerprint.to_dict(), **each.to_dict()}
                for path, (each, fingerprint) in found.items()
            ],
        )
    if plot_path is not None:
        plots.plot(statistics, plot_path)


def _table(corpora: Mapping[str, Statistics]) -> Table:
    """Return a column for each corpus: the paper's rows, further counts, the labels."""
    from collections import Counter

    from rich.table import Table
    from rich.text import Text

    from diffusionner.data.statistics import most_frequent

    table = Table("")
    for name in corpora:
        table.add_column(Text(name), justify="right")

    def add(heading: str, value: Callable[[Statistics], object]) -> None:
        # Text, because rich would interpret brackets in a label as markup.
        table.add_row(Text(heading), *(str(value(each)) for each in corpora.values()))

    def share(statistics: Statistics, label: str) -> str:
        count, total = statistics.labels[label], statistics.labels.total()
        return f"{count} ({100 * count / total:4.1f}%)" if total else "0"

    add("sentences", lambda s: s.sentences)
    add("  with nested entities", lambda s: s.nested_sentences)
    add("entities", lambda s: s.entities)
    add("  nested entities", lambda s: s.nested_entities)
    add("  nesting ratio (%)", lambda s: f"{s.nesting_ratio:.2f}")
    add("average sentence length", lambda s: f"{s.average_length:.2f}")
    add("maximum number of entities", lambda s: s.max_entities)
    add("average number of entities", lambda s: f"{s.average_entities:.2f}")
    table.add_section()
    add("documents", lambda s: s.documents or "-")
    add("words", lambda s: s.words)
    add("longest sentence", lambda s: max(s.sentence_lengths, default=0))
    add("longest entity", lambda s: max(s.entity_lengths, default=0))
    if any(each.irregular for each in corpora.values()):
        add("discontinuous or misaligned", lambda s: s.irregular)
    table.add_section()
    labels: Counter[str] = sum((each.labels for each in corpora.values()), Counter())
    for label in most_frequent(labels):
        add(label, lambda s, label=label: share(s, label))  # type: ignore[misc]
    return table
