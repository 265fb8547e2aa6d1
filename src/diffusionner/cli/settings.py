"""`diffusionner settings`"""

from __future__ import annotations

UNLIMITED = 10_000  # columns, so that redirected output has one setting per line
MIN_REST = 40  # columns for the values, defaults and descriptions


def settings() -> None:
    """List every setting with its allowed values, default and description."""
    from rich.console import Console
    from rich.table import Table

    from diffusionner.settings import describe

    rows = describe()
    table = Table("setting", "values", "default", "description")
    for name, allowed, default, text in rows:
        table.add_row(name, allowed, "null" if default is None else str(default), text)
    console = Console()
    names = max(len(name) for name, *_ in rows)
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.overflow = "fold"
    # On a narrow terminal the terminal wraps long lines; rich would truncate the names.
    console.width = max(console.width, names + MIN_REST) if console.is_terminal else UNLIMITED
    console.print(table)
