"""`diffusionner data formats`"""

from __future__ import annotations


def formats() -> None:
    """List the corpus formats and their options with default values.

    Options follow the name of the format: `--format conll:word=1,labels=2+3`.
    """
    import dataclasses

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from diffusionner.formats import FORMATS

    table = Table("format", "writes", "extensions", "options", "description")
    for format in FORMATS.values():
        defaults = {f.name: f.default for f in dataclasses.fields(format.options)}
        options = [
            f"{name}={str(value).lower() if isinstance(value, bool) else value}"
            for name, value in defaults.items()
        ]
        table.add_row(
            format.name,
            "no" if format.write is None else "folder" if format.folder else "file",
            " ".join(format.extensions),
            Text("\n".join(options)),  # Text, because it may contain brackets
            Text(format.summary),
        )
    Console().print(table)
