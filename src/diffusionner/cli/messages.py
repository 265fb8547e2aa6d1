"""Plain output of the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def say(console: Console, line: str) -> None:
    """Print a line without highlighting, markup or line breaks."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)
