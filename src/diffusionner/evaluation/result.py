"""A report with everything that the terminal, the JSON file and the HTML page show."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from diffusionner.data.fingerprint import Fingerprint, fingerprint
from diffusionner.evaluation.report import Report, ScoreTable, detail_tables
from diffusionner.evaluation.significance import LEVEL, Intervals, interval


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A report with names and confidence intervals."""

    report: Report
    gold_name: str
    predicted_name: str
    data: Fingerprint  # of the gold corpus
    intervals: Intervals
    resamples: int
    seed: int
    by_characters: bool = False  # the prediction has a different tokenization

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
            {name: interval(counts[name], resamples, seed) for name in report.resampled},
            {label: interval(rows, resamples, seed) for label, rows in report.type_counts.items()},
        )
        data = fingerprint([pair.sentence for pair in report.pairs if pair.sentence is not None])
        return cls(report, *names, data, ranges, resamples, seed, by_characters)

    @property
    def tables(self) -> list[ScoreTable]:
        """All tables, the widest last."""
        summary = self.report.summary(self.intervals, "Scores")
        return [summary, *self.report.comparison_tables, *detail_tables(self.report)]

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
        other = self.report.other
        if other is not None:
            found = {name: asdict(each) for name, each in other.differences.items()}
            result["other"] = {
                "predicted": other.name,
                "differences": _rounded(found),
                **other.report.to_dict(),
            }
        return result


def _rounded(values: Any) -> Any:
    """Round every number in nested values to six places."""
    if isinstance(values, dict):
        return {key: _rounded(value) for key, value in values.items()}
    if isinstance(values, tuple):
        return [_rounded(value) for value in values]
    return round(values, 6)
