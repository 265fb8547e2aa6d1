"""What the commands say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def say(console: Console, line: str) -> None:
    """A line as it is: no colours for numbers, and broken only by the terminal."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)
