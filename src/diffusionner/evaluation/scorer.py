"""Precision, recall and F1 of predicted entities, nested ones included.

Every sentence's entities are a set: one predicted twice counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from statistics import fmean
from typing import TYPE_CHECKING, Any

from diffusionner.corpus import Entity, Span

if TYPE_CHECKING:
    from rich.table import Table

_Triple = tuple[int, int, str]
_FRACTIONS = ("precision", "recall", "f1")


@dataclass(frozen=True, slots=True)
class Counts:
    """What was found against what is there; fractions are 0.0 where undefined."""

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
class NestedCounts:
    """Entities that take part in nesting.

    What is nested among the predictions need not be nested in the gold and the other way round,
    so each side has its own count of the right ones.
    """

    correct: int  # nested predictions that are gold entities
    predicted: int  # nested predictions
    found: int  # nested gold entities that were predicted
    gold: int  # nested gold entities

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


@dataclass(frozen=True, slots=True)
class Report:
    """All that is said about one set of predictions."""

    sentences: int
    micro: Counts  # start, end and label are right
    macro: Average  # over the types that occur in gold or predictions
    boundaries: Counts  # start and end are right, whatever the label
    types: Counts  # the labels of a sentence, wherever they stand
    nested: NestedCounts
    per_type: dict[str, Counts]  # sorted by label

    def to_dict(self) -> dict[str, Any]:
        """For JSON: fractions rounded to six places, then the counts behind them."""
        return {
            "sentences": self.sentences,
            "micro": _to_dict(self.micro),
            "macro": _to_dict(self.macro),
            "boundaries": _to_dict(self.boundaries),
            "types": _to_dict(self.types),
            "nested": _to_dict(self.nested),
            "per_type": {label: _to_dict(counts) for label, counts in self.per_type.items()},
        }

    def to_table(self) -> Table:
        """For the terminal: percentages, and as support the number of gold entities."""
        from rich.table import Table
        from rich.text import Text

        table = Table()
        table.add_column("")
        for heading in ("precision", "recall", "F1", "support"):
            table.add_column(heading, justify="right")

        def add(name: str, row: Counts | NestedCounts | Average) -> None:
            percentages = [f"{100 * getattr(row, fraction):.2f}" for fraction in _FRACTIONS]
            support = "" if isinstance(row, Average) else str(row.gold)
            # Text, because a label may hold brackets, which rich would take for markup.
            table.add_row(Text(name), *percentages, support)

        add("micro", self.micro)
        add("macro", self.macro)
        add("boundaries alone", self.boundaries)
        add("types alone", self.types)
        add("nested entities", self.nested)
        table.add_section()
        for label, counts in self.per_type.items():
            add(label, counts)
        return table


def score(
    gold: Sequence[Sequence[Span | Entity]], predicted: Sequence[Sequence[Span | Entity]]
) -> Report:
    """Compare predictions with the gold entities, sentence by sentence in the same order."""
    if len(gold) != len(predicted):
        raise ValueError(
            f"{len(gold)} gold sentences but {len(predicted)} predicted ones; "
            "give one list of entities for each sentence, empty where there are none"
        )
    label_correct: Counter[str] = Counter()
    label_predicted: Counter[str] = Counter()
    label_gold: Counter[str] = Counter()
    boundaries = dict.fromkeys(("correct", "predicted", "gold"), 0)
    nested = dict.fromkeys(("correct", "predicted", "found", "gold"), 0)
    types_correct = 0

    for gold_spans, predicted_spans in zip(gold, predicted, strict=True):
        # Start, end and label only: the score and text of an Entity do not matter here.
        wanted = {span[:3] for span in gold_spans}
        found = {span[:3] for span in predicted_spans}
        wanted_labels = Counter(label for _, _, label in wanted)
        found_labels = Counter(label for _, _, label in found)
        label_correct.update(label for _, _, label in wanted & found)
        label_predicted.update(found_labels)
        label_gold.update(wanted_labels)
        types_correct += (wanted_labels & found_labels).total()

        wanted_bounds = {(start, end) for start, end, _ in wanted}
        found_bounds = {(start, end) for start, end, _ in found}
        boundaries["correct"] += len(wanted_bounds & found_bounds)
        boundaries["predicted"] += len(found_bounds)
        boundaries["gold"] += len(wanted_bounds)

        nested_wanted, nested_found = _nested(wanted), _nested(found)
        nested["correct"] += len(nested_found & wanted)
        nested["predicted"] += len(nested_found)
        nested["found"] += len(nested_wanted & found)
        nested["gold"] += len(nested_wanted)

    per_type = {
        label: Counts(label_correct[label], label_predicted[label], label_gold[label])
        for label in sorted(label_gold.keys() | label_predicted.keys())
    }
    all_predicted, all_gold = label_predicted.total(), label_gold.total()
    return Report(
        sentences=len(gold),
        micro=Counts(label_correct.total(), all_predicted, all_gold),
        macro=_average(per_type.values()),
        boundaries=Counts(**boundaries),
        types=Counts(types_correct, all_predicted, all_gold),
        nested=NestedCounts(**nested),
        per_type=per_type,
    )


def _nested(spans: set[_Triple]) -> set[_Triple]:
    """Those that contain another, lie inside another or share their exact span with another."""
    if len(spans) < 2:
        return set()
    ordered = sorted(spans, key=lambda span: (span[0], -span[1]))
    ends = [end for _, end, _ in ordered]
    # In this order one lies inside another exactly if some earlier end is not before its own,
    # and contains another exactly if some later end is not after its own.
    furthest = list(accumulate(ends, max))
    nearest = list(accumulate(reversed(ends), min))[::-1]
    last = len(ordered) - 1
    return {
        span
        for index, span in enumerate(ordered)
        if (index > 0 and furthest[index - 1] >= span[1])
        or (index < last and nearest[index + 1] <= span[1])
    }


def _average(counts: Collection[Counts]) -> Average:
    if not counts:
        return Average(0.0, 0.0, 0.0)
    return Average(
        fmean(each.precision for each in counts),
        fmean(each.recall for each in counts),
        fmean(each.f1 for each in counts),
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _harmonic_mean(precision: float, recall: float) -> float:
    total = precision + recall
    return 2 * precision * recall / total if total else 0.0


def _to_dict(row: Counts | NestedCounts | Average) -> dict[str, float | int]:
    fractions = {name: round(getattr(row, name), 6) for name in _FRACTIONS}
    names = (field.name for field in fields(row))
    return fractions | {name: getattr(row, name) for name in names if name not in _FRACTIONS}
