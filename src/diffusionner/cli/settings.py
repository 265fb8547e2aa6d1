"""`diffusionner settings`"""

from __future__ import annotations


def settings() -> None:
    """List every setting: name, possible values, default and meaning."""
    from rich.console import Console
    from rich.table import Table

    from diffusionner.settings import describe

    table = Table("setting", "values", "default", "meaning")
    for name, allowed, default, meaning in describe():
        table.add_row(name, allowed, "null" if default is None else str(default), meaning)
    Console().print(table)
