"""An exported model that reads passages of documents."""

from __future__ import annotations

from pathlib import Path

from exports import own_dev

from diffusionner import DiffusionNER
from diffusionner.export import export
from models import assert_same, assert_same_refinements, lively_model


def test_the_same_entities(encoder_folder: Path, sentences, tmp_path: Path):
    model = lively_model(
        encoder_folder, "encoder.passage_words=15", "encoder.context=1",
        "decoder.initializer=types", "inference.start=candidates", "inference.spans=auto",
    )  # fmt: skip
    folder = tmp_path / "exported"
    export(model, folder, own_dev(model, sentences))
    exported = DiffusionNER.from_pretrained(folder)
    docs = ["a"] * (len(sentences) - 2) + ["b"] * 2
    for options in ({}, {"steps": 0}, {"batch_size": 3}, {"start": "noise", "steps": 2}):
        expected, found = (m.predict_tokens(sentences, docs, **options) for m in (model, exported))
        assert sum(map(len, expected)) > 3
        assert_same(found, expected)
    items = [(words, [(0, 1, "PER")], "a") for words in sentences if words]
    expected, found = (list(m.refine_pipe(items)) for m in (model, exported))
    assert_same_refinements(found, expected)
