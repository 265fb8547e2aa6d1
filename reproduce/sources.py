"""Where presets, corpora and encoders are on this machine. None of it is part of a record."""

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
# Loads as little as tells whether the encoder can be had.
_TRY_ENCODER = """
import sys
from transformers import AutoConfig
from diffusionner.model.pretrained import resolve
AutoConfig.from_pretrained(resolve(sys.argv[1]))
"""


@dataclass(frozen=True)
class EncoderPlace:
    name: str  # as tables show it
    place: str  # folder, or name on the hub


@dataclass(frozen=True)
class Sources:
    data: Path
    configs: Path
    encoders: tuple[str, ...]  # folders and names as given
    work: Path
    overrides: tuple[str, ...] = ()  # settings that all runs are to have

    def preset(self, corpus: str) -> Path:
        return self.configs / f"{CORPORA[corpus].preset}.yaml"

    def settings(self, corpus: str) -> DataSettings:
        """The files of a corpus below the data folder."""
        found = load_preset(self.preset(corpus), self.overrides).data
        places: dict[str, Any] = {name: self._below(getattr(found, name)) for name in SPLITS}
        return replace(found, **places)

    def _below(self, place: str | None) -> str | None:
        """Presets begin with data/, which stands for the folder of all corpora."""
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
        """Of train, dev and test; read once, then known as long as the files are the same."""
        files = self.settings(corpus)
        given = {split: getattr(files, split) for split in SPLITS}
        stamp = [
            files.dev_from_train,
            files.format,
            *([place, *_stamp(Path(place))] for place in given.values() if place is not None),
        ]
        path = self.work / "fingerprints.json"
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}
        if known.get(corpus, {}).get("stamp") != stamp:
            parts = {split: self.sentences(corpus, split) for split in SPLITS}
            for split in SPLITS:  # now, and not when hours later a model is to be scored on it
                check_labels(parts[split], collect_labels(parts["train"]))
            found = {s: fingerprint(part).to_dict() for s, part in parts.items() if part}
            known[corpus] = {"stamp": stamp, "fingerprints": found}
            write_bytes(path, (json.dumps(known, indent=1) + "\n").encode())
        return dict(known[corpus]["fingerprints"])

    def sentences(self, corpus: str, split: str) -> list[Sentence]:
        """As training splits them: dev may be the end of train."""
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
                f"{files.dev_from_train} (data.dev_from_train of its preset); give all of it, or "
                "fewer for dev: --set data.dev_from_train=N"
            )
        return whole[:cut] if split == "train" else whole[cut:]

    def file(self, corpus: str, split: str) -> tuple[Path, str | None]:
        """A file with that split alone, and its format."""
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
        """Each encoder that tables ask for. The first given takes the main one's place."""
        names = {folder: name for name, e in ENCODERS.items() for folder in e.folders}
        found = {name: EncoderPlace(name, encoder.hub) for name, encoder in ENCODERS.items()}
        for number, given in enumerate(self.encoders):
            inner = _inner(Path(given))
            single = Path(given).name
            if not inner and number == 0:
                found[MAIN_ENCODER] = EncoderPlace(names.get(single, single), given)
            elif not inner and single not in names:
                known = ", ".join(names)
                raise SettingsError(
                    f"--encoder {given}: only the first may have any name; tables ask for {known}"
                )
            for place in inner or [given]:
                if (name := names.get(Path(place).name)) is not None:
                    found[name] = EncoderPlace(name, place)
        return found

    def encoder_problem(self, name: str) -> str | None:
        """Why an encoder cannot be had; None if it can."""
        place = self.places[name].place
        if Path(place).is_dir():
            complete = (Path(place) / "config.json").exists()
            return None if complete else f"{place} has no config.json"
        if len(Path(place).parts) > 2:  # no name on a hub
            return f"there is no folder {place}"
        tried = subprocess.run(
            [sys.executable, "-c", _TRY_ENCODER, place], capture_output=True, check=False
        )
        return None if tried.returncode == 0 else f"'{place}' is no folder, nor can it be loaded"


@lru_cache
def load_preset(path: Path, overrides: tuple[str, ...]) -> Settings:
    """Reading YAML takes ten milliseconds, and a plan has hundreds of runs."""
    return Settings.load(path, overrides)


def _inner(folder: Path) -> list[str]:
    """The encoders in a folder of encoders; none if it is one itself, or a name on the hub."""
    if not folder.is_dir() or (folder / "config.json").exists():
        return []
    inner = sorted(str(path.parent) for path in folder.glob("*/config.json"))
    if not inner:
        raise SettingsError(
            f"--encoder {folder}: neither an encoder (config.json) nor a folder of encoders"
        )
    return inner


def _stamp(path: Path) -> tuple[int, int]:
    """Changes when the file does; of a folder, with what is in it."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    found = [file.stat() for file in files]
    return sum(one.st_size for one in found), max((one.st_mtime_ns for one in found), default=0)
