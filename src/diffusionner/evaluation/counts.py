"""Precision, recall and F1; fractions are 0.0 where undefined."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple, dataclass, fields
from statistics import fmean

FRACTIONS = ("precision", "recall", "f1")


@dataclass(frozen=True, slots=True)
class Counts:
    """What was found against what is there."""

    correct: int
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        return _share(self.correct, self.predicted)

    @property
    def recall(self) -> float:
        return _share(self.correct, self.gold)

    @property
    def f1(self) -> float:
        return _harmonic_mean(self.precision, self.recall)


@dataclass(frozen=True, slots=True)
class SliceCounts:
    """Counts of the entities that have a property, such as a length or taking part in nesting.

    A prediction has it by the predictions around it and a gold entity by the gold ones, so each
    side has its own count of the right ones.
    """

    correct: int = 0  # predictions with the property that are gold entities
    predicted: int = 0  # predictions with the property
    found: int = 0  # gold entities with the property that were predicted
    gold: int = 0  # gold entities with the property

    def __add__(self, other: SliceCounts) -> SliceCounts:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return SliceCounts(*(one + another for one, another in pairs))

    @property
    def precision(self) -> float:
        return _share(self.correct, self.predicted)

    @property
    def recall(self) -> float:
        return _share(self.found, self.gold)

    @property
    def f1(self) -> float:
        return _harmonic_mean(self.precision, self.recall)


@dataclass(frozen=True, slots=True)
class Average:
    """The plain mean of each fraction over the types."""

    precision: float
    recall: float
    f1: float

    @classmethod
    def over(cls, counts: Collection[Counts]) -> Average:
        if not counts:
            return cls(0.0, 0.0, 0.0)
        return cls(*(fmean(getattr(each, name) for each in counts) for name in FRACTIONS))


Row = Counts | SliceCounts | Average


def row_to_dict(row: Row) -> dict[str, float | int]:
    """For JSON: fractions rounded to six places, then the counts behind them."""
    fractions = {name: round(getattr(row, name), 6) for name in FRACTIONS}
    names = (field.name for field in fields(row))
    return fractions | {name: getattr(row, name) for name in names if name not in FRACTIONS}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _harmonic_mean(precision: float, recall: float) -> float:
    total = precision + recall
    return 2 * precision * recall / total if total else 0.0
