"""Options and helpers shared by the commands on corpora."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffusionner.cli.options import progress
from diffusionner.corpus import Sentence

if TYPE_CHECKING:
    from rich.table import Table

FORMAT_HELP = "See `data formats`.  [default: detected]"
Format = Annotated[str | None, typer.Option("--format", metavar="FORMAT", help=FORMAT_HELP)]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write JSON.")]
Counted = Callable[[Iterable[Sentence]], Iterator[Sentence]]
_STEP = 1000  # sentences between updates of the display


@contextmanager
def counting(task_name: str) -> Iterator[Counted]:
    """Yield a function that passes sentences through and counts them on the terminal."""
    with progress() as tell:
        tell(task_name, 0, None)

        def counted(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
            for number, sentence in enumerate(sentences, 1):
                yield sentence
                if number % _STEP == 0:
                    tell(f"{task_name}: {number:,} sentences", number, None)

        yield counted


def column_table(corner: str, names: Iterable[str], title: str | None = None) -> Table:
    """Return an empty table with a right-aligned column for each name."""
    from rich.table import Table
    from rich.text import Text

    table = Table(corner, title=title)
    for name in names:
        table.add_column(Text(name), justify="right")  # Text, because it may contain brackets
    return table


def short_names(paths: Iterable[str]) -> list[str]:
    """Return the file name of each path or, if that is ambiguous, the path itself."""
    names = [(Path(path).name, path) for path in paths]
    count = Counter(name for name, _ in names)
    return [name if count[name] == 1 else path for name, path in names]
