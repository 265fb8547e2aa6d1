"""How far a score may be off by chance: resampling of sentences.

Sentences with the same counts are interchangeable, so not sentences are drawn but how many of each
such group: the same distribution, at a cost that hardly depends on the size of the corpus.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diffusionner.evaluation.counts import FRACTIONS
from diffusionner.evaluation.scorer import IntArray, PerSentence, Report

LEVEL = 0.95
_QUANTILES = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
_AT_ONCE = 2**22  # numbers drawn at a time, for the memory's sake

FloatArray = npt.NDArray[np.float64]
Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Interval:
    """The 95% interval of each fraction."""

    precision: Range
    recall: Range
    f1: Range


@dataclass(frozen=True, slots=True)
class Intervals:
    """The intervals of a report, under the names of its measures and types."""

    measures: dict[str, Interval]
    per_type: dict[str, Interval]


@dataclass(frozen=True, slots=True)
class Difference:
    """F1 of one prediction less that of another, with its 95% interval and two-sided p."""

    f1: float
    interval: Range
    p: float


@dataclass(frozen=True, slots=True)
class Other:
    """A second prediction for the same sentences."""

    name: str
    report: Report
    differences: dict[str, Difference]  # of F1, the first's less this one's


def intervals(each: PerSentence, resamples: int, seed: int) -> Intervals:
    return Intervals(
        {name: interval(rows, resamples, seed) for name, rows in _measures(each).items()},
        {label: interval(rows, resamples, seed) for label, rows in each.per_type.items()},
    )


def differences(
    first: PerSentence, second: PerSentence, resamples: int, seed: int
) -> dict[str, Difference]:
    others = _measures(second)
    return {
        name: difference(rows, others[name], resamples, seed)
        for name, rows in _measures(first).items()
    }


def interval(rows: IntArray, resamples: int, seed: int) -> Interval:
    """Percentile bootstrap over rows of (correct, predicted, gold), one a sentence."""
    totals = _bootstrap(rows, resamples, seed)
    # A draw with no entity at all, gold or predicted, says nothing about a rare type.
    telling = totals[totals.any(axis=1)]
    totals = telling if len(telling) else totals
    return Interval(*(_range(_fraction(totals, name)) for name in FRACTIONS))


def difference(first: IntArray, second: IntArray, resamples: int, seed: int) -> Difference:
    """Compare two predictions for the same sentences, by rows as in `interval`.

    The interval is a paired bootstrap's. p is from approximate randomisation: how often the two
    would differ as much if each sentence's predictions were given to either at random.
    """
    size = first.shape[1]
    totals = _bootstrap(np.concatenate((first, second), axis=1), resamples, seed)
    drawn = _fraction(totals[:, :size], "f1") - _fraction(totals[:, size:], "f1")

    observed = _f1(first.sum(axis=0)) - _f1(second.sum(axis=0))
    changes, count = np.unique(second - first, axis=0, return_counts=True)
    generator = np.random.default_rng(seed)
    as_far = 0
    for size in _portions(resamples, len(changes)):
        swapped = generator.binomial(count, 0.5, (size, len(changes))) @ changes
        shuffled = _fraction(first.sum(axis=0) + swapped, "f1")
        shuffled -= _fraction(second.sum(axis=0) - swapped, "f1")
        as_far += int((np.abs(shuffled) >= abs(observed) - 1e-12).sum())
    # The observed one is itself one of the possible outcomes: p is never 0.
    return Difference(observed, _range(drawn), (as_far + 1) / (resamples + 1))


def _measures(each: PerSentence) -> dict[str, IntArray]:
    return {"micro": each.strict, "overlap": each.overlap, "boundaries": each.boundaries}


def _bootstrap(rows: IntArray, resamples: int, seed: int) -> IntArray:
    """The columns' sums in each resample."""
    groups, count = np.unique(rows, axis=0, return_counts=True)
    generator = np.random.default_rng(seed)
    draws = [
        generator.multinomial(len(rows), count / len(rows), size) @ groups
        for size in _portions(resamples, len(groups))
    ]
    return np.concatenate(draws)


def _portions(resamples: int, groups: int) -> list[int]:
    most = max(1, _AT_ONCE // max(1, groups))
    whole, rest = divmod(resamples, most)
    return [most] * whole + [rest] * bool(rest)


def _fraction(totals: IntArray, name: str) -> FloatArray:
    correct, predicted, gold = totals.T
    whole = {"precision": predicted, "recall": gold, "f1": (predicted + gold) / 2}[name]
    return correct / np.maximum(whole, 0.5)  # nothing is correct where there is nothing


def _f1(total: IntArray) -> float:
    return float(_fraction(total[None], "f1")[0])


def _range(values: FloatArray) -> Range:
    low, high = np.quantile(values, _QUANTILES)
    return float(low), float(high)
