"""`diffusionner data convert`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffusionner.cli.data import shared
from diffusionner.cli.messages import say
from diffusionner.files import refuse_overwrite


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="File or folder to read.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="File or folder to write.")],
    from_format: Annotated[
        str | None,
        typer.Option("--from", metavar="FORMAT", help=shared.FORMAT_HELP, show_default=False),
    ] = None,
    to_format: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="See `data formats`.  [default: by the extension of OUT]",
            show_default=False,
        ),
    ] = None,
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Leave out what the format of OUT cannot hold.")
    ] = False,
) -> None:
    """Write a corpus in another format.

    Sentences stream through, so the size of the corpus does not matter. Entities that the other
    format cannot hold are an error unless `--lossy`. OUT appears when it is whole.

    Examples:

    * `diffusionner data convert corpus.jsonl corpus.conll --to conll:scheme=bioes`

    * `diffusionner data convert brat_folder corpus.jsonl`
    """
    from rich.console import Console

    from diffusionner import formats
    from diffusionner.data import conversion

    refuse_overwrite(target, source)
    chosen, _ = formats.choose(source, from_format)
    with shared.counting(f"converting {source}") as watch:
        sentences = watch(formats.iterate(source, from_format))
        done = conversion.convert(sentences, target, to_format, lossy)
    lines = [
        f"{source} ({chosen.name}) -> {target} ({done.format}): {done.sentences} sentences, "
        f"{done.entities} entities"
    ]
    lost = done.lost_entities + done.lost_irregular
    if lost:
        lines.append(
            f"left out: {lost} of {done.entities + lost} entities ({done.lost_entities} that "
            f"overlap others, {done.lost_irregular} in parts or cut through a word)"
        )
    if done.lost_text:
        lines.append(f"{done.format} holds words, not what stands between them in the text")
    if done.lost_docs:
        lines.append(f"{done.format} does not hold the names of documents")
    for line in lines:
        say(Console(), line)
