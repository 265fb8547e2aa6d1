"""config.json of a model folder, for all backends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diffusionner.errors import CheckpointError
from diffusionner.settings import Settings

FORMAT = "diffusionner"
VERSION = 2
ENCODER_FILE = "encoder.onnx"
DENOISER_FILE = "denoiser.onnx"
STATE_FILE = "state.safetensors"  # training state for --resume; not part of the model
CARD = "README.md"
TEST_SCORES = "test.json"  # written by training
REMOVED_IN_2 = (
    ("data", "choose_on_test"), ("encoder", "character_size"), ("encoder", "character_length"),
    ("training", "draws"), ("training", "no_entity_weight"),
)  # fmt: skip
_PATTERNS = ("*.json", "*.txt", "*.safetensors", "*.onnx", CARD)


def new_config(
    labels: Sequence[str], settings: Settings, calibration: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the part of config.json that all backends share."""
    config: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "labels": list(labels),
        "settings": settings.to_dict(),
    }
    return config if calibration is None else {**config, "calibration": calibration}


def model_files(folder: Path) -> list[Path]:
    """Return the files of a model; raise CheckpointError if the folder has no model."""
    read_config(folder)
    files = {file for pattern in _PATTERNS for file in folder.glob(pattern)}
    return sorted(file for file in files if file.name != STATE_FILE)


def is_model(folder: Path) -> bool:
    """Return True for the folder of a trained model, False for that of a plain encoder."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") == FORMAT


def read_config(folder: Path, *needed: str) -> dict[str, Any]:
    """Return config.json; raise CheckpointError unless it is valid and has the `needed` keys."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"no model in '{folder}': there is no config.json; give the folder that "
            "`diffusionner train` or save_pretrained wrote"
        ) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        model_type = config.get("model_type", "unknown") if isinstance(config, dict) else "unknown"
        raise CheckpointError(
            f"{path} is not a DiffusionNER model (model_type: {model_type}); to train one "
            "from this encoder, set encoder.name to this folder and run `diffusionner train`"
        )
    if config.get("version") == 1 and isinstance(config.get("settings"), dict):
        config |= {"version": VERSION, "settings": upgrade_settings(config["settings"])}
        if isinstance(calibration := config.get("calibration"), dict) and "totals" in calibration:
            calibration["sums"] = calibration.pop("totals")
    if config.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has version {config.get('version')}, this release reads {VERSION}; "
            "update diffusionner or train again"
        )
    missing = [key for key in ("labels", "settings", *needed) if key not in config]
    if missing:
        raise CheckpointError(f"{path} lacks {', '.join(missing)}; restore it from a good copy")
    return config


def upgrade_settings(old: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the settings of a model folder of version 1 (release 0.1) to today's names.

    Settings added during 0.1 may be missing; they get the default they had then.
    """
    new = json.loads(json.dumps(old))
    decoder, training = new.setdefault("decoder", {}), new.setdefault("training", {})
    for section, name in REMOVED_IN_2:
        new.get(section, {}).pop(name, None)
    decoder["offset_window"] = decoder.pop("reach", 0)
    known = "types" if decoder.pop("typed_initializer", False) else "spans"
    decoder["initializer"] = known if decoder.get("initializer") else "none"
    training["soft_match_iou"] = training.pop("near", 0.0)
    training["subword_masking"] = training.pop("hidden_subwords", 0.0)
    levels = decoder.pop("levels", "auto")
    return {**new, "options": {} if levels == "auto" else {"levels": levels}}
