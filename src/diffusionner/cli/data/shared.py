"""What the commands on corpora share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from diffusionner.corpus import Sentence
from diffusionner.files import write_bytes

FORMAT_HELP = "NAME or NAME:OPTION=VALUE,...  [default: found out from the file]"
Format = Annotated[
    str | None, typer.Option("--format", metavar="FORMAT", help=FORMAT_HELP, show_default=False)
]
Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Also write it as JSON.", show_default=False),
]
_STEP = 1000  # sentences between updates of the display


def watch(sentences: Iterable[Sentence], what: str) -> Iterator[Sentence]:
    """The sentences, counted on the terminal while they pass."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield from sentences
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        for number, sentence in enumerate(sentences, 1):
            yield sentence
            if number % _STEP == 0:
                bar.update(task, description=f"{what}: {number:,} sentences")


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def short_names(paths: list[str]) -> dict[str, str]:
    """Each path's own name or, where that is not enough to tell them apart, the path."""
    names = [Path(path).name for path in paths]
    return {
        path: name if names.count(name) == 1 else path
        for path, name in zip(paths, names, strict=True)
    }
