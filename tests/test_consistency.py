"""Consistency: two passes over each sentence, whose scores should agree."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from diffusionner import Sentence
from diffusionner.batching import EncodedCorpus
from diffusionner.corpus import collect_labels
from diffusionner.errors import SettingsError
from diffusionner.model.network import DenoisingNetwork
from diffusionner.model.tensors import batch_to_device
from diffusionner.settings import Settings
from diffusionner.storage.encoders import load_encoder, load_tokenizer
from diffusionner.training.trainer import Trainer
from diffusionner.training.type_losses import classification_loss

CPU = torch.device("cpu")


@pytest.mark.parametrize("passage_words", [0, 9])
def test_both_halves_of_a_doubled_batch_are_the_batch(
    still_encoder: Path, tiny_settings: Settings, nested_sentences, passage_words
):
    settings = tiny_settings.override(
        [f"encoder.passage_words={passage_words}", "encoder.dropout=0"]
    )
    sentences = [Sentence(s.words[:4], doc="d") for s in nested_sentences[:6]]
    tokenizer = load_tokenizer(still_encoder, limit=128)
    batch = EncodedCorpus(sentences, tokenizer, settings.encoder).batch(np.arange(6))
    doubled = batch.doubled()
    assert len(doubled.subwords) == 2 * len(batch.subwords)
    torch.manual_seed(0)
    network = DenoisingNetwork(load_encoder(str(still_encoder)), ["A"], settings)
    with torch.no_grad():
        once, twice = (network.encode(batch_to_device(b, CPU)).states for b in (batch, doubled))
    for half in twice.chunk(2):
        assert torch.allclose(half, once, atol=1e-6)


def test_the_loss_adds_the_divergence_of_the_halves(tiny_settings, still_encoder, nested_sentences):
    labels = collect_labels(nested_sentences)
    tokenizer = load_tokenizer(still_encoder, limit=128)
    corpus = EncodedCorpus(nested_sentences[:3], tokenizer, tiny_settings.encoder, labels)
    batch = corpus.batch(np.arange(3)).doubled()
    words = batch.first.shape[1]
    torch.manual_seed(0)
    scores = torch.randn(6, words, words, len(labels) + 1)
    tensors = batch_to_device(batch, CPU)
    plain = classification_loss(scores, tensors)
    expected = 0.0
    for sentence in range(3):
        length = int(batch.lengths[sentence])
        for left in range(length):
            for right in range(left, length):
                p, q = (
                    scores[i, left, right].softmax(-1).tolist() for i in (sentence, sentence + 3)
                )
                expected += sum((a - b) * math.log(a / b) for a, b in zip(p, q, strict=True))
    found = classification_loss(scores, tensors, consistency=0.5) - plain
    assert float(found) == pytest.approx(0.5 * expected, rel=1e-4)
    halves = torch.cat([scores[:3], scores[:3]])
    assert torch.equal(
        classification_loss(halves, tensors, 2.0), classification_loss(halves, tensors)
    )


def test_training_with_consistency_and_passages(tiny_settings: Settings):
    settings = tiny_settings.override(
        [
            "training.consistency=1", "encoder.passage_words=40", "training.subword_masking=0.1",
            "decoder.initializer=types", "inference.start=candidates", "training.accumulation=2",
        ]
    )  # fmt: skip
    outcome = Trainer(settings).run()
    assert outcome.best_f1 >= 0 and math.isfinite(outcome.sentences_per_second)


def test_consistency_needs_scores_of_all_spans(tiny_settings: Settings):
    with pytest.raises(SettingsError, match=r"consistency=1 needs .*initializer=types"):
        Trainer(tiny_settings.override(["training.consistency=1"]))
