"""Precision, recall and F1. A ratio whose denominator is 0 is 0.0."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

METRICS = ("precision", "recall", "f1")
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of correct, predicted and gold entities."""

    correct: int
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


@dataclass(frozen=True, slots=True)
class SliceCounts(Counts):
    """Counts of the entities with some property, such as a length or a nesting depth.

    A prediction has the property relative to the other predictions, a gold entity relative to the
    other gold entities. Each side therefore has its own count of matches.
    """

    correct: int = 0  # predictions with the property that are gold entities
    predicted: int = 0  # predictions with the property
    gold: int = 0  # gold entities with the property
    found: int = 0  # gold entities with the property that were predicted

    @property
    def recall(self) -> float:
        return self.found / self.gold if self.gold else 0.0


@dataclass(frozen=True, slots=True)
class Average:
    """Unweighted mean of each metric over the entity types."""

    precision: float
    recall: float
    f1: float

    @classmethod
    def over(cls, counts: Collection[Counts]) -> Average:
        return cls(*(fmean([getattr(c, name) for c in counts] or [0.0]) for name in METRICS))


Row = Counts | Average


def row_to_dict(row: Row) -> dict[str, Any]:
    """Return the metrics, rounded to six places, and the counts behind them."""
    counts = {f.name: getattr(row, f.name) for f in fields(row) if f.name not in METRICS}
    return {name: round(getattr(row, name), 6) for name in METRICS} | counts
