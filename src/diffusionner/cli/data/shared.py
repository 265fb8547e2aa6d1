"""Options and helpers shared by the commands on corpora."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffusionner.corpus import Sentence
from diffusionner.files import write_bytes

if TYPE_CHECKING:
    from rich.table import Table

FORMAT_HELP = "See `data formats`.  [default: detected]"
Format = Annotated[str | None, typer.Option("--format", metavar="FORMAT", help=FORMAT_HELP)]
Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Also write JSON."),
]
Counted = Callable[[Iterable[Sentence]], Iterator[Sentence]]
_STEP = 1000  # sentences between updates of the display


@contextmanager
def counting(task_name: str) -> Iterator[Counted]:
    """Yield a function that passes sentences through and counts them on the terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    text = TextColumn("{task.description}", markup=False)  # a path may contain brackets
    columns = SpinnerColumn(), text, TimeElapsedColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(task_name, total=None)

        def counted(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
            for number, sentence in enumerate(sentences, 1):
                yield sentence
                if number % _STEP == 0:
                    progress.update(task, description=f"{task_name}: {number:,} sentences")

        yield counted


def column_table(corner: str, names: Iterable[str], title: str | None = None) -> Table:
    """Return an empty table with a right-aligned column for each name."""
    from rich.table import Table
    from rich.text import Text

    table = Table(corner, title=title)
    for name in names:
        table.add_column(Text(name), justify="right")  # Text, because it may contain brackets
    return table


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def short_names(paths: list[str]) -> dict[str, str]:
    """Return the file name of each path or, if that is ambiguous, the path itself."""
    names = [Path(path).name for path in paths]
    return {
        path: name if names.count(name) == 1 else path
        for path, name in zip(paths, names, strict=True)
    }
