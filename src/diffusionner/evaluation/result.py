"""A report with everything that the terminal, the JSON file and the HTML page show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from diffusionner.corpus import Sentence
from diffusionner.data.fingerprint import Fingerprint, fingerprint
from diffusionner.evaluation import report as tables
from diffusionner.evaluation.alignment import align
from diffusionner.evaluation.report import Report, ScoreTable
from diffusionner.evaluation.scorer import score_pairs
from diffusionner.evaluation.significance import (
    LEVEL,
    Difference,
    Intervals,
    differences,
    intervals,
)

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class OtherPrediction:
    """A second prediction for the same sentences."""

    name: str
    report: Report
    differences: dict[str, Difference]  # in F1: the first prediction minus this one


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
        data = fingerprint(_gold_sentences(report))
        ranges = intervals(report.sentence_counts, resamples, seed)
        return cls(report, *names, data, ranges, resamples, seed, by_characters)

    def compare_with(self, other: Sequence[Sentence], name: str) -> Evaluation:
        """Add a comparison with a second prediction for the same gold sentences."""
        pairs, _ = align(_gold_sentences(self.report), other, (self.gold_name, name))
        report = score_pairs(pairs)
        found = differences(
            self.report.sentence_counts, report.sentence_counts, self.resamples, self.seed
        )
        return replace(self, other=OtherPrediction(name, report, found))

    @property
    def tables(self) -> list[ScoreTable]:
        report, other = self.report, self.other
        result = [report.summary(self.intervals, "Scores")]
        if other is not None:
            result.append(tables.comparison(report, other.report, other.name, other.differences))
        make = (tables.errors, tables.breakdowns, tables.overlap_by_type, tables.confusion)
        return [*result, *(table(report) for table in make)]

    @property
    def caption(self) -> str:
        how = "; compared by characters, as the tokens differ" if self.by_characters else ""
        return f"{self.predicted_name} against {self.gold_name} ({self.data}){how}"

    def show(self, console: Console) -> None:
        """Print all tables."""
        from rich.measure import Measurement
        from rich.text import Text

        for each in self.tables:
            table = each.to_rich()
            unlimited = console.options.update(max_width=10**6)
            if each.wide and Measurement.get(console, unlimited, table).maximum > console.width:
                console.print(Text(f"{each.title}: too wide to print; see --json or --html"))
            else:
                console.print(table)
        lines = [self.caption]
        if self.report.prediction_scores is not None:
            error = self.report.prediction_scores.calibration_error
            lines.append(f"expected calibration error of the predictions' scores: {error:.3f}")
        for line in lines:
            console.print(Text(line), soft_wrap=True)

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
