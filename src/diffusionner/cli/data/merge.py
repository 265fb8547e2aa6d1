"""`diffusionner data merge`"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffusionner.cli.data import shared
from diffusionner.cli.messages import say
from diffusionner.files import refuse_overwrite

if TYPE_CHECKING:
    from diffusionner.corpus import Sentence


def merge(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="YAML file, described above.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="JSONL file to write.")],
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder of the files.  [default: that of the recipe]"),
    ] = None,
) -> None:
    """Make one corpus of several whose labels differ.

    The recipe lists them: `file` (any format), `labels` (what each of its labels becomes; others
    are left out, one that it lacks is an error) and `names: true` for a corpus that marks more than
    names.
    Each sentence keeps in `types` which labels its annotators looked for, so that training does not
    take for "no entity" what nobody marked.

    Example of a recipe:

        sources:
        - {file: news.conll, labels: {PER: person, ORG: organisation, MISC: other}}
        - {file: tweets.jsonl, labels: {person: person, group: organisation}}
    """
    from rich.console import Console

    from diffusionner import formats
    from diffusionner.data import merging

    parts = merging.read_recipe(recipe, data)
    refuse_overwrite(target, recipe, *(part.file for part in parts))
    notes: list[str] = []
    count = entities = partial = 0

    def left_out(part: merging.Part, labels: set[str]) -> None:
        if labels:
            notes.append(f"{part.file}: left out {', '.join(sorted(labels))}")

    def counted() -> Iterator[Sentence]:
        nonlocal count, entities, partial
        for sentence in watch(merging.merge(parts, left_out)):
            count += 1
            entities += len(sentence.entities)
            partial += sentence.types is not None
            yield sentence

    with shared.counting(f"merging {len(parts)} corpora") as watch:
        formats.write(target, counted(), "jsonl")
    summary = (
        f"{target}: {count} sentences of {len(parts)} corpora, {entities} entities; in {partial} "
        "only some of the labels were looked for"
    )
    for line in (summary, *notes):
        say(Console(), line)
