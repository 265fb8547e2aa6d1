"""Confidence intervals and significance tests by resampling sentences.

Sentences with equal counts are interchangeable. So we draw how many sentences of each such group
occur instead of individual sentences: the distribution is the same, at a cost that hardly depends
on the size of the corpus.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diffusionner.evaluation.counts import METRICS, IntArray

LEVEL = 0.95
MEASURES = ("micro", "overlap", "boundaries")
_QUANTILES = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
_MAX_DRAWS = 2**22  # numbers drawn at a time, to limit memory

FloatArray = npt.NDArray[np.float64]
Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Interval:
    """95% confidence interval of each metric."""

    precision: Range
    recall: Range
    f1: Range


@dataclass(frozen=True, slots=True)
class Intervals:
    """The intervals of a report, by measure and by entity type."""

    measures: dict[str, Interval]
    per_type: dict[str, Interval]


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference in F1 of two predictions, with its 95% interval and two-sided p-value."""

    f1: float
    interval: Range
    p: float


def interval(rows: IntArray, resamples: int, seed: int) -> Interval:
    """Return the percentile bootstrap interval over rows [sentences, 3] of counts."""
    totals = _bootstrap(rows, resamples, seed)
    # Resamples without any gold or predicted entity say nothing about a rare type.
    informative = totals[totals.any(axis=1)]
    totals = informative if len(informative) else totals
    return Interval(*(_quantile_range(_metric(totals, name)) for name in METRICS))


def difference(first: IntArray, second: IntArray, resamples: int, seed: int) -> Difference:
    """Compare two predictions for the same sentences, given rows as in `interval`.

    The interval is a paired bootstrap interval. The p-value comes from approximate randomization:
    the share of random swaps of the two predictions, sentence by sentence, with a difference at
    least as large.
    """
    columns = first.shape[1]
    totals = _bootstrap(np.concatenate((first, second), axis=1), resamples, seed)
    resampled = _metric(totals[:, :columns], "f1") - _metric(totals[:, columns:], "f1")

    first_total, second_total = first.sum(axis=0), second.sum(axis=0)
    observed = float(_metric(first_total, "f1") - _metric(second_total, "f1"))
    changes, count = np.unique(second - first, axis=0, return_counts=True)
    generator = np.random.default_rng(seed)
    as_large = 0
    for size in _chunk_sizes(resamples, len(changes)):
        swapped = generator.binomial(count, 0.5, (size, len(changes))) @ changes
        shuffled = _metric(first_total + swapped, "f1") - _metric(second_total - swapped, "f1")
        as_large += int((np.abs(shuffled) >= abs(observed) - 1e-12).sum())
    # The observed assignment is one of the possible outcomes, so p is never 0.
    p = (as_large + 1) / (resamples + 1)
    return Difference(observed, _quantile_range(resampled), p)


def _bootstrap(rows: IntArray, resamples: int, seed: int) -> IntArray:
    """Return the sum of each column in each resample."""
    groups, count = np.unique(rows, axis=0, return_counts=True)
    generator = np.random.default_rng(seed)
    draws = [
        generator.multinomial(len(rows), count / len(rows), size) @ groups
        for size in _chunk_sizes(resamples, len(groups))
    ]
    return np.concatenate(draws)


def _chunk_sizes(resamples: int, groups: int) -> list[int]:
    largest = max(1, _MAX_DRAWS // max(1, groups))
    whole, rest = divmod(resamples, largest)
    return [largest] * whole + [rest] * bool(rest)


def _metric(totals: IntArray, name: str) -> FloatArray:
    """[..., 3] → [...]"""
    correct, predicted, gold = totals.T
    denominator = {"precision": predicted, "recall": gold, "f1": (predicted + gold) / 2}[name]
    return correct / np.maximum(denominator, 0.5)  # 0 / 0.5 = 0 if there are no entities


def _quantile_range(values: FloatArray) -> Range:
    low, high = np.quantile(values, _QUANTILES)
    return float(low), float(high)
