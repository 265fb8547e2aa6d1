"""The scores of one set of predictions, and the tables that show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from diffusionner.corpus import Sentence
from diffusionner.evaluation.counts import (
    METRICS,
    Average,
    Counts,
    IntArray,
    Row,
    SliceCounts,
    row_to_dict,
)
from diffusionner.evaluation.matching import Outcome
from diffusionner.evaluation.mentions import Mention
from diffusionner.evaluation.significance import MEASURES, Difference, Intervals, difference
from diffusionner.inference.calibration import expected_calibration_error

_METRIC_NAMES = ("precision", "recall", "F1")


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Rows in sections. The first column holds names, the others numbers."""

    title: str
    headings: list[str]
    sections: list[list[list[str]]]
    note: str = ""

    def __str__(self) -> str:
        rows = [self.headings, *(row for section in self.sections for row in section)]
        first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))

        def line(row: list[str]) -> str:
            cells = (cell.rjust(width) for cell, width in zip(row[1:], others, strict=True))
            return "  ".join([row[0].ljust(first), *cells]).rstrip()

        blocks = ["\n".join(map(line, section)) for section in self.sections if section]
        parts = (self.title, line(self.headings), "\n\n".join(blocks), self.note)
        return "\n".join(filter(None, parts))


@dataclass(frozen=True, slots=True)
class Pair:
    """Gold and predicted mentions of one sentence; without `sentence`, its words are unknown."""

    gold: frozenset[Mention]
    predicted: frozenset[Mention]
    sentence: Sentence | None = None


