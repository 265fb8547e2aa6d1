"""`diffusionner data merge`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffusionner.cli.data import shared
from diffusionner.cli.messages import say
from diffusionner.files import refuse_overwrite


def merge(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="YAML file, see above.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="JSONL file to write.")],
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder of the files.  [default: that of the recipe]"),
    ] = None,
) -> None:
    """Merge corpora with different labels into one.

    The recipe lists the sources. Each has a `file` (any format), `labels` (a mapping to the new
    labels; other labels are dropped, and a label that the file lacks is an error) and optionally
    `names: true`, if the corpus also annotates phrases that are not names.
    Each sentence stores in `types` the labels that it was annotated for, so that training does not
    treat unannotated entities as negatives.

    Example of a recipe:

        sources:
        - {file: news.conll, labels: {PER: person, ORG: organisation, MISC: other}}
        - {file: tweets.jsonl, labels: {person: person, group: organisation}}
    """
    from collections import Counter
    from collections.abc import Iterator

    from rich.console import Console

    from diffusionner import formats
    from diffusionner.corpus import Sentence
    from diffusionner.data import merging

    sources = merging.read_recipe(recipe, data)
    refuse_overwrite(target, recipe, *(source.file for source in sources))
    dropped: dict[Path, set[str]] = {}
    totals: Counter[str] = Counter()

    def merged() -> Iterator[Sentence]:
        for sentence in counted(merging.merge(sources, dropped)):
            partial = sentence.types is not None
            totals.update(sentences=1, entities=len(sentence.entities), partial=partial)
            yield sentence

    with shared.counting(f"merging {len(sources)} corpora") as counted:
        formats.write(target, merged(), "jsonl")
    console = Console()
    say(
        console,
        f"{target}: {totals['sentences']} sentences from {len(sources)} corpora, "
        f"{totals['entities']} entities; {totals['partial']} sentences are annotated for only some "
        "of the labels",
    )
    for file, labels in dropped.items():
        if labels:
            say(console, f"{file}: dropped {', '.join(sorted(labels))}")
