"""A report with everything that the terminal, the JSON file and the HTML page show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from diffusionner.corpus import Sentence
from diffusionner.data.fingerprint import Fingerprint, fingerprint
from diffusionner.evaluation.alignment import align
from diffusionner.evaluation.report import Report, ScoreTable, detail_tables, percent_range
from diffusionner.evaluation.scorer import score_pairs
from diffusionner.evaluation.significance import (
    LEVEL,
    MEASURES,
    Difference,
    Intervals,
    difference,
    interval,
)


@dataclass(frozen=True, slots=True)
class OtherPrediction:
    """A second prediction for the same sentences."""

    name: str
    report: Report
    differences: dict[str, Difference]  # in F1: the first prediction minus this one

    def table(self, first: Report) -> ScoreTable:
        names = {"micro": "strict", "boundaries": "boundaries only"}
        rows = []
        for measure, found in self.differences.items():
            ours, theirs = (100 * getattr(each, measure).f1 for each in (first, self.report))
            numbers = f"{ours:.2f}", f"{theirs:.2f}", f"{100 * found.f1:+.2f}"
            row = [names.get(measure, measure), *numbers, percent_range(found.interval)]
            rows.append([*row, f"{found.p:.4f}"])
        headings = ["F1", "this", "other", "difference", "95% CI", "p"]
        note = f"other: {self.name}; p: two-sided, approximate randomization over sentences"
        return ScoreTable("Comparison with the other prediction", headings, [rows], note)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A report with names, confidence intervals and possibly a second prediction."""

    report: Report
    gold_name: str
    predicted_name: str
    data: Fingerprint  # of the gold corpus
    intervals: Intervals
    resamples: int
    seed: int
    by_characters: bool = False  # the prediction has a different tokenization
    other: OtherPrediction | None = None

    @classmethod
    def from_report(
        cls,
        report: Report,
        names: tuple[str, str],
        resamples: int = 1000,
        seed: int = 0,
        by_characters: bool = False,
    ) -> Evaluation:
        """Compute the intervals of a report; names: of the gold corpus and of the prediction."""
        counts = report.measure_counts
        ranges = Intervals(
            {name: interval(counts[name], resamples, seed) for name in MEASURES},
            {label: interval(rows, resamples, seed) for label, rows in report.type_counts.items()},
        )
        data = fingerprint(_gold_sentences(report))
        return cls(report, *names, data, ranges, resamples, seed, by_characters)

    def compare_with(self, other: Sequence[Sentence], name: str) -> Evaluation:
        """Add a comparison with a second prediction for the same gold sentences."""
        pairs, _ = align(_gold_sentences(self.report), other, (self.gold_name, name))
        report = score_pairs(pairs)
        ours, theirs = self.report.measure_counts, report.measure_counts
        differences = {
            measure: difference(ours[measure], theirs[measure], self.resamples, self.seed)
            for measure in MEASURES
        }
        return replace(self, other=OtherPrediction(name, report, differences))

    @property
    def tables(self) -> list[ScoreTable]:
        """All tables, the widest last."""
        comparison = [] if self.other is None else [self.other.table(self.report)]
        summary = self.report.summary(self.intervals, "Scores")
        return [summary, *comparison, *detail_tables(self.report)]

    @property
    def caption(self) -> str:
        how = "; compared by characters, as the tokens differ" if self.by_characters else ""
        return f"{self.predicted_name} against {self.gold_name} ({self.data}){how}"

    def to_text(self, width: int) -> str:
        """Return all tables as plain text, without the confusion table if it is too wide."""
        *tables, confusion = self.tables
        last = str(confusion)
        if max(map(len, last.splitlines())) > width:
            last = f"{confusion.title}: too wide; see --json or --html"
        caption = self.caption
        if self.report.prediction_scores is not None:
            error = self.report.prediction_scores.calibration_error
            caption += f"\nexpected calibration error of the predictions' scores: {error:.3f}"
        return "\n\n".join([*map(str, tables), last, caption])

    def to_dict(self) -> dict[str, Any]:
        """Return all results as plain values for JSON."""
        ranges = asdict(self.intervals)
        result: dict[str, Any] = {
            "data": {"file": self.gold_name, **self.data.to_dict()},
            "predicted": self.predicted_name,
            "compared_by": "characters" if self.by_characters else "words",
            **self.report.to_dict(),
            "intervals": {
                "level": LEVEL,
                "resamples": self.resamples,
                "seed": self.seed,
                **_rounded(ranges["measures"]),
                "per_type": _rounded(ranges["per_type"]),
            },
        }
        if self.other is not None:
            found = {name: asdict(each) for name, each in self.other.differences.items()}
            result["other"] = {
                "predicted": self.other.name,
                "differences": _rounded(found),
                **self.other.report.to_dict(),
            }
        return result


def _gold_sentences(report: Report) -> list[Sentence]:
    return [pair.sentence for pair in report.pairs if pair.sentence is not None]


def _rounded(values: Any) -> Any:
    """Round every number in nested values to six places."""
    if isinstance(values, dict):
        return {key: _rounded(value) for key, value in values.items()}
    if isinstance(values, tuple):
        return [_rounded(value) for value in values]
    return round(values, 6)
