"""Presets, corpora and encoders on this machine. None of it becomes part of a record."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from diffusionner import formats
from diffusionner.corpus import Sentence, check_labels, collect_labels
from diffusionner.data.fingerprint import fingerprint
from diffusionner.errors import DataError, SettingsError
from diffusionner.files import write_bytes
from diffusionner.settings import DataSettings, Settings
from reproduce.corpora import CORPORA, ENCODERS, MAIN_ENCODER

SPLITS = ("train", "dev", "test")
# Loads only the encoder's configuration.
_TRY_ENCODER = """
import sys
from transformers import AutoConfig
from diffusionner.storage.encoders import encoder_location
AutoConfig.from_pretrained(encoder_location(sys.argv[1]))
"""


@dataclass(frozen=True)
class EncoderPlace:
    name: str  # shown in tables
    place: str  # folder, or name on the hub


@dataclass(frozen=True)
class Sources:
    data: Path
    configs: Path
    encoders: tuple[str, ...]  # folders and names as given
    work: Path
    overrides: tuple[str, ...] = ()  # settings for all runs

    def preset(self, corpus: str) -> Path:
        return self.configs / f"{CORPORA[corpus].preset}.yaml"

    def settings(self, corpus: str) -> DataSettings:
        """Return the data settings of a corpus, with its files below the data folder."""
        preset = load_preset(self.preset(corpus), self.overrides).data
        places: dict[str, Any] = {name: self._below(getattr(preset, name)) for name in SPLITS}
        return replace(preset, **places)

    def _below(self, place: str | None) -> str | None:
        """Replace the leading data/ of presets by the data folder."""
        if place is None:
            return None
        path = Path(place)
        return str(self.data.joinpath(*path.parts[1:]) if path.parts[0] == "data" else path)

    def missing_files(self, corpus: str) -> list[str]:
        if not self.preset(corpus).exists():
            return [str(self.preset(corpus))]
        files = self.settings(corpus)
        places = [getattr(files, split) for split in SPLITS]
        return [place for place in places if place is not None and not Path(place).exists()]

    def fingerprints(self, corpus: str) -> dict[str, dict[str, Any]]:
        """Return the fingerprints of train, dev and test, cached until the files change."""
        files = self.settings(corpus)
        given = [getattr(files, split) for split in SPLITS]
        stamp = [
            files.dev_from_train,
            files.format,
            *([place, *_stamp(Path(place))] for place in given if place is not None),
        ]
        path = self.work / "fingerprints.json"
        try:
            cache = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            cache = {}
        if cache.get(corpus, {}).get("stamp") != stamp:
            parts = {split: self.sentences(corpus, split) for split in SPLITS}
            for split in SPLITS:  # now, and not hours later when a model is to be scored
                check_labels(parts[split], collect_labels(parts["train"]))
            found = {s: fingerprint(part).to_dict() for s, part in parts.items() if part}
            cache[corpus] = {"stamp": stamp, "fingerprints": found}
            write_bytes(path, (json.dumps(cache, indent=1) + "\n").encode())
        return dict(cache[corpus]["fingerprints"])

    def sentences(self, corpus: str, split: str) -> list[Sentence]:
        """Read a split as training does: dev may be the end of train."""
        files = self.settings(corpus)
        place = getattr(files, split)
        if place is not None and (split != "train" or files.dev is not None):
            return formats.read(place, files.format)
        if split == "test" or files.train is None:
            return []
        whole = formats.read(files.train, files.format)
        cut = len(whole) - files.dev_from_train
        if cut <= 0:
            raise DataError(
                f"{files.train} has {len(whole)} sentences, of which dev would take the last "
                f"{files.dev_from_train} (data.dev_from_train of its preset); provide the whole "
                "file, or hold out fewer: --set data.dev_from_train=N"
            )
        return whole[:cut] if split == "train" else whole[cut:]

    def file(self, corpus: str, split: str) -> tuple[Path, str | None]:
        """Return a file that holds only that split, and its format."""
        files = self.settings(corpus)
        if getattr(files, split) is not None:
            return Path(getattr(files, split)), files.format
        hash = self.fingerprints(corpus)[split]["hash"]
        path = self.work / "data" / f"{corpus}-{split}-{hash}.jsonl"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            formats.write(path, self.sentences(corpus, split))
        return path, None

    @cached_property
    def places(self) -> dict[str, EncoderPlace]:
        """Location of each encoder of the tables. The first given replaces the main one."""
        names = {folder: name for name, e in ENCODERS.items() for folder in e.folders}
        found = {name: EncoderPlace(name, encoder.hub) for name, encoder in ENCODERS.items()}
        for number, given in enumerate(self.encoders):
            inner = _encoders_in(Path(given))
            single = Path(given).name
            if not inner and number == 0:
                found[MAIN_ENCODER] = EncoderPlace(names.get(single, single), given)
            elif not inner and single not in names:
                known = ", ".join(names)
                raise SettingsError(
                    f"--encoder {given}: only the first may have any name; tables use {known}"
                )
            for place in inner or [given]:
                if (name := names.get(Path(place).name)) is not None:
                    found[name] = EncoderPlace(name, place)
        return found

    def encoder_problem(self, name: str) -> str | None:
        """Return why an encoder cannot be loaded; None if it can."""
        place = self.places[name].place
        if Path(place).is_dir():
            complete = (Path(place) / "config.json").exists()
            return None if complete else f"{place} has no config.json"
        if len(Path(place).parts) > 2:  # not a name on the hub
            return f"there is no folder {place}"
        tried = subprocess.run(
            [sys.executable, "-c", _TRY_ENCODER, place], capture_output=True, check=False
        )
        return None if tried.returncode == 0 else f"'{place}' is not a folder and cannot be loaded"


@lru_cache
def load_preset(path: Path, overrides: tuple[str, ...]) -> Settings:
    """Cached: reading YAML takes ten milliseconds, and a plan has hundreds of runs."""
    return Settings.load(path, overrides)


def _encoders_in(folder: Path) -> list[str]:
    """Return the encoders in a folder; none if it is an encoder itself, or a name on the hub."""
    if not folder.is_dir() or (folder / "config.json").exists():
        return []
    inner = sorted(str(path.parent) for path in folder.glob("*/config.json"))
    if not inner:
        raise SettingsError(
            f"--encoder {folder}: neither an encoder (config.json) nor a folder of encoders"
        )
    return inner


def _stamp(path: Path) -> tuple[int, int]:
    """Return total size and last modification of a file, or of all files in a folder."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    found = [file.stat() for file in files]
    return sum(one.st_size for one in found), max((one.st_mtime_ns for one in found), default=0)
