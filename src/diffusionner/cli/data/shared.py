"""What the commands on corpora share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from diffusionner.corpus import Sentence
from diffusionner.files import write_bytes

FORMAT_HELP = "See `data formats`.  [default: found out from the file]"
Format = Annotated[
    str | None, typer.Option("--format", metavar="FORMAT", help=FORMAT_HELP, show_default=False)
]
Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Also write it as JSON.", show_default=False),
]
Watch = Callable[[Iterable[Sentence]], Iterator[Sentence]]
_STEP = 1000  # sentences between updates of the display


@contextmanager
def counting(what: str) -> Iterator[Watch]:
    """A function that lets sentences pass and counts them on the terminal meanwhile."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    text = TextColumn("{task.description}", markup=False)  # a path may hold brackets
    with Progress(
        SpinnerColumn(), text, TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task(what, total=None)

        def watch(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
            for number, sentence in enumerate(sentences, 1):
                yield sentence
                if number % _STEP == 0:
                    bar.update(task, description=f"{what}: {number:,} sentences")

        yield watch


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def short_names(paths: list[str]) -> dict[str, str]:
    """Each path's own name or, where that is not enough to tell them apart, the path."""
    names = [Path(path).name for path in paths]
    return {
        path: name if names.count(name) == 1 else path
        for path, name in zip(paths, names, strict=True)
    }
