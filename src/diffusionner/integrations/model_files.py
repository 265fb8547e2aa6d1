"""The folder of a model as something that is copied or sent along."""

from __future__ import annotations

import shutil
from pathlib import Path

from diffusionner.storage.config import model_files


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
