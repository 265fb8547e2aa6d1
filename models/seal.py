"""Give model folders a self-test and digests, which models saved before 0.2 do not have.

`python models/seal.py models/en/diffusionner_en models/bio/diffusionner_bio` rewrites their
config.json; all other files stay as they are.
"""

from __future__ import annotations

import sys
from pathlib import Path

from diffusionner import DiffusionNER
from diffusionner.files import file_digest, write_bytes
from diffusionner.inference.self_test import record_torch
from diffusionner.storage.config import CARD, TEST_SCORES, config_bytes, model_files, read_config


def seal(folder: Path) -> None:
    ner = DiffusionNER.from_pretrained(folder, "cpu")
    files = [f for f in model_files(folder) if f.name not in ("config.json", CARD, TEST_SCORES)]
    config = read_config(folder) | {
        "self_test": record_torch(ner.network, ner.subwords, ner.settings),
        "files": {file.name: file_digest(file) for file in files},
    }
    write_bytes(folder / "config.json", config_bytes(config))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        seal(Path(argument))
