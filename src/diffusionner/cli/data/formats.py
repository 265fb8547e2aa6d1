"""`diffusionner data formats`"""

from __future__ import annotations


def formats() -> None:
    """List the formats of corpora and their options with their defaults.

    Options follow the name of the format: `--format conll:word=1,labels=2+3`.
    """
    import dataclasses

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from diffusionner.formats import FORMATS

    table = Table("format", "written", "extensions", "options", "what")
    for format in FORMATS.values():
        options = (f"{f.name}={_shown(f.default)}" for f in dataclasses.fields(format.options))
        table.add_row(
            format.name,
            "no" if format.write is None else "folder" if format.folder else "file",
            " ".join(format.extensions),
            Text("\n".join(options)),  # not markup, whatever stands in it
            Text(format.summary),
        )
    Console().print(table)


def _shown(default: object) -> str:
    """As one would write it."""
    return str(default).lower() if isinstance(default, bool) else str(default)
