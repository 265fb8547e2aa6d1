"""`diffusionner data split`"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffusionner.cli.data import shared
from diffusionner.cli.messages import say
from diffusionner.files import refuse_overwrite

if TYPE_CHECKING:
    from rich.table import Table

    from diffusionner.data.splitting import Part
    from diffusionner.data.statistics import Statistics


def split(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Corpus.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the parts go.")],
    parts: Annotated[
        str, typer.Option(metavar="NAME=SHARE,...", help="The parts; shares add up to 1.")
    ] = "train=0.8,dev=0.1,test=0.1",
    seed: Annotated[int, typer.Option(help="Another seed, another split.")] = 0,
    format: shared.Format = None,
    to_format: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="Format of the parts.  [default: that of IN]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Split a corpus into parts that are alike.

    Sentences of one document stay together; without documents, every sentence is dealt out for
    itself. Sentences, each label and nested entities are kept in proportion. The same corpus,
    parts and seed give the same split. Either all parts are written or none.

    Example: `diffusionner data split all.jsonl corpus --parts train=0.9,test=0.1 --seed 1`
    """
    from rich.console import Console

    from diffusionner import formats
    from diffusionner.data import splitting

    chosen = splitting.parse_parts(parts)
    given, _ = formats.choose(source, format)
    if to_format is None:
        # With its options: those that say how to read also say how to write.
        to_format = format or given.name
    written, _ = formats.choose_output(folder, to_format)
    suffix = source.suffix
    if written is not given:
        suffix = written.extensions[0] if written.extensions else ""
    paths = {part: folder / (part.name + ("" if written.folder else suffix)) for part in chosen}
    for path in paths.values():
        refuse_overwrite(path, source)
    with shared.counting(f"splitting {source}") as watch:
        found = splitting.split(
            lambda: watch(formats.iterate(source, format)), paths, seed, to_format
        )
    console = Console()
    console.print(to_table(found))
    for part, path in paths.items():
        line = f"{part.name}: {path}"
        say(console, line)


def to_table(found: Mapping[Part, Statistics]) -> Table:
    """A column a part: how much it got of everything, and which share of all that is."""
    from rich.table import Table
    from rich.text import Text

    table = Table("")
    for part in found:
        table.add_column(Text(f"{part.name} ({100 * part.share:g}%)"), justify="right")

    def add(heading: str, count: Callable[[Statistics], int]) -> None:
        counts = [count(statistics) for statistics in found.values()]
        total = sum(counts)
        if total:
            cells = (f"{n} ({100 * n / total:5.2f}%)" for n in counts)
            table.add_row(Text(heading), *cells)

    add("documents", lambda s: s.documents)
    add("sentences", lambda s: s.sentences)
    add("words", lambda s: s.words)
    add("entities", lambda s: s.entities)
    add("nested entities", lambda s: s.nested_entities)
    table.add_section()
    for label in sorted({label for statistics in found.values() for label in statistics.labels}):
        add(label, partial(_count, label))
    return table


def _count(label: str, statistics: Statistics) -> int:
    return statistics.labels[label]
