"""Registry of installed model packages; finds a model by name, by path or on the hub."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from diffusionner.errors import CheckpointError
from diffusionner.files import read_bounded
from diffusionner.storage.config import CARD, MAX_CONFIG, read_config

ENTRY_POINTS = "diffusionner.models"  # each value is the package that holds a model's files
DEFAULT = "en"
PROVIDED = (DEFAULT, "bio", "open")  # the packages in models/ of the repository
_HUB_NAME = re.compile(r"(\w[\w.-]*)/\w[\w.-]*", re.ASCII)
_HUB_FILES = ["*.safetensors", "*.json", "*.txt", "*.onnx"]  # nothing that could contain code


def installed_models() -> dict[str, Path]:
    """Return the folder of each installed model by name, the default model first.

    Model packages are located but never imported, so none of their code runs.
    """
    folders = {}
    for entry in entry_points(group=ENTRY_POINTS):
        # Looking up a submodule would import its parent package.
        spec = find_spec(entry.value) if entry.value.isidentifier() else None
        if spec is not None and spec.submodule_search_locations:
            folders[entry.name] = Path(spec.submodule_search_locations[0])
    return {name: folders[name] for name in sorted(folders, key=lambda x: (x != DEFAULT, x))}


def resolve(model: str | Path) -> str | Path:
    """Return the folder of an installed model, or the argument itself if it names none.

    A name refers to the installed model even if the working directory has a folder of that name;
    write `./en` for the folder. A Path is always a folder.
    """
    return model if isinstance(model, Path) else installed_models().get(model, model)


def find_model(model: str | Path | None = None) -> Path:
    """Return the folder of a model, downloading it from the Hugging Face hub if necessary.

    model: an installed model, a folder, or a name on the hub; None for the default model.
    """
    place = resolve(DEFAULT if model is None else model)
    if place in PROVIDED:
        raise CheckpointError(
            f"the model '{place}' is not installed; in a clone of the repository, install it with "
            f"`pip install ./models/{place}`, or give the path of another model's folder"
        )
    if isinstance(place, Path) or Path(place).exists():
        return Path(place)
    if not re.search(r"[/\\].", place):  # neither a path nor a name on the hub
        raise CheckpointError(
            f"no model in '{place}': there is no such folder and no installed model has that name "
            f"({_installed_names()})"
        )
    hub_name = _HUB_NAME.fullmatch(place)
    # If there is a folder `runs`, runs/model is a mistyped path.
    return _download(place) if hub_name and not Path(hub_name[1]).is_dir() else Path(place)


def describe(name: str, folder: Path) -> dict[str, Any]:
    """Return the labels and size of an installed model, and the front matter of its card."""
    labels = read_config(folder)["labels"]
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    values = {"name": name, "folder": str(folder), "labels": labels, "bytes": size}
    return values | front_matter(folder / CARD)


def front_matter(card: Path) -> dict[str, Any]:
    """Return the YAML front matter of a model card; empty if there is none."""
    try:
        text = read_bounded(card, MAX_CONFIG).decode().replace("\r\n", "\n")
        match = re.match(r"---\n(.*?\n)---\n", text, re.DOTALL)
        values = yaml.safe_load(match[1]) if match else {}
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise CheckpointError(f"cannot read {card}: {error}") from error
    return values if isinstance(values, dict) else {}


def _installed_names() -> str:
    return f"installed: {', '.join(installed_models()) or 'none'}"


def _download(name: str) -> Path:
    """Return the folder of a model in the hub's local cache, downloading it if necessary."""
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except Exception as error:  # the HTTP library's exceptions have no common base class
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"no model '{name}': there is no such folder, no installed model has that name "
            f"({_installed_names()}), and the Hugging Face hub cannot provide it: {reason}\n"
            "Check the name. Offline, use an installed model, or copy the model's folder to this "
            "machine and pass its path."
        ) from error
