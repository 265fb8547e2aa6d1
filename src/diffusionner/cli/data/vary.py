"""`diffusionner data vary`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffusionner.cli.data import shared
from diffusionner.cli.options import say
from diffusionner.files import refuse_overwrite


def vary(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Corpus.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="JSONL file to write.")],
    share: Annotated[
        float, typer.Option(help="Share of the sentences that get a varied copy, from 0 to 1.")
    ] = 0.3,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    format: shared.Format = None,
) -> None:
    """Add varied copies of sentences to a corpus, so that a model learns to read untidy text.

    The copies are in lower case, capitals or title case, stretches of speech without capitals and
    punctuation, or text with the errors of a scanner. Lists and tables of names from the corpus are
    added as well. The same corpus, share and seed give the same copies.

    Example: `diffusionner data vary train.jsonl varied.jsonl --share 0.3 --seed 1`
    """
    from rich.console import Console

    from diffusionner import formats
    from diffusionner.data import variation
    from diffusionner.data.conversion import convert

    refuse_overwrite(target, source)
    sentences = formats.read(source, format)
    with shared.counting(f"varying {source}") as counted:
        done = convert(counted(variation.vary(sentences, share, seed)), target, "jsonl")
    say(
        Console(),
        f"{target}: {done.sentences} sentences, {done.sentences - len(sentences)} of them varied "
        f"copies or lines of lists; {done.entities} entities",
    )
