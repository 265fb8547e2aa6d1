"""`diffusionner settings`"""

from __future__ import annotations

WIDE = 10_000  # columns: who reads a pipe or a file wants each setting on a line of its own
REST = 40  # columns that are needed beside the names


def settings() -> None:
    """List every setting: name, possible values, default and meaning."""
    from rich.console import Console
    from rich.table import Table

    from diffusionner.settings import describe

    found = describe()
    table = Table("setting", "values", "default", "meaning")
    for name, allowed, default, meaning in found:
        table.add_row(name, allowed, "null" if default is None else str(default), meaning)
    console = Console()
    names = max(len(name) for name, *_ in found)
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.overflow = "fold"
    # A terminal breaks lines that are too long; rich would cut the names.
    console.width = max(console.width, names + REST) if console.is_terminal else WIDE
    console.print(table)
