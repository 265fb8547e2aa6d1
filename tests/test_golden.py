"""The installed models predict the same entities and scores as in release 0.1.

tests/golden holds (start, end, label, score) of each sentence for both engines, starting from
candidates and from noise with γ = 5.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from diffusionner import DiffusionNER, evaluate, export, formats
from diffusionner.corpus import Sentence, Span
from diffusionner.storage import registry

ROOT = Path(__file__).parents[1]
CORPORA = {
    "en": ROOT / "tests" / "excerpt" / "litbank.jsonl",
    "bio": ROOT / "examples" / "data" / "genia" / "train.jsonl",
}
OPTIONS = {"default": (120, {}), "noise-5": (40, {"start": "noise", "steps": 5, "spans": 60})}


def sentences_of(name: str) -> list[Sentence]:
    return formats.read(CORPORA[name])[:120]


def installed(name: str) -> DiffusionNER:
    if name not in registry.installed_models():
        pytest.skip(f"the model package '{name}' is not installed")
    return DiffusionNER.from_pretrained(name, device="cpu")


def assert_golden(ner: DiffusionNER, name: str, engine: str) -> None:
    golden = json.loads((ROOT / "tests" / "golden" / f"{name}.json").read_text())
    sentences = sentences_of(name)
    for setting, (count, options) in OPTIONS.items():
        words, docs = zip(*((s.words, s.doc) for s in sentences[:count]), strict=True)
        found = ner.predict_tokens(words, docs, **options)
        expected = golden[f"{engine}-{setting}"]
        assert [[e[:3] for e in one] for one in found] == [
            [tuple(e[:3]) for e in one] for one in expected
        ]
        scores = [entity.score for one in found for entity in one]
        assert scores == pytest.approx([e[3] for one in expected for e in one], abs=1e-4)


# F1 of release 0.1 on the excerpts is 87.0 (bio) and 60.9 (en, on the types it knows).
FLOORS = {"bio": 0.85, "en": 0.59}
KNOWN = {"PER": "PER", "ORG": "ORG", "GPE": "LOC", "LOC": "LOC", "FAC": "LOC"}  # LitBank to en


@pytest.mark.parametrize("name", FLOORS)
def test_f1_on_an_excerpt(name: str) -> None:
    ner = installed(name)
    if name == "bio":
        sentences = formats.read(ROOT / "examples" / "data" / "genia" / "dev.jsonl")
    else:
        sentences = [
            replace(s, entities=[Span(a, b, KNOWN[c]) for a, b, c in s.entities if c in KNOWN])
            for s in sentences_of("en")
        ]
    assert evaluate(ner, sentences).micro.f1 >= FLOORS[name]


@pytest.mark.parametrize("name", CORPORA)
def test_torch(name: str) -> None:
    assert_golden(installed(name), name, "torch")


def test_onnx(tmp_path: Path) -> None:
    ner = installed("bio")
    dev = formats.read(ROOT / "examples" / "data" / "genia" / "dev.jsonl")
    export.export(ner, tmp_path / "onnx", dev[:20])
    assert_golden(DiffusionNER.from_pretrained(tmp_path / "onnx"), "bio", "onnx")
