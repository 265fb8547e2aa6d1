"""Damaged folders of exported models."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import edit_config

from diffusionner import DiffusionNER
from diffusionner.errors import CheckpointError, DiffusionNERError
from diffusionner.storage.config import DENOISER_FILE, ENCODER_FILE


def truncate(name: str, share: float = 0.5) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return damage


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def copy_encoder(folder: Path) -> None:
    shutil.copy(folder / ENCODER_FILE, folder / DENOISER_FILE)


def without(*keys: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        def change(config: dict[str, Any]) -> None:
            place = config
            for key in keys[:-1]:
                place = place[key]
            del place[keys[-1]]

        edit_config(folder, change, without=("digest",))

    return damage


def changed(**values: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        edit_config(folder, lambda config: config.update(values), without=("digest",))

    return damage


def numbered(**values: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        edit_config(folder, lambda config: config["tokenizer"].update(values), without=("digest",))

    return damage


DAMAGES = {
    "half an encoder": (truncate(ENCODER_FILE), "encoder.onnx is missing, truncated or damaged"),
    "empty encoder": (truncate(ENCODER_FILE, 0), "encoder.onnx is missing, truncated or damaged"),
    "half a denoiser": (truncate(DENOISER_FILE), "denoiser.onnx is missing, truncated or damaged"),
    "encoder as denoiser": (copy_encoder, "denoiser.onnx is missing or damaged"),
    "no denoiser": (remove(DENOISER_FILE), "denoiser.onnx is missing, truncated or damaged"),
    "no tokenizer": (remove("tokenizer.json"), "tokenizer.json is missing or damaged"),
    "half a tokenizer": (truncate("tokenizer.json"), "tokenizer.json is not the file"),
    "no config": (remove("config.json"), "there is no config.json"),
    "half a config": (truncate("config.json"), "config.json cannot be read"),
    "no labels": (without("labels"), "config.json lacks labels"),
    "no settings": (without("settings"), "config.json lacks settings"),
    "no tokenizer's numbers": (without("tokenizer"), "config.json: 'tokenizer' needs limit, pre"),
    "no prefix": (without("tokenizer", "prefix"), "found: limit, suffix, pad, unknown. Export"),
    "other numbers": (changed(tokenizer=[1, 2]), "found: not a table. Export the model again"),
    "a foreign key": (numbered(colour=3), "unknown, colour. Export the model again"),
    "a word for a number": (numbered(limit="many"), 'tokenizer.limit is "many", expected a number'),
    "a lone prefix": (numbered(prefix=2), "tokenizer.prefix is 2, expected a list of numbers"),
    "a negative one": (numbered(suffix=[3, -1]), "tokenizer.suffix is [3, -1], expected a list"),
    "other labels": (changed(labels=["A", "B"]), "'self_test' in config.json is damaged"),
    "later version": (changed(version=99), "has version 99, this release reads"),
    "another model": (changed(format="bert"), "is not a DiffusionNER model"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_reported(exported, tmp_path, name):
    damage, message = DAMAGES[name]
    folder = tmp_path / "exported"
    shutil.copytree(exported, folder)
    damage(folder)
    with pytest.raises(CheckpointError) as caught:
        DiffusionNER.from_pretrained(folder)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_its_encoder_is_refused(exported, tmp_path):
    shutil.copytree(exported, tmp_path / "exported")
    (tmp_path / "exported" / ENCODER_FILE).unlink()
    for backend in (None, "onnx", "torch"):
        with pytest.raises(DiffusionNERError):
            DiffusionNER.from_pretrained(tmp_path / "exported", backend=backend)


def test_the_command_line_reports_damage(refused, exported, tmp_path):
    shutil.copytree(exported, tmp_path / "exported")
    truncate(ENCODER_FILE)(tmp_path / "exported")
    err = refused("predict", "Ada", "--model", tmp_path / "exported")
    assert "encoder.onnx is missing, truncated or damaged" in err
