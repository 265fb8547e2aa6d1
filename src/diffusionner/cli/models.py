"""`diffusionner models`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from diffusionner.storage.registry import Shipped


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Print the card of this model.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The list as JSON.")] = False,
) -> None:
    """List the models that come with the package.

    Their names serve wherever a model is asked for: `--model en`, `encoder.name=en` to train on
    from it, `DiffusionNER.from_pretrained("en")`. The card of a model says what it was trained
    on, under which licence, how good it is and where it is not.

    Examples:

    * `diffusionner models`

    * `diffusionner models en`
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from diffusionner.storage import registry

    if name is not None:
        typer.echo(_card(name), nl=False)
        return
    found = [registry.describe(one) for one in registry.installed_models()]
    if as_json:
        text = json.dumps([one.to_dict() for one in found], indent=1, ensure_ascii=False)
        typer.echo(text)
        return
    table = Table(caption=f"in {registry.FOLDER}", caption_justify="left")
    for heading in ("name", "what", "types", "F1", "licence"):
        table.add_column(heading)
    table.add_column("MB", justify="right")
    for one in found:
        table.add_row(*map(Text, _cells(one)))
    Console().print(table)


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
            f"no card of a model '{name}' ({path}: {error.strerror}); give one of the names that "
            f"come with the package ({names}), or a folder that has a card"
        ) from error


def _cells(model: Shipped) -> list[str]:
    """A row of the table; what the card does not say stays empty."""
    about = model.about
    f1 = "\n".join(f"{corpus} {value}" for corpus, value in about.get("f1", {}).items())
    what = f"{about.get('description', '')} ({about.get('language', '?')})"
    licence, size = str(about.get("license", "")), f"{model.size / 1e6:.1f}"
    return [model.name, what, ", ".join(model.labels), f1, licence, size]
