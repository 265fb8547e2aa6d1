"""What the tests of exported models share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from diffusionner import DiffusionNER
from diffusionner import export as exporting
from diffusionner.corpus import Sentence
from diffusionner.storage.config import DENOISER_FILE, ENCODER_FILE

GRAPHS = (ENCODER_FILE, DENOISER_FILE)


def own_dev(ner: DiffusionNER, sentences: list[list[str]]) -> list[Sentence]:
    """Gold is what the model finds: its F1 is 100, and less for anything that differs."""
    plain = [Sentence(words) for words in sentences]
    found = ner.predict_sentences(plain)
    assert sum(map(len, found)) > 15
    return [Sentence(s.words, entities) for s, entities in zip(plain, found, strict=True)]


def with_graphs_of(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """From here on, an export takes its graphs from there instead of recording them."""

    def copy(ner: DiffusionNER, target: Path) -> None:
        for name in GRAPHS:
            shutil.copy(folder / name, target)

    patch.setattr(exporting, "write_graphs", copy)
