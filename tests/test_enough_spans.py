"""As few spans as candidates need, on a device that is not waited for."""

from __future__ import annotations

import numpy as np
import pytest
from corpora import EXCERPT

from diffusionner import DiffusionNER, formats
from diffusionner.inference.gpu.span_budget import SpanBudget
from models import assert_same, lively_model

WORDS = [s.words for s in formats.read(EXCERPT)]
INITIALIZER = ("decoder.initializer=types",)
OPTIONS = {"start": "candidates", "spans": "auto", "batch_size": 8}


def slots(*counts: int) -> np.ndarray:
    return np.arange(max(counts)) < np.array(counts)[:, None]


def table(spans: int, *used: int) -> np.ndarray:
    """Of sentences of which so many spans are likely: no entity, but a span."""
    found = np.zeros((len(used), 1, spans, 5))
    found[:, 0, :, 3] = np.where(np.arange(spans) < np.array(used)[:, None], -1.0, -2.0)
    return found


def test_as_many_as_such_batches_needed():
    enough = SpanBudget()
    many = slots(40, 12)
    assert enough.expected(many) == 40, "nothing is known yet"
    assert enough.sufficed(table(40, 3, 1), many, 40)
    assert enough.expected(many) == enough.expected(slots(37)) == 8
    assert enough.expected(slots(12)) == 12, "of such sentences nothing is known"
    assert enough.sufficed(table(8, 7, 2), many, 8) and enough.expected(many) == 8
    assert not enough.sufficed(table(8, 8, 2), many, 8), "there may be more"
    assert enough.expected(many) == 16
    assert enough.sufficed(table(16, 9, 12), many, 16)
    assert enough.expected(slots(34)) == 16 and enough.expected(slots(33, 9)) == 16


def test_a_sentence_that_has_no_more_is_not_cut():
    enough = SpanBudget()
    assert enough.sufficed(table(8, 8, 3), slots(8, 20), 8), "it has eight and used them"
    assert not enough.sufficed(table(8, 3, 8), slots(8, 20), 8)


@pytest.fixture
def models(encoder_folder) -> tuple[DiffusionNER, DiffusionNER]:
    """As it is, and guessing as on a GPU."""
    plain, guessing = (lively_model(encoder_folder, *INITIALIZER) for _ in range(2))
    guessing.engine.enough = SpanBudget()
    return plain, guessing


def test_what_is_found_is_the_same():
    """By a trained model: of random weights all candidates are likely."""
    plain, guessing = (DiffusionNER.from_pretrained("en", device="cpu") for _ in range(2))
    guessing.engine.enough = SpanBudget()
    launched = []
    launch = guessing.engine._launch
    guessing.engine._launch = lambda *given: launched.append(given[2].shape[1]) or launch(*given)
    expected = plain.predict_tokens(WORDS[:24], **OPTIONS, steps=2)
    assert sum(map(len, expected)) > 12
    sums = []
    for _ in range(3):
        assert_same(guessing.predict_tokens(WORDS[:24], **OPTIONS, steps=2), expected)
        sums.append(sum(launched))
        launched.clear()
    assert sums[2] == sums[1] < sums[0], "fewer, once it is known how many are needed"


def test_too_few_run_again_with_all(models):
    plain, guessing = models
    expected = plain.predict_tokens(WORDS, **OPTIONS)
    for kind in range(8, 160, 8):
        guessing.engine.enough.needed[kind] = 0
    wrong = guessing.engine.enough.expected(slots(40))
    assert wrong == 8
    assert_same(guessing.predict_tokens(WORDS, **OPTIONS), expected)
    needed = guessing.engine.enough.needed
    assert max(needed.values()) > 16, "what it learns is how many there were, not that 8 are few"


@pytest.mark.parametrize("options", [{"spans": 5}, {"start": "noise"}])
def test_a_number_that_is_given_is_taken(models, options):
    plain, guessing = models
    options = {**OPTIONS, **options}
    expected = plain.predict_tokens(WORDS[:20], **options)
    assert_same(guessing.predict_tokens(WORDS[:20], **options), expected)
    assert not guessing.engine.enough.needed
