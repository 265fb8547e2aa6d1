"""Models with random weights that find plenty of entities, and a run that learns some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from plain import plain_inference, plain_settings

from diffusionner import DiffusionNER, Entity, formats
from diffusionner.corpus import Sentence
from diffusionner.diffusion import Candidates
from diffusionner.inference.decoding import ScoreRule
from diffusionner.inference.torch_engine import TorchEngine
from diffusionner.model.encoder import position_limit
from diffusionner.model.network import DenoisingNetwork
from diffusionner.refinement import Refinement
from diffusionner.settings import Settings
from diffusionner.storage.encoders import load_encoder, load_tokenizer
from diffusionner.training.start import build_network
from reproduce.rivals.autoregressive import Generator

LABELS = ["FAC", "GPE", "PER"]


def lively_settings(encoder_folder: Path, *changes: str) -> Settings:
    return plain_settings(
        {
            "encoder": {
                "name": str(encoder_folder),
                "character_filters": 8,
                "lstm_layers": 1,
                "max_subwords": 100,
            },
            "diffusion": {"spans": 12, "timesteps": 100},
            "decoder": {"heads": 4, "feedforward": 32, "span_pooling": "endpoints"},
            "inference": {"steps": 2, "spans": 30, "phi": 0, "overlap": "all"},
        }
    ).override(changes)


def lively_model(encoder_folder: Path, *changes: str) -> DiffusionNER:
    """A model whose spans are all entities, at boundaries that rounding does not change."""
    settings = lively_settings(encoder_folder, *changes)
    torch.manual_seed(0)
    transformer = load_encoder(settings.encoder.name)
    network = DenoisingNetwork(transformer, LABELS, settings)
    sharpen(network, settings)
    with torch.no_grad():
        network.decoder.classifier[-1].weight *= 20
        network.decoder.classifier[-1].bias[-1] = -1000  # never "no entity"
    limit = position_limit(transformer)
    tokenizer = load_tokenizer(encoder_folder, limit)
    return DiffusionNER(TorchEngine(network.eval()), tokenizer, settings)


def sharpen(network: DenoisingNetwork, settings: Settings) -> None:
    """Make the spans of a network with random weights end up at different boundaries."""
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
        if decoder.initializer is not None:  # some spans are likely, most are not
            decoder.initializer.project.weight *= 5
            decoder.initializer.project.bias[-1] -= 5


@contextmanager
def shifted(ner: DiffusionNER, shift: float) -> Iterator[None]:
    """Add a number to all scores of the initializer."""
    bias = ner.network.decoder.initializer.project.bias
    with torch.no_grad():
        bias[-1] += shift
    try:
        yield
    finally:
        with torch.no_grad():
            bias[-1] -= shift


@torch.no_grad()
def lively_generator(generator: Generator, seed: int) -> None:
    """Make the last generated symbol decide the next one."""
    torch.manual_seed(seed)
    generator.types.weight.normal_(std=4)
    generator.classifier[-1].weight.normal_(std=20)
    for pointer in (generator.left, generator.right):
        pointer.output.weight.normal_(std=4)
    for layer in (generator.first, generator.last):
        layer.weight.normal_()


def by_heart(sentences: list[Sentence], encoder: Path, folder: Path) -> Settings:
    """A run that learns a few sentences by heart; the folder gets them and the run."""
    corpus = str(folder / "nested.jsonl")
    formats.write(corpus, sentences)
    return plain_settings(
        {
            "data": {"train": corpus, "dev": corpus},
            "encoder": {
                "name": str(encoder),
                "pooling": "mean",
                "character_filters": 64,
                "hidden_size": 64,
                "lstm_layers": 1,
                "dropout": 0,
            },
            "diffusion": {"spans": 64, "timesteps": 100},
            "decoder": {
                "layers": 2,
                "heads": 4,
                "feedforward": 128,
                "dropout": 0,
                "span_pooling": "endpoints",
            },
            "training": {
                "output": str(folder / "run"),
                "epochs": 100,
                "frozen_epochs": 0,
                "batch_size": 4,
                "matches_per_entity": 0,
                "encoder_learning_rate": 2e-3,
                "learning_rate": 4e-3,
                "weight_decay": 0,
                "clip": 0.5,
                "ema": 0.95,
                "evaluate_every": 2,
            },
            "inference": {"steps": 1, "spans": 24},
        }
    )


def everything(labels: Sequence[str]) -> ScoreRule:
    """Lets all pass."""
    return ScoreRule(plain_inference(phi=0.0), labels, None)


def written(entity: Entity) -> dict[str, object]:
    """As `diffusionner predict` writes it."""
    return {name: getattr(entity, name) for name in ("start", "end", "label", "score", "text")}


def spans(entities: list[Entity]) -> list[tuple[int, int, str]]:
    return [(e.start, e.end, e.label) for e in entities]


def assert_same(one: list[list[Entity]], other: list[list[Entity]]) -> None:
    """The same entities with almost the same scores."""
    assert [spans(e) for e in one] == [spans(e) for e in other]
    for ours, theirs in zip(one, other, strict=True):
        assert [e.score for e in ours] == pytest.approx([e.score for e in theirs], abs=1e-4)
        assert [e.text for e in ours] == [e.text for e in theirs]


def assert_same_refinements(one: list[Refinement], other: list[Refinement]) -> None:
    """The same entities with almost the same scores, and the same outcomes."""
    assert_same([each.entities for each in one], [each.entities for each in other])
    for ours, theirs in zip(one, other, strict=True):
        pairs = zip(ours.outcomes, theirs.outcomes, strict=True)
        assert all((a.given, a.change) == (b.given, b.change) for a, b in pairs)


def refined(
    ner: DiffusionNER, sentences: list[list[str]], given: list[list[tuple]], **options
) -> list[Refinement]:
    """Refine spans given for sentences of words, each sentence alone."""
    return list(ner.refine_pipe(zip(sentences, given, strict=True), only=True, **options))


def candidates_of(table: np.ndarray) -> Candidates[np.ndarray]:
    """Return candidates from (left, right, type, sum, type probability): [B, S, K, 5].

    Those with a negative sum are not entities.
    """
    left, right, type_id = np.moveaxis(table[..., :3].astype(np.int64), -1, 0)
    summed, type_probability = table[..., 3], table[..., 4]
    return Candidates(
        left, right, type_id, summed, type_probability, summed >= 0, np.ones_like(summed, bool),
        np.zeros((*summed.shape, 2), dtype=np.int64),
    )  # fmt: skip


def open_model(encoder_folder: Path, *changes: str) -> DiffusionNER:
    """A model with random weights that can be asked for any labels, and finds plenty."""
    always = ["decoder.types=words", "decoder.initializer=types", "inference.start=candidates"]
    settings = lively_settings(encoder_folder, *always, *changes)
    torch.manual_seed(0)
    network, tokenizer = build_network(settings, ["person", "place"])
    assert isinstance(network, DenoisingNetwork)
    sharpen(network, settings)
    initializer = network.decoder.initializer
    assert initializer is not None
    with torch.no_grad():
        initializer.types.factors.weight *= 20
        initializer.types.factors.bias[-1] = 60
        network.decoder.classifier[-1].weight *= 20
        network.decoder.to_factors.weight *= 20
    return DiffusionNER(TorchEngine(network.eval()), tokenizer, settings)
