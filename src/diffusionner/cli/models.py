"""`diffusionner models`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Print the card of this model.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the installed models and their folders.

    Use their names wherever a model is expected: `--model en`, `train --from en`,
    `DiffusionNER.from_pretrained("en")`. A model's card describes its training data, licence,
    accuracy and limits.

    Examples:

    * `diffusionner models`

    * `diffusionner models en`
    """
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    from diffusionner.storage import registry

    if name is not None:
        typer.echo(_card(name), nl=False)
        return
    found = [registry.describe(*one) for one in registry.installed_models().items()]
    if as_json:
        typer.echo(json.dumps(found, indent=1, ensure_ascii=False))
        return
    if not found:
        typer.echo("No model is installed. In a clone of the repository: pip install ./models/en")
        return
    table = Table("name", "description", "types", "F1", "licence", Column("MB", justify="right"))
    for one in found:
        table.add_row(*map(Text, _cells(one)))
    console = Console()
    console.print(table)
    for one in found:
        console.print(
            f"{one['name']}: {one['folder']}", markup=False, highlight=False, soft_wrap=True
        )


def _card(name: str) -> str:
    from diffusionner.errors import CheckpointError
    from diffusionner.storage import registry
    from diffusionner.storage.config import CARD

    path = Path(registry.resolve(name)) / CARD
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        names = ", ".join(registry.installed_models()) or "none"
        raise CheckpointError(
            f"no model card for '{name}' ({path}: {error.strerror}); give the name of an installed "
            f"model ({names}) or a model folder that has a card"
        ) from error


def _cells(model: dict[str, Any]) -> list[str]:
    """Return a row of the table; values missing from the card stay empty."""
    f1 = "\n".join(f"{corpus} {value}" for corpus, value in model.get("f1", {}).items())
    description = f"{model.get('description', '')} ({model.get('language', '?')})"
    licence, size = str(model.get("license", "")), f"{model['bytes'] / 1e6:.1f}"
    return [model["name"], description, ", ".join(model["labels"]), f1, licence, size]
