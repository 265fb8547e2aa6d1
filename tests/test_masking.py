"""Subword masking in training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diffusionner.errors import EncoderError
from diffusionner.storage.encoders import load_tokenizer
from diffusionner.training.masking import SubwordMasking
from diffusionner.training.trainer import Trainer

MASK, PAD, EDGE = 4, 0, 2


@pytest.fixture
def masking() -> SubwordMasking:
    return SubwordMasking(0.25, MASK, np.array([PAD, EDGE, MASK]))


@pytest.fixture
def rows() -> np.ndarray:
    subwords = np.full((500, 40), 9)
    subwords[:, 0] = EDGE
    subwords[:, 30:] = PAD
    return subwords


def test_only_the_given_rate_of_text_is_masked(masking, rows):
    shown = masking.apply(rows, np.arange(500))
    text = rows == 9
    assert (shown[~text] == rows[~text]).all()
    assert np.isin(shown[text], [9, MASK]).all()
    assert (shown == MASK)[text].mean() == pytest.approx(0.25, abs=0.01)


def test_masking_depends_on_the_key_alone(masking, rows):
    shown = masking.apply(rows, np.arange(500))
    assert (masking.apply(rows[[7, 3], :33], np.array([7, 3])) == shown[[7, 3], :33]).all()
    assert (masking.apply(rows, np.arange(500, 1000)) != shown).any()


def test_masking_in_training_is_reproducible(tiny_settings):
    def weights(name: str, rate: float) -> bytes:
        training = replace(
            tiny_settings.training,
            output=f"{tiny_settings.training.output}-{name}",
            epochs=1,
            subword_masking=rate,
        )
        Trainer(replace(tiny_settings, training=training)).run()
        with open(f"{training.output}/model.safetensors", "rb") as file:
            return file.read()

    assert weights("a", 0.5) == weights("b", 0.5) != weights("c", 0.0)


def test_a_tokenizer_without_a_mask_token_is_refused(encoder_folder):
    tokenizer = load_tokenizer(str(encoder_folder), 128)
    tokenizer.hf.mask_token = None
    with pytest.raises(EncoderError, match=r"no mask token.*training\.subword_masking=0"):
        SubwordMasking.for_tokenizer(tokenizer, 0.1)
