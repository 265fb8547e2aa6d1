"""Models with random weights that find plenty of entities."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from diffusionner import DiffusionNER, Entity
from diffusionner.inference.torch_engine import TorchEngine
from diffusionner.model import DenoisingNetwork
from diffusionner.model.pretrained import load_encoder, load_tokenizer, position_limit
from diffusionner.settings import Settings

LABELS = ["FAC", "GPE", "PER"]


def lively_model(encoder_folder: Path, *changes: str) -> DiffusionNER:
    """A model whose spans are all entities, at boundaries that rounding does not change."""
    settings = Settings.from_dict(
        {
            "encoder": {
                "name": str(encoder_folder),
                "character_filters": 8,
                "lstm_layers": 1,
                "max_subwords": 100,
            },
            "diffusion": {"spans": 12, "timesteps": 100},
            "decoder": {"heads": 4, "feedforward": 32, "span_pooling": "endpoints"},
            "inference": {"steps": 2, "spans": 30, "threshold": 0, "overlap": "all"},
        }
    ).override(changes)
    torch.manual_seed(0)
    transformer = load_encoder(settings.encoder.name)
    network = DenoisingNetwork(transformer, LABELS, settings)
    decoder = network.decoder
    sharpened = [layer.norms[-1] for layer in decoder.layers]
    if settings.decoder.span_pooling == "endpoints":
        sharpened += [decoder.first, decoder.last, decoder.join]
    with torch.no_grad():  # as they are, all spans would end up at the same two boundaries
        for parameter in network.encoder.lstm.parameters() if network.encoder.lstm else ():
            parameter *= 3
        for layer in sharpened:
            layer.weight *= 10
        for pointer in (decoder.left, decoder.right):
            pointer.output.weight *= 5
        decoder.classifier[-1].weight *= 20
        decoder.classifier[-1].bias[-1] = -1000  # never "no entity"
    limit = position_limit(transformer.config)
    tokenizer = load_tokenizer(encoder_folder, limit)
    return DiffusionNER(TorchEngine(network, "cpu"), tokenizer, settings)


def spans(entities: list[Entity]) -> list[tuple[int, int, str]]:
    return [(e.start, e.end, e.label) for e in entities]


def assert_same(one: list[list[Entity]], other: list[list[Entity]]) -> None:
    """The same entities with almost the same scores."""
    assert [spans(e) for e in one] == [spans(e) for e in other]
    for ours, theirs in zip(one, other, strict=True):
        assert [e.score for e in ours] == pytest.approx([e.score for e in theirs], abs=1e-4)
        assert [e.text for e in ours] == [e.text for e in theirs]
