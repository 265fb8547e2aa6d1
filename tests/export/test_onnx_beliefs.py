"""An exported model that denoises beliefs over documents."""

from __future__ import annotations

from pathlib import Path

import torch
from exports import own_dev

from diffusionner import DiffusionNER
from diffusionner.export import export
from models import assert_same, assert_same_refinements, lively_model


def test_the_same_entities(encoder_folder: Path, sentences, tmp_path: Path):
    changes = ("decoder.initializer=types", "decoder.beliefs=true", "inference.start=candidates")
    model = lively_model(encoder_folder, *changes, "inference.spans=auto", "encoder.context=1")
    torch.manual_seed(1)
    with torch.no_grad():
        model.network.beliefs.output.weight.normal_(std=0.3)
    folder = tmp_path / "exported"
    export(model, folder, own_dev(model, sentences))
    exported = DiffusionNER.from_pretrained(folder)
    docs = ["a"] * (len(sentences) - 2) + ["b"] * 2
    for options in ({}, {"steps": 0}, {"steps": 5}, {"start": "noise", "steps": 2}):
        expected, found = (m.predict_tokens(sentences, docs, **options) for m in (model, exported))
        assert sum(map(len, expected)) > 3
        assert_same(found, expected)
    items = [(words, [(0, 1, "PER")]) for words in sentences if words]
    expected, found = (list(m.refine_pipe(items)) for m in (model, exported))
    assert_same_refinements(found, expected)
