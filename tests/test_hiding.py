"""Subwords hidden from the encoder in training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diffusionner.errors import EncoderError
from diffusionner.model.pretrained import load_tokenizer
from diffusionner.training.hiding import Hiding
from diffusionner.training.trainer import train

MASK, PAD, EDGE = 4, 0, 2


@pytest.fixture
def hiding() -> Hiding:
    return Hiding(0.25, MASK, np.array([PAD, EDGE, MASK]))


@pytest.fixture
def rows() -> np.ndarray:
    subwords = np.full((500, 40), 9)
    subwords[:, 0] = EDGE
    subwords[:, 30:] = PAD
    return subwords


def test_the_share_is_hidden_and_nothing_else_changes(hiding, rows):
    shown = hiding.apply(rows, np.arange(500))
    text = rows == 9
    assert (shown[~text] == rows[~text]).all()
    assert np.isin(shown[text], [9, MASK]).all()
    assert (shown == MASK)[text].mean() == pytest.approx(0.25, abs=0.01)


def test_it_depends_on_the_key_alone(hiding, rows):
    shown = hiding.apply(rows, np.arange(500))
    assert (hiding.apply(rows[[7, 3], :33], np.array([7, 3])) == shown[[7, 3], :33]).all()
    assert (hiding.apply(rows, np.arange(500, 1000)) != shown).any()


def test_training_hides_and_repeats_itself(tiny_settings):
    def weights(name: str, share: float) -> bytes:
        training = replace(
            tiny_settings.training,
            output=f"{tiny_settings.training.output}-{name}",
            epochs=1,
            hidden_subwords=share,
        )
        train(replace(tiny_settings, training=training))
        with open(f"{training.output}/model.safetensors", "rb") as file:
            return file.read()

    assert weights("a", 0.5) == weights("b", 0.5) != weights("c", 0.0)


def test_a_tokenizer_without_a_mask_is_told(encoder_folder):
    tokenizer = load_tokenizer(str(encoder_folder), 128)
    tokenizer.hf.mask_token = None
    with pytest.raises(EncoderError, match=r"no mask token.*training\.hidden_subwords=0"):
        Hiding.of(tokenizer, 0.1)
