"""`diffusionner data stats`"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffusionner.cli.data import shared
from diffusionner.cli.messages import say

if TYPE_CHECKING:
    from rich.table import Table

    from diffusionner.data.fingerprint import Fingerprint
    from diffusionner.data.statistics import Statistics


def stats(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Corpora.")],
    format: shared.Format = None,
    json_path: shared.Json = None,
    plot_path: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Also draw lengths, nesting and labels: .png, .svg or .pdf.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Count what is in corpora, as the paper's table of datasets does.

    An entity is nested if it lies inside another of its sentence or has another inside (or has the
    same words as one of another label); averages are over all sentences. The fingerprint changes
    with any word, entity or label: scores are comparable where it is the same.

    Example: `diffusionner data stats train.jsonl dev.jsonl test.jsonl --plot corpus.svg`
    """
    from rich.console import Console

    from diffusionner import formats
    from diffusionner.data import plots
    from diffusionner.data.statistics import gather

    if plot_path is not None:
        plots.check_path(plot_path)
    with shared.counting("reading") as watch:
        found = {str(path): gather(watch(formats.iterate(path, format))) for path in files}
    console = Console()
    console.print(to_table(found))
    for name, (_, fingerprint) in found.items():
        say(console, f"{name}: {fingerprint}")
    if json_path is not None:
        shared.write_json(
            json_path,
            [
                {"file": name, "fingerprint": fingerprint.to_dict(), **statistics.to_dict()}
                for name, (statistics, fingerprint) in found.items()
            ],
        )
    if plot_path is not None:
        names = shared.short_names(list(found))
        plots.plot({names[name]: statistics for name, (statistics, _) in found.items()}, plot_path)


def to_table(found: Mapping[str, tuple[Statistics, Fingerprint]]) -> Table:
    """A column a corpus: the paper's rows, then ours, then the labels."""
    from rich.table import Table
    from rich.text import Text

    from diffusionner.data.statistics import ranked

    names = shared.short_names(list(found))
    columns = [statistics for statistics, _ in found.values()]
    table = Table("")
    for name in found:
        table.add_column(Text(names[name]), justify="right")

    def add(heading: str, value: Callable[[Statistics], str]) -> None:
        # Text, because a label may hold brackets, which rich would take for markup.
        table.add_row(Text(heading), *(value(statistics) for statistics in columns))

    add("sentences", lambda s: str(s.sentences))
    add("  with nested entities", lambda s: str(s.nested_sentences))
    add("entities", lambda s: str(s.entities))
    add("  nested entities", lambda s: str(s.nested_entities))
    add("  nesting ratio (%)", lambda s: f"{s.nesting_ratio:.2f}")
    add("average sentence length", lambda s: f"{s.average_length:.2f}")
    add("maximum number of entities", lambda s: str(s.most_entities))
    add("average number of entities", lambda s: f"{s.average_entities:.2f}")
    table.add_section()
    add("documents", lambda s: str(s.documents or "-"))
    add("words", lambda s: str(s.words))
    add("longest sentence", lambda s: str(max(s.sentence_lengths, default=0)))
    add("longest entity", lambda s: str(max(s.entity_lengths, default=0)))
    if any(s.irregular for s in columns):
        add("in parts or cut through a word", lambda s: str(s.irregular))
    table.add_section()
    every = columns[0].labels.copy()
    for statistics in columns[1:]:
        every.update(statistics.labels)
    for label in ranked(every):
        add(label, partial(_count, label))
    return table


def _count(label: str, statistics: Statistics) -> str:
    count, total = statistics.labels[label], statistics.labels.total()
    return f"{count} ({100 * count / total:4.1f}%)" if total else "0"
