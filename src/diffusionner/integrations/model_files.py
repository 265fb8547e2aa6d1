"""The folder of a model as something that is copied or sent along."""

from __future__ import annotations

import shutil
from pathlib import Path

from diffusionner import registry
from diffusionner.model_folder import read_config

# What a model's folder may hold of its own; beside it `train` leaves logs and states.
_PATTERNS = ("*.json", "*.txt", "*.safetensors", "*.onnx", registry.CARD)


def model_files(folder: Path) -> list[Path]:
    """The files that make the model; CheckpointError if there is none."""
    read_config(folder)
    return sorted({file for pattern in _PATTERNS for file in folder.glob(pattern)})


def copy_model(folder: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for file in model_files(folder):
        if not (target / file.name).exists() or not file.samefile(target / file.name):
            shutil.copyfile(file, target / file.name)


def pack_model(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in model_files(folder)}


def unpack_model(files: dict[str, bytes], target: Path) -> None:
    for name, content in files.items():
        (target / Path(name).name).write_bytes(content)  # nothing leaves the folder
