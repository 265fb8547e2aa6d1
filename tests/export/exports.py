"""Helpers for the tests of exported models."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from diffusionner import DiffusionNER
from diffusionner import export as exporting
from diffusionner.corpus import Sentence
from diffusionner.export.weights import references
from diffusionner.storage.config import GRAPHS, WEIGHTS
from diffusionner.storage.initializers import Initializers


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


def graph_in(path: Path) -> Any:
    """Return the graph of a file, without the weights that it refers to."""
    return onnx.load(path, load_external_data=False).graph


def arrays_in(path: Path) -> dict[str, np.ndarray]:
    """Return the initializers of a graph with their numbers."""
    graph, weights = graph_in(path), Initializers(path.parent / WEIGHTS)
    outside = references(graph)
    arrays = {n: weights.read(n, kind == onnx.TensorProto.INT8) for n, kind in outside.items()}
    inside = (one for one in graph.initializer if one.name not in outside)
    return arrays | {one.name: onnx.numpy_helper.to_array(one) for one in inside}
