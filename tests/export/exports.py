"""Helpers for the tests of exported models."""

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
    """Return a corpus whose gold is what the model predicts, so that its F1 is 100."""
    plain = [Sentence(words) for words in sentences]
    found = ner.predict_sentences(plain)
    assert sum(map(len, found)) > 15
    return [Sentence(s.words, entities) for s, entities in zip(plain, found, strict=True)]


def with_graphs_of(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Make exports copy the graphs of a folder, which takes no time."""

    def copy(ner: DiffusionNER, target: Path) -> None:
        for name in GRAPHS:
            shutil.copy(folder / name, target)

    patch.setattr(exporting, "write_graphs", copy)
