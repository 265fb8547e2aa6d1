"""Intervals and p values: what resampling by hand gives, and what they promise statistically."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest

from diffusionner.corpus import Sentence, Span
from diffusionner.evaluation import significance
from diffusionner.evaluation.result import Evaluation
from diffusionner.evaluation.scorer import score_sentences
from diffusionner.evaluation.significance import difference, interval


def system(gold: np.ndarray, rate: float, generator: np.random.Generator) -> np.ndarray:
    """Rows of (correct, predicted, gold): each entity is right or not, some are made up."""
    correct = generator.binomial(gold, rate)
    predicted = correct + generator.binomial(gold, (1 - rate) / 2)
    return np.stack((correct, predicted, gold), axis=1)


def f1(rows: np.ndarray) -> float:
    correct, predicted, gold = rows.sum(axis=0)
    return 2 * correct / (predicted + gold)


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.fixture
def rows(generator: np.random.Generator) -> np.ndarray:
    return system(generator.integers(0, 6, 300), 0.7, generator)


def test_interval_is_that_of_resampling_sentence_by_sentence(rows, generator):
    drawn = [rows[generator.integers(0, len(rows), len(rows))].sum(axis=0) for _ in range(4000)]
    correct, predicted, gold = np.array(drawn).T
    found = interval(rows, 4000, seed=1)
    for name, values in (
        ("precision", correct / predicted),
        ("recall", correct / gold),
        ("f1", 2 * correct / (predicted + gold)),
    ):
        expected = np.quantile(values, [0.025, 0.975])
        assert getattr(found, name) == pytest.approx(expected, abs=0.004)
    assert found.f1[0] < f1(rows) < found.f1[1]


def test_the_seed_decides(rows):
    other = rows.copy()
    other[:40, 0] = 0
    for compute in (
        lambda seed: interval(rows, 500, seed),
        lambda seed: difference(rows, other, 500, seed),
    ):
        assert compute(3) == compute(3)
        assert compute(3) != compute(4)


def test_drawing_in_portions_changes_nothing_but_the_memory(rows, monkeypatch):
    whole = interval(rows, 300, seed=0), difference(rows, rows[::-1], 300, seed=0)
    monkeypatch.setattr(significance, "_MAX_DRAWS", 1000)
    assert (interval(rows, 300, seed=0), difference(rows, rows[::-1], 300, seed=0)) == whole


def test_the_order_of_sentences_does_not_matter(rows):
    assert interval(rows[::-1], 200, seed=0) == interval(rows, 200, seed=0)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[2, 2, 2]] * 5, (1.0, 1.0)),
        ([[0, 2, 2]] * 5, (0.0, 0.0)),
        ([[0, 0, 0]] * 5, (0.0, 0.0)),
        # Some draws have none of this type: they do not count.
        ([[1, 1, 1]] + [[0, 0, 0]] * 5, (1.0, 1.0)),
    ],
)
def test_intervals_at_the_edge(rows, expected):
    found = interval(np.array(rows), 200, seed=0)
    assert found.precision == found.recall == found.f1 == expected


def test_intervals_cover_the_truth_as_often_as_they_say(generator):
    """The truth is F1 over very many sentences like these."""
    gold = generator.integers(0, 6, 400_000)
    truth = f1(system(gold, 0.7, generator))
    covered = 0
    for seed in range(300):
        rows = system(generator.integers(0, 6, 200), 0.7, generator)
        low, high = interval(rows, 200, seed).f1
        covered += low <= truth <= high
    assert 0.90 <= covered / 300 <= 0.99


def test_p_is_uniform_when_there_is_no_difference(generator):
    ps, around_zero = [], 0
    for seed in range(400):
        gold = generator.integers(0, 6, 150)
        found = difference(system(gold, 0.7, generator), system(gold, 0.7, generator), 200, seed)
        ps.append(found.p)
        around_zero += found.interval[0] <= 0 <= found.interval[1]
    assert kstest(ps, "uniform").pvalue > 0.05
    assert 0.02 <= np.mean(np.array(ps) <= 0.05) <= 0.09
    assert 0.90 <= around_zero / 400 <= 0.99


def test_p_is_tiny_when_there_is_a_large_difference(generator):
    gold = generator.integers(0, 6, 300)
    better, worse = system(gold, 0.8, generator), system(gold, 0.6, generator)
    found = difference(better, worse, 1000, seed=0)
    assert found.f1 == pytest.approx(f1(better) - f1(worse))
    assert found.p == 1 / 1001
    assert 0 < found.interval[0] < found.f1 < found.interval[1]
    back = difference(worse, better, 1000, seed=0)
    assert back.f1 == pytest.approx(-found.f1)
    assert back.p == found.p


def test_the_same_prediction_twice(rows):
    found = difference(rows, rows, 200, seed=0)
    assert (found.f1, found.interval, found.p) == (0.0, (0.0, 0.0), 1.0)


def test_p_by_hand():
    """One sentence: giving its predictions to the other or not, the difference is as large."""
    assert difference(np.array([[1, 1, 1]]), np.array([[0, 0, 1]]), 50, seed=0).p == 1.0


def test_evaluations_have_intervals_for_all_measures():
    gold = [Sentence(["w"] * 3, [span]) for span in (Span(0, 2, "A"), Span(1, 2, "B"))] * 20
    predicted = [[Span(0, 2, "A")], [Span(1, 3, "B")]] * 20
    report = score_sentences(gold, predicted)
    found = Evaluation.from_report(report, ("gold", "predicted"), resamples=200)
    assert found.intervals.measures.keys() == {"micro", "overlap", "boundaries"}
    assert found.intervals.measures["overlap"].f1 == (1.0, 1.0)
    low, high = found.intervals.measures["micro"].f1
    assert 0.2 < low < report.micro.f1 < high < 0.8
    assert found.intervals.per_type["A"].f1 == (1.0, 1.0)
    assert found.intervals.per_type["B"].f1 == (0.0, 0.0)
    perfect = score_sentences(gold, [s.entities for s in gold])
    other = report.compare_with(perfect, "perfect", resamples=200).other
    assert {name: each.f1 for name, each in other.differences.items()} == {
        "micro": -0.5, "overlap": 0.0, "boundaries": -0.5,
    }  # fmt: skip
