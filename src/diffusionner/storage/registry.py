"""The trained models that come with the package, and finding any other by its name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from diffusionner.errors import CheckpointError
from diffusionner.storage.config import CARD, read_config

ENTRY_POINTS = "diffusionner.models"  # each names the package that holds a model's files
DEFAULT = "en"
_HUB_NAME = re.compile(r"(\w[\w.-]*)/\w[\w.-]*", re.ASCII)
_FETCHED = ["*.safetensors", "*.json", "*.txt", "*.onnx"]  # nothing that could hold code


@dataclass(frozen=True)
class Shipped:
    """What is said of a model in a list."""

    name: str
    folder: Path
    labels: list[str]
    size: int  # bytes, of all its files
    about: dict[str, Any]  # front matter of its card; empty where there is none

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "folder": str(self.folder),
            "labels": self.labels,
            "bytes": self.size,
            **self.about,
        }


def installed_models() -> dict[str, Path]:
    """Return the folder of each installed model package by name, the default first.

    No code of a model package is run.
    """
    found = {}
    for entry in entry_points(group=ENTRY_POINTS):
        spec = find_spec(entry.value)
        if spec is not None and spec.submodule_search_locations:
            found[entry.name] = Path(spec.submodule_search_locations[0])
    return {name: found[name] for name in sorted(found, key=lambda x: (x != DEFAULT, x))}


def resolve(model: str | Path) -> str | Path:
    """The folder of a shipped model for its name; anything else as it is.

    A name means the shipped model even where the working directory has a folder called the same:
    that one is `./en`. A Path is always a folder, never a name.
    """
    return model if isinstance(model, Path) else installed_models().get(model, model)


def find_model(model: str | Path | None = None) -> Path:
    """The folder of a model: a shipped one by its name (None: the default), any on this machine by
    its path, or else one that the Hugging Face hub has under that name.
    """
    place = resolve(DEFAULT if model is None else model)
    if place == DEFAULT:
        raise CheckpointError(
            f"no model '{DEFAULT}' is installed; run `pip install ./models/{DEFAULT}` in a clone "
            "of the repository, or give the folder of a model"
        )
    if isinstance(place, Path) or Path(place).exists():
        return Path(place)
    if not re.search(r"[/\\].", place):  # a mere name
        raise CheckpointError(
            f"no model in '{place}': there is no such folder, and with the package come "
            f"{' and '.join(installed_models())}"
        )
    if not _is_hub_name(place):
        return Path(place)
    return _fetch(place)


def describe(name: str) -> Shipped:
    folder = installed_models()[name]
    labels = read_config(folder)["labels"]
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    return Shipped(name, folder, labels, size, front_matter(folder / CARD))


def front_matter(card: Path) -> dict[str, Any]:
    """The YAML between two lines of dashes at the top of a model card."""
    try:
        found = re.match(r"---\n(.*?\n)---\n", card.read_text(encoding="utf-8"), re.DOTALL)
        values = yaml.safe_load(found[1]) if found else {}
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CheckpointError(f"{card} cannot be read: {error}") from error
    return values if isinstance(values, dict) else {}


def _is_hub_name(name: str) -> bool:
    """user/model; but runs/model is a mistyped path where there is a folder runs."""
    found = _HUB_NAME.fullmatch(name)
    return found is not None and not Path(found[1]).is_dir()


def _fetch(name: str) -> Path:
    """The model's files from the hub, or from its cache on this machine."""
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=_FETCHED))
    except Exception as error:  # those of the HTTP library beneath it have no common class
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        names = ", ".join(installed_models()) or "none"
        raise CheckpointError(
            f"no model '{name}': there is no such folder, none comes with the package under that "
            f"name (these do: {names}), and the Hugging Face hub gives none: {reason}\n"
            "Check the name. Offline, use one that comes with the package, or copy the folder of "
            "the model to this machine and give its path."
        ) from error
