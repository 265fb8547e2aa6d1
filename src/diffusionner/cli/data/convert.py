"""`diffusionner data convert`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffusionner.cli.data import shared
from diffusionner.cli.options import say
from diffusionner.files import refuse_overwrite


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="File or folder to read.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="File or folder to write.")],
    from_format: Annotated[
        str | None,
        typer.Option("--from", metavar="FORMAT", help=shared.FORMAT_HELP),
    ] = None,
    to_format: Annotated[
        str | None,
        typer.Option("--to", metavar="FORMAT", help="[default: by the extension of OUT]"),
    ] = None,
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Drop what the output format cannot represent.")
    ] = False,
) -> None:
    """Convert a corpus to another format.

    Sentences are streamed, so the corpus may have any size. Entities that the output format cannot
    represent are an error unless `--lossy` is given. OUT appears only once it is complete.

    Examples:

    * `diffusionner data convert corpus.jsonl corpus.conll --to conll:scheme=bioes`

    * `diffusionner data convert brat_folder corpus.jsonl`
    """
    from rich.console import Console

    from diffusionner import formats
    from diffusionner.data import conversion

    refuse_overwrite(target, source)
    chosen, _ = formats.resolve_input_format(source, from_format)
    with shared.counting(f"converting {source}") as counted:
        sentences = counted(formats.iterate(source, from_format))
        done = conversion.convert(sentences, target, to_format, lossy)
    lines = [
        f"{source} ({chosen.name}) -> {target} ({done.format}): {done.sentences} sentences, "
        f"{done.entities} entities"
    ]
    lost = done.lost_entities + done.lost_discontinuous + done.lost_irregular
    if lost:
        lines.append(
            f"dropped {lost} of {done.entities + lost} entities ({done.lost_entities} that "
            f"overlap others, {done.lost_discontinuous} discontinuous, {done.lost_irregular} "
            "misaligned)"
        )
    if done.lost_text:
        lines.append(f"{done.format} stores only words, not the white space between them")
    say(Console(), "\n".join(lines))
