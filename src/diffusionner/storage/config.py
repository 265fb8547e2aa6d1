"""config.json of a model folder, for all backends."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from diffusionner.errors import CheckpointError
from diffusionner.files import file_digest, open_regular, read_bounded, temporary_path, to_json
from diffusionner.settings import Settings
from diffusionner.word_limits import WordLimits

FORMAT = "diffusionner"
VERSION = 2
WEIGHTS = "model.safetensors"
# Graphs: words to scores, what all steps share, and a step.
ENCODER_FILE, SENTENCE_FILE, DENOISER_FILE = "encoder.onnx", "sentence.onnx", "denoiser.onnx"
GRAPHS = (ENCODER_FILE, SENTENCE_FILE, DENOISER_FILE)
STATE_FILE = "state.safetensors"  # training state for --resume; not part of the model
CARD = "README.md"
REPLAY_FILE = "replay.jsonl.gz"  # passages of a model with open labels, for fine-tuning
TEST_SCORES = "test.json"  # written by training
REMOVED_IN_2 = (
    ("data", "choose_on_test"), ("encoder", "character_size"), ("encoder", "character_length"),
    ("training", "draws"), ("training", "no_entity_weight"),
)  # fmt: skip
MAX_CONFIG = 4_000_000  # bytes; the largest real ones have some ten thousand
_PATTERNS = ("*.json", "*.txt", "*.safetensors", "*.onnx", CARD, REPLAY_FILE)


def new_config(
    labels: Sequence[str],
    settings: Settings,
    calibration: Mapping[str, Any] | None,
    word_limits: WordLimits | None,
) -> dict[str, Any]:
    """Return the part of config.json that all backends share."""
    config: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "labels": list(labels),
        "settings": settings.to_dict(),
        "word_limits": None if word_limits is None else word_limits._asdict(),
    }
    if calibration is not None:
        config["calibration"] = calibration
    return config


def read_word_limits(config: Mapping[str, Any], file: Path) -> WordLimits | None:
    """Return the word limits of a model; release 0.1 wrote none, and its models get the default."""
    if "word_limits" not in config:
        return WordLimits()
    values = config["word_limits"]
    if values is None:
        return None
    if (
        not isinstance(values, dict)
        or set(values) != set(WordLimits._fields)
        or not all(type(value) is int for value in values.values())
        or not (1 <= values["window"] <= values["sentence"] and values["separators"] >= 0)
    ):
        raise CheckpointError(
            f"{file}: word_limits needs three whole numbers (sentence, separators, window; at most "
            "as many words in a window as in a sentence) or null; restore it from a good copy"
        )
    return WordLimits(**values)


def model_files(folder: Path) -> list[Path]:
    """Return the files of a model; raise CheckpointError if the folder has no model."""
    read_config(folder)
    files = {file for pattern in _PATTERNS for file in folder.glob(pattern)}
    return sorted(file for file in files if file.name != STATE_FILE)


def is_model(folder: Path) -> bool:
    """Return True for the folder of a trained model, False for that of a plain encoder."""
    try:
        config = read_json(folder / "config.json", MAX_CONFIG)
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") == FORMAT


def read_json(path: Path, limit: int) -> Any:
    """Return a JSON file of at most `limit` bytes; raise OSError or ValueError if that fails.

    Numbers are finite: Infinity, NaN and 1e999 are not JSON, though Python reads them.
    """
    try:
        return json.loads(
            read_bounded(path, limit).decode(), parse_constant=_finite, parse_float=_finite
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number


def read_config(folder: Path, *needed: str) -> dict[str, Any]:
    """Return config.json; raise CheckpointError unless it is valid and has the `needed` keys."""
    path = _current(folder)
    try:
        config = read_json(path, MAX_CONFIG)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"no model in '{folder}': there is no config.json; give the folder that "
            "`diffusionner train` or save_pretrained wrote"
        ) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}; restore it from a good copy"
        ) from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        model_type = config.get("model_type", "unknown") if isinstance(config, dict) else "unknown"
        raise CheckpointError(
            f"{path} is not a DiffusionNER model (model_type: {str(model_type)[:50]}); to train "
            "one from this encoder, set encoder.name to this folder and run `diffusionner train`"
        )
    if "digest" in config and config.pop("digest") != _digest(config):
        raise CheckpointError(
            f"{path} was changed or damaged after it was written; restore it from a good copy. If "
            "you changed it on purpose, remove the line 'digest'"
        )
    if config.get("version") == 1 and isinstance(config.get("settings"), dict):
        config |= {"version": VERSION, "settings": upgrade_settings(config["settings"])}
        if isinstance(calibration := config.get("calibration"), dict) and "totals" in calibration:
            calibration["sums"] = calibration.pop("totals")
    if config.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has version {str(config.get('version'))[:50]}, this release reads {VERSION}; "
            "update diffusionner or train again"
        )
    missing = [key for key in ("labels", "settings", *needed) if key not in config]
    if missing:
        raise CheckpointError(f"{path} lacks {', '.join(missing)}; restore it from a good copy")
    labels = config["labels"]
    strings = isinstance(labels, list) and all(isinstance(one, str) and one for one in labels)
    if not (strings and labels and len(set(labels)) == len(labels)):
        raise CheckpointError(
            f"{path}: 'labels' must be a list of different names; restore it from a good copy"
        )
    return config


def _current(folder: Path) -> Path:
    """Return config.json, or its successor if a save was killed just before it moved that.

    The successor has digests of the files that were moved before it.
    """
    path = folder / "config.json"
    successor = temporary_path(path)
    with suppress(OSError, ValueError, CheckpointError):
        config = read_json(successor, MAX_CONFIG)
        if isinstance(config, dict) and config.pop("digest", None) == _digest(config):
            check_files(folder, config, WEIGHTS)
            return successor
    return path


def _digest(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a config without its own digest, independent of the layout."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def config_bytes(config: Mapping[str, Any]) -> bytes:
    """Return the content of config.json, with its own digest."""
    return to_json({**config, "digest": _digest(config)})


def check_files(folder: Path, config: Mapping[str, Any], *needed: str) -> None:
    """Raise CheckpointError if a file is not the one that was written with config.json.

    A model that was saved before there were digests has none, and `needed` must then be empty.
    """
    files = config.get("files", {})
    if not isinstance(files, dict) or not set(needed) <= files.keys():
        raise CheckpointError(
            f"{folder / 'config.json'} has no digests of {', '.join(needed) or 'its files'}; it "
            "was written by another release, or changed. Save or export the model again"
        )
    for name, expected in files.items():
        path = folder / name
        if path.name != name:
            raise CheckpointError(f"{folder / 'config.json'} refers to a file elsewhere: {path}")
        try:
            size = expected["size"] if isinstance(expected, dict) else None
            open_regular(path, size if type(size) is int else 0).close()
            same = file_digest(path) == expected
        except OSError as error:
            raise CheckpointError(
                f"{path} is missing or damaged ({error.strerror or error}); copy the whole folder "
                "again"
            ) from error
        if not same:
            raise CheckpointError(
                f"{path} is not the file that was written with its config.json: it is damaged, or "
                "comes from another model. Copy the whole folder again"
            )


def upgrade_settings(old: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the settings of a model folder of version 1 (release 0.1) to today's names.

    Settings added during 0.1 may be missing; they get the default they had then.
    """
    new = json.loads(json.dumps(old))
    for section in ("data", "encoder", "decoder", "training"):
        if not isinstance(new.setdefault(section, {}), dict):
            return dict(new)  # which is then reported like any other wrong setting
    decoder, training = new["decoder"], new["training"]
    for section, name in REMOVED_IN_2:
        new[section].pop(name, None)
    decoder["offset_window"] = decoder.pop("reach", 0)
    known = "types" if decoder.pop("typed_initializer", False) else "spans"
    decoder["initializer"] = known if decoder.get("initializer") else "none"
    training["soft_match_iou"] = training.pop("near", 0.0)
    training["subword_masking"] = training.pop("hidden_subwords", 0.0)
    levels = decoder.pop("levels", "auto")
    return {**new, "options": {} if levels == "auto" else {"levels": levels}}