@dataclass(frozen=True, slots=True)
class PredictionScores:
    """The model's own scores of its predictions, and which of these are correct."""

    scores: npt.NDArray[np.float64]  # [N]
    correct: npt.NDArray[np.bool_]  # [N]

    @property
    def calibration_error(self) -> float:
        """Expected calibration error."""
        return expected_calibration_error(self.scores, self.correct)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A second prediction for the same sentences."""

    name: str
    report: Report
    differences: dict[str, Difference]  # in F1, by measure: the first prediction minus this one

    def table(self, first: Report) -> ScoreTable:
        names = {"micro": "strict", "boundaries": "boundaries only"}
        rows = []
        for measure, found in self.differences.items():
            ours, theirs = (100 * getattr(each, measure).f1 for each in (first, self.report))
            numbers = f"{ours:.2f}", f"{theirs:.2f}", f"{100 * found.f1:+.2f}"
            row = [names.get(measure, measure), *numbers, percent_range(found.interval)]
            rows.append([*row, f"{found.p:.4f}"])
        headings = ["F1", "this", "other", "difference", "95% CI", "p"]
        note = (
            f"other: {self.name}; CI: paired bootstrap, p: two-sided, approximate randomization, "
            "both over sentences"
        )
        return ScoreTable("Comparison with the other prediction", headings, [rows], note)


@dataclass(frozen=True, slots=True)
class Report:
    """Scores of one set of predictions; `print(report)` shows the main ones as a table."""

    sentences: int
    micro: Counts  # strict
    macro: Average  # strict, over the types in the gold or the predictions
    boundaries: Counts
    overlap: Counts
    types: Counts  # the labels of a sentence, regardless of their spans
    words: Counts  # the pairs of a word and the label of an entity that covers it
    nested: SliceCounts
    discontinuous: Counts  # strict, of mentions with several fragments
    irregular: Counts  # strict, of mentions that do not align with token boundaries
    per_type: dict[str, Counts]  # strict, sorted by label
    overlap_macro: Average
    overlap_per_type: dict[str, Counts]
    by_depth: dict[str, SliceCounts]
    by_length: dict[str, SliceCounts]  # number of words of the entity
    by_sentence_length: dict[str, SliceCounts]  # number of words; empty if unknown
    errors: dict[Outcome, int]
    # (gold label, predicted label) of mentions with equal boundaries; None for no partner.
    confusion: dict[tuple[str | None, str | None], int]
    pairs: list[Pair] = field(repr=False, compare=False)
    # Correct, predicted and gold counts of each sentence, [sentences, 3], for resampling.
    measure_counts: dict[str, IntArray] = field(repr=False, compare=False)
    type_counts: dict[str, IntArray] = field(repr=False, compare=False)  # strict
    prediction_scores: PredictionScores | None = field(default=None, repr=False, compare=False)
    other: Comparison | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return "\n\n".join(map(str, (self.summary(), *self.comparison_tables)))

    def compare_with(
        self, other: Report, name: str, resamples: int = 1000, seed: int = 0
    ) -> Report:
        """Return this report with a paired comparison to the report of another prediction.

        Both must score the same sentences, in the same order.
        """
        ours, theirs = self.measure_counts, other.measure_counts
        differences = {
            measure: difference(ours[measure], theirs[measure], resamples, seed)
            for measure in (self if _occurs(self.discontinuous) else other).resampled
        }
        return replace(self, other=Comparison(name, other, differences))

    @property
    def resampled(self) -> tuple[str, ...]:
        """The measures with confidence intervals and paired tests."""
        return MEASURES + ("words", "discontinuous") * _occurs(self.discontinuous)

    @property
    def comparison_tables(self) -> list[ScoreTable]:
        """The table of the comparison, if there is one."""
        return [] if self.other is None else [self.other.table(self)]

    def summary(self, intervals: Intervals | None = None, title: str = "") -> ScoreTable:
        """Return percentages and the number of gold entities, overall and for each type."""

        def cells(name: str, row: Row, key: str = "", label: str = "") -> list[str]:
            between = []
            if intervals is not None:
                found = intervals.per_type.get(label) if label else intervals.measures.get(key)
                between = ["" if found is None else percent_range(found.f1)]
            support = str(row.gold) if isinstance(row, Counts) else ""
            return [name, *_percentages(row), *between, support]

        rows = [
            cells("strict, micro", self.micro, "micro"),
            cells("strict, macro", self.macro),
            cells("overlap, micro", self.overlap, "overlap"),
            cells("overlap, macro", self.overlap_macro),
            cells("boundaries only", self.boundaries, "boundaries"),
            cells("types only", self.types),
            cells("nested entities", self.nested),
        ]
        if _occurs(self.discontinuous):
            rows.append(cells("words", self.words, "words"))
            rows.append(cells("discontinuous", self.discontinuous, "discontinuous"))
        if _occurs(self.irregular):
            rows.append(cells("misaligned", self.irregular))
        types = [cells(label, row, label=label) for label, row in self.per_type.items()]
        middle = [] if intervals is None else ["95% CI of F1"]
        headings = ["", *_METRIC_NAMES, *middle, "support"]
        return ScoreTable(title, headings, [rows, types])

    def to_dict(self) -> dict[str, Any]:
        """Return all scores as plain values for JSON; what does not occur is left out."""
        names: list[str | None] = [*self.per_type, None]
        counts = [[self.confusion.get((row, column), 0) for column in names] for row in names]
        rows = ("micro", "macro", "boundaries", "overlap", "types", "words", "nested")
        groups = ("per_type", "by_depth", "by_length")
        result: dict[str, Any] = {
            "sentences": self.sentences,
            **{name: row_to_dict(getattr(self, name)) for name in rows},
            **{name: _rows_to_dict(getattr(self, name)) for name in groups},
            "errors": {outcome.name.lower(): count for outcome, count in self.errors.items()},
            # Rows are gold labels, columns predicted ones; the last of each means no entity.
            "confusion": {"labels": names[:-1], "counts": counts},
        }
        result["overlap"] |= {
            "macro": row_to_dict(self.overlap_macro),
            "per_type": _rows_to_dict(self.overlap_per_type),
        }
        if self.by_sentence_length:
            result["by_sentence_length"] = _rows_to_dict(self.by_sentence_length)
        for name in ("discontinuous", "irregular"):
            if _occurs(getattr(self, name)):
                result[name] = row_to_dict(getattr(self, name))
        if self.prediction_scores is not None:
            result["calibration_error"] = round(self.prediction_scores.calibration_error, 4)
        return result


def detail_tables(report: Report) -> list[ScoreTable]:
    """Return all tables except the summary, the widest last."""
    labels: list[str | None] = [*report.per_type, None]
    rows = [
        [label or "none", *(str(report.confusion.get((label, other), "·")) for other in labels)]
        for label in labels
    ]
    confusion = ScoreTable(
        "Types of entities with the same boundaries",
        ["gold ↓ predicted →", *(label or "none" for label in labels)],
        [rows[:-1], rows[-1:]],
        "none: the other side has no entity with these boundaries",
    )
    types = report.overlap_per_type
    rows = [[label, *_percentages(row), str(row.gold)] for label, row in types.items()]
    overlap = ScoreTable("Overlap by type", ["", *_METRIC_NAMES, "support"], [rows])
    return [_error_table(report), _slice_table(report), overlap, confusion]


def _error_table(report: Report) -> ScoreTable:
    def share(count: int, total: int) -> str:
        return f"{100 * count / total:.2f}%" if total else ""

    rows = []
    for outcome, count in report.errors.items():
        of_gold = "" if outcome is Outcome.SPURIOUS else share(count, report.micro.gold)
        of_predicted = "" if outcome is Outcome.MISSED else share(count, report.micro.predicted)
        rows.append([f"{outcome.title} ({outcome.meaning})", str(count), of_gold, of_predicted])
    headings = ["", "count", "of gold", "of predicted"]
    note = "all but spurious sum to gold, all but missed to predicted"
    return ScoreTable("Errors", headings, [rows], note)


def _slice_table(report: Report) -> ScoreTable:
    slices = {
        "depth": report.by_depth,
        "words": report.by_length,
        "sentence": report.by_sentence_length,
    }
    sections = [
        [
            [f"{name} {key}", *_percentages(row), str(row.gold), str(row.found), str(row.predicted)]
            for key, row in rows.items()
        ]
        for name, rows in slices.items()
    ]
    headings = ["", *_METRIC_NAMES, "gold", "found", "predicted"]
    note = "depth: number of containing entities; words, sentence: length in words"
    return ScoreTable("Strict scores by depth and length", headings, sections, note)


def _occurs(row: Counts) -> bool:
    return bool(row.gold or row.predicted)


def _rows_to_dict(rows: Mapping[str, Row]) -> dict[str, dict[str, Any]]:
    return {name: row_to_dict(row) for name, row in rows.items()}


def _percentages(row: Row) -> list[str]:
    return [f"{100 * getattr(row, name):.2f}" for name in METRICS]


def percent_range(ends: tuple[float, float]) -> str:
    return f"{100 * ends[0]:.2f} to {100 * ends[1]:.2f}"
