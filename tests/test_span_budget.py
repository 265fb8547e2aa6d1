"""The number of spans launched on a GPU, which does not read how many it needs."""

from __future__ import annotations

import numpy as np
import pytest
from corpus_files import EXCERPT

from diffusionner import DiffusionNER, formats
from diffusionner.diffusion import Candidates
from diffusionner.inference.gpu.engine import GpuEngine, SpanBudget
from models import assert_same, lively_model

WORDS = [s.words for s in formats.read(EXCERPT)]
OPTIONS = {"start": "candidates", "spans": "auto", "batch_size": 8}


def slots(*counts: int) -> np.ndarray:
    return np.arange(max(counts)) < np.array(counts)[:, None]


def found(spans: int, *used: int) -> Candidates[np.ndarray]:
    """Return candidates of sentences that used so many of the launched spans."""
    zeros = np.zeros((len(used), 1, spans), dtype=np.int64)
    filled = (np.arange(spans) < np.array(used)[:, None])[:, None]
    noisy = np.zeros((*zeros.shape, 2), dtype=np.int64)
    return Candidates(zeros, zeros, zeros, zeros, zeros, zeros > 0, filled, noisy)


def test_as_many_spans_as_such_batches_needed():
    budget = SpanBudget()
    many = slots(40, 12)
    assert budget.expected(many) == 40, "nothing is known yet"
    assert budget.was_sufficient(found(40, 3, 1), many, 40)
    assert budget.expected(many) == budget.expected(slots(37)) == 8
    assert budget.expected(slots(12)) == 12, "nothing is known about shorter sentences"
    assert budget.was_sufficient(found(8, 7, 2), many, 8) and budget.expected(many) == 8
    assert not budget.was_sufficient(found(8, 8, 2), many, 8), "there may be more"
    assert budget.expected(many) == 16
    assert budget.was_sufficient(found(16, 9, 12), many, 16)
    assert budget.expected(slots(34)) == 16 and budget.expected(slots(33, 9)) == 16


def test_a_sentence_without_further_slots_has_enough():
    budget = SpanBudget()
    assert budget.was_sufficient(found(8, 8, 3), slots(8, 20), 8), "it has eight and used them"
    assert not budget.was_sufficient(found(8, 3, 8), slots(8, 20), 8)


@pytest.fixture
def models(encoder_folder) -> tuple[DiffusionNER, DiffusionNER]:
    """The model with the engine of a CPU, and with that of a GPU."""
    plain = lively_model(encoder_folder, "decoder.initializer=types")
    return plain, without_recordings(plain)


def without_recordings(plain: DiffusionNER) -> DiffusionNER:
    engine = GpuEngine(plain.network, plain.network, cuda_graphs=False)
    return DiffusionNER(engine, plain.subwords, plain.settings, plain.calibration)


def test_fewer_spans_find_the_same_entities(monkeypatch):
    """With a trained model: random weights find all candidates likely."""
    plain = DiffusionNER.from_pretrained("en", device="cpu", backend="torch")
    budgeted = without_recordings(plain)
    launched = []
    candidates = plain.network.candidates

    def count(encoding, keys, start, settings):
        launched.append(start.slots.shape[1])
        return candidates(encoding, keys, start, settings)

    expected = plain.predict_tokens(WORDS[:24], **OPTIONS, steps=2)
    assert sum(map(len, expected)) > 12
    monkeypatch.setattr(plain.network, "candidates", count)
    sums = []
    for _ in range(3):
        assert_same(budgeted.predict_tokens(WORDS[:24], **OPTIONS, steps=2), expected)
        sums.append(sum(launched))
        launched.clear()
    assert sums[2] == sums[1] < sums[0], "fewer, once it is known how many are needed"


def test_too_few_spans_run_again_with_all(models):
    plain, budgeted = models
    expected = plain.predict_tokens(WORDS, **OPTIONS)
    budget = budgeted.engine.budget
    for kind in range(8, 160, 8):
        budget.needed[kind] = 0
    assert budget.expected(slots(40)) == 8
    assert_same(budgeted.predict_tokens(WORDS, **OPTIONS), expected)
    assert max(budget.needed.values()) > 16, "it learns the number needed, not just more than 8"


@pytest.mark.parametrize("options", [{"spans": 5}, {"start": "noise"}])
def test_the_budget_is_only_for_candidates_of_auto(models, options):
    plain, budgeted = models
    options = {**OPTIONS, **options}
    expected = plain.predict_tokens(WORDS[:20], **options)
    assert_same(budgeted.predict_tokens(WORDS[:20], **options), expected)
    assert not budgeted.engine.budget.needed
