"""`diffusionner data split`"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffusionner.cli.data import shared
from diffusionner.cli.options import say
from diffusionner.files import refuse_overwrite

if TYPE_CHECKING:
    from rich.table import Table

    from diffusionner.data.statistics import Statistics


def split(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Corpus.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Output folder.")],
    parts: Annotated[
        str, typer.Option(metavar="NAME=SHARE,...", help="Parts; the shares sum to 1.")
    ] = "train=0.8,dev=0.1,test=0.1",
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    format: shared.Format = None,
    to_format: Annotated[
        str | None,
        typer.Option("--to", metavar="FORMAT", help="Output format.  [default: that of IN]"),
    ] = None,
) -> None:
    """Split a corpus into parts with similar contents.

    Sentences of one document stay together; without documents, each sentence is assigned
    separately. The number of sentences, each label, nested and discontinuous entities are kept in
    proportion. The same corpus, parts and seed give the same split. Either all parts are written or
    none.

    Example: `diffusionner data split all.jsonl corpus --parts train=0.9,test=0.1 --seed 1`
    """
    from rich.console import Console

    from diffusionner import formats
    from diffusionner.data import splitting

    shares = splitting.parse_shares(parts)
    input_format, _ = formats.resolve_input_format(source, format)
    if to_format is None:
        # With its options: they apply to writing as well.
        to_format = format or input_format.name
    output_format, _ = formats.resolve_output_format(folder, to_format)
    suffix = source.suffix
    if output_format is not input_format:
        suffix = output_format.extensions[0] if output_format.extensions else ""
    if output_format.folder:
        suffix = ""
    paths = {name: folder / (name + suffix) for name in shares}
    for path in paths.values():
        refuse_overwrite(path, source)
    with shared.counting(f"splitting {source}") as counted:
        statistics = splitting.split(
            lambda: counted(formats.iterate(source, format)), shares, paths, seed, to_format
        )
    console = Console()
    console.print(_table(statistics, shares))
    for name, path in paths.items():
        say(console, f"{name}: {path}")


def _table(parts: Mapping[str, Statistics], shares: Mapping[str, float]) -> Table:
    """Return a column for each part: counts and their share of the total."""
    from rich.text import Text

    headings = [f"{name} ({100 * share:g}%)" for name, share in shares.items()]
    table = shared.column_table("", headings)

    def add(heading: str, counts: list[int]) -> None:
        total = sum(counts)
        if total:
            table.add_row(Text(heading), *(f"{n} ({100 * n / total:5.2f}%)" for n in counts))

    for name in ("documents", "sentences", "words", "entities", "nested_entities", "discontinuous"):
        add(name.replace("_", " "), [getattr(part, name) for part in parts.values()])
    table.add_section()
    for label in sorted({label for part in parts.values() for label in part.labels}):
        add(label, [part.labels[label] for part in parts.values()])
    return table
