"""`diffusionner data merge`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffusionner.cli.data import shared
from diffusionner.cli.options import say
from diffusionner.files import refuse_overwrite

LISTED = 50  # labels of a file that were dropped


def merge(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="YAML file, see above.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="JSONL file to write.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Folder of the files that do not start with a dot.  [default: that of the recipe]",
        ),
    ] = None,
) -> None:
    """Merge corpora with different labels into one.

    The recipe lists the sources. Each has a `file` (any format), `labels` (a mapping to the new
    labels; other labels are dropped, and a label that the file lacks is an error) and optionally
    `names: true`, if the corpus also annotates phrases that are not names; `first` and `after`,
    numbers of sentences to take and to skip; and `format`.
    `labels: all` keeps every label. A list of new labels, as in `PER: [person, human]`, gives
    documents different words for one type, for a model that reads them.
    Each sentence stores in `types` the labels that it was annotated for, so that training does not
    treat unannotated entities as negatives.

    Example of a recipe:

        sources:
        - {file: news.conll, labels: {PER: person, ORG: organisation, MISC: other}}
        - {file: tweets.jsonl, labels: {person: person, group: organisation}}
    """
    from rich.console import Console

    from diffusionner.data import merging
    from diffusionner.data.conversion import convert

    sources = merging.read_recipe(recipe, data)
    refuse_overwrite(target, recipe, *(source.file for source in sources))
    dropped: dict[Path, set[str]] = {}
    with shared.counting(f"merging {len(sources)} corpora") as counted:
        done = convert(counted(merging.merge(sources, dropped)), target, "jsonl")
    labels = [source.new_labels for source in sources]
    everything = set().union(*labels)
    partial = sum(s.labels is None or s.new_labels != everything for s in sources)
    lines = [
        f"{target}: {done.sentences} sentences from {len(sources)} corpora, {done.entities} "
        f"entities; {partial} of the corpora annotate only some of the labels"
    ]
    for file, unmapped in dropped.items():
        if unmapped:
            more = f" and {len(unmapped) - LISTED:,} more" * (len(unmapped) > LISTED)
            lines.append(f"{file}: dropped {', '.join(sorted(unmapped)[:LISTED])}{more}")
    say(Console(), "\n".join(lines))
