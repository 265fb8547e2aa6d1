"""Exported models that find discontinuous entities."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from corpus_files import put

from diffusionner import DiffusionNER
from diffusionner import export as exporting
from diffusionner.corpus import Discontinuous, Sentence, Span
from diffusionner.export import export, int8
from models import lively_model, open_model

ALWAYS = ("decoder.discontinuous=true", "decoder.initializer=types", "inference.start=candidates")


def with_gaps(ner: DiffusionNER) -> DiffusionNER:
    """Make a model with random weights find discontinuous entities."""
    fragments = ner.network.fragments
    with torch.no_grad():
        for part in (fragments.pairs, fragments.envelopes):
            if hasattr(part, "first_weight"):
                part.product.weight *= 30
                part.first_weight.weight *= 30
                part.first_weight.bias += 5
            else:
                part.factors.weight *= 20
                part.factors.bias[-1] = 30
    return ner


def as_dev(ner: DiffusionNER, sentences: list[list[str]]) -> list[Sentence]:
    """Return a corpus whose gold is what the model predicts."""
    plain = [Sentence(words) for words in sentences if words]
    for sentence, found in zip(plain, ner.predict_sentences(plain), strict=True):
        sentence.entities = [e for e in found if isinstance(e, Span)]
        sentence.discontinuous = [e for e in found if isinstance(e, Discontinuous)]
    assert sum(len(sentence.discontinuous) for sentence in plain) > 10
    return plain


def spans(ner: DiffusionNER, sentences: list[list[str]], **options) -> list[list[tuple]]:
    return [
        [(e.start, e.end, e.label, e.gaps, e.text) for e in entities]
        for entities in ner.predict_tokens(sentences, **options)
    ]


def scores(ner: DiffusionNER, sentences: list[list[str]]) -> list[float]:
    return [e.score for entities in ner.predict_tokens(sentences) for e in entities]


def test_the_same_entities(encoder_folder: Path, sentences, tmp_path: Path):
    model = with_gaps(lively_model(encoder_folder, *ALWAYS))
    export(model, tmp_path / "exported", as_dev(model, sentences))
    exported = DiffusionNER.from_pretrained(tmp_path / "exported")
    assert exported.finds_discontinuous
    for options in ({}, {"steps": 0}, {"batch_size": 3}):
        assert spans(exported, sentences, **options) == spans(model, sentences, **options)
    assert scores(exported, sentences) == pytest.approx(scores(model, sentences), abs=1e-4)


def test_int8_is_the_same_alone_and_in_any_batch(
    encoder_folder: Path, sentences, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(exporting.LIMITS, "int8", 100)  # random weights are at their limits
    model = with_gaps(lively_model(encoder_folder, *ALWAYS))
    dev = as_dev(model, sentences)
    export(model, tmp_path / "int8", dev, "int8")
    exported = DiffusionNER.from_pretrained(tmp_path / "int8")
    together = spans(exported, sentences)
    assert any(gaps for entities in together for *_, gaps, _ in entities)
    assert together == [spans(exported, [words])[0] for words in sentences]
    assert together == spans(exported, sentences, batch_size=4)


def test_open_labels_stay_open(encoder_folder: Path, sentences, tmp_path: Path):
    model = with_gaps(open_model(encoder_folder, *ALWAYS))
    export(model, tmp_path / "open", as_dev(model, sentences))
    exported = DiffusionNER.from_pretrained(tmp_path / "open")
    labels = ["symptom", "place", "date"]
    expected = spans(model.for_labels(labels), sentences)
    assert any(gaps for entities in expected for *_, gaps, _ in entities)
    assert spans(exported.for_labels(labels), sentences) == expected


def test_padding_does_not_widen_the_range_of_the_projection(encoder_folder: Path, sentences):
    """Max pooling leaves -10,000 in padding, with which int8 would have no steps for the rest."""
    model = lively_model(encoder_folder, *ALWAYS, "encoder.lstm_layers=0")
    highest: list[float] = []
    model.network.encoder.projection.register_forward_pre_hook(
        lambda module, inputs: highest.append(float(inputs[0].abs().max()))
    )
    model.predict_tokens(sentences)
    assert 0 < max(highest) < 1000


def test_int8_of_open_labels(encoder_folder: Path, sentences, tmp_path: Path, monkeypatch):
    """Positions are looked up for labels and sliced for text, so they stay in float32."""
    monkeypatch.setitem(exporting.LIMITS, "int8", 100)
    monkeypatch.setattr(int8, "MIN_TABLE", 1)
    model = with_gaps(open_model(encoder_folder, *ALWAYS))
    put(tmp_path, {"trained/replay.jsonl.gz": "passages"})
    model.folder = tmp_path / "trained"
    export(model, tmp_path / "int8", as_dev(model, sentences), "int8")
    assert (tmp_path / "int8/replay.jsonl.gz").read_text() == "passages"
    exported = DiffusionNER.from_pretrained(tmp_path / "int8").for_labels(["symptom", "place"])
    together = spans(exported, sentences)
    assert any(together)
    assert together == [spans(exported, [words])[0] for words in sentences]
