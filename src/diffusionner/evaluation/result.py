"""One prediction held against the gold: what the terminal, JSON and the page show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

from diffusionner.corpus import Sentence
from diffusionner.data.fingerprint import Fingerprint, fingerprint
from diffusionner.evaluation import tables
from diffusionner.evaluation.alignment import align
from diffusionner.evaluation.scorer import Pair, Report, compare
from diffusionner.evaluation.significance import (
    LEVEL,
    Intervals,
    Other,
    differences,
    intervals,
)


@dataclass(frozen=True, slots=True)
class Resampling:
    """How often sentences are drawn anew for intervals and tests."""

    resamples: int = 1000
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Evaluation:
    gold_name: str
    predicted_name: str
    data: Fingerprint  # of the gold
    pairs: list[Pair]
    report: Report
    by_characters: bool  # the words of the prediction are others than the gold's
    resampling: Resampling
    intervals: Intervals
    other: Other | None = None

    @property
    def grids(self) -> list[tables.Grid]:
        found = [
            tables.summary(self.report, self.intervals, "Scores"),
            tables.errors(self.report),
            tables.breakdowns(self.report),
            tables.overlap_by_type(self.report),
            tables.confusion(self.report),
        ]
        if self.other is not None:
            found.insert(1, tables.comparison(self.report, self.other))
        return found

    @property
    def caption(self) -> str:
        """What was scored, and the fingerprint of the gold."""
        how = "; compared by characters, the words differ" if self.by_characters else ""
        return f"{self.predicted_name} against {self.gold_name} ({self.data}){how}"

    def show(self, console: Console) -> None:
        """Print all tables."""
        for grid in self.grids:
            table = grid.to_rich()
            unlimited = console.options.update(max_width=10**6)
            if grid.wide and Measurement.get(console, unlimited, table).maximum > console.width:
                console.print(Text(f"{grid.title}: too wide for here; see --json or --html"))
            else:
                console.print(table)
        console.print(Text(self.caption), soft_wrap=True)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        ranges = asdict(self.intervals)
        result: dict[str, Any] = {
            "data": {"file": self.gold_name, **self.data.to_dict()},
            "predicted": self.predicted_name,
            "compared_by": "characters" if self.by_characters else "words",
            **self.report.to_dict(),
            "intervals": {
                "level": LEVEL,
                **asdict(self.resampling),
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


def evaluate_pairs(
    pairs: list[Pair],
    names: tuple[str, str],
    resampling: Resampling,
    by_characters: bool = False,
) -> Evaluation:
    """Score pairs that have their sentences; names are the gold's and the prediction's."""
    report = compare(pairs)
    return Evaluation(
        *names,
        data=fingerprint(pair.sentence for pair in pairs if pair.sentence is not None),
        pairs=pairs,
        report=report,
        by_characters=by_characters,
        resampling=resampling,
        intervals=intervals(report.per_sentence, **asdict(resampling)),
    )


def evaluate_sentences(
    gold: Sequence[Sentence],
    predicted: Sequence[Sentence],
    names: tuple[str, str],
    resampling: Resampling,
) -> Evaluation:
    """Score any system's output; DataError if it is not for the gold's sentences."""
    pairs, by_characters = align(gold, predicted, names)
    return evaluate_pairs(pairs, names, resampling, by_characters)


def against(evaluation: Evaluation, other: Sequence[Sentence], name: str) -> Evaluation:
    """The evaluation with a comparison to a second prediction for the same gold."""
    gold = [pair.sentence for pair in evaluation.pairs if pair.sentence is not None]
    pairs, _ = align(gold, other, (evaluation.gold_name, name))
    report = compare(pairs)
    found = differences(
        evaluation.report.per_sentence, report.per_sentence, **asdict(evaluation.resampling)
    )
    return replace(evaluation, other=Other(name, report, found))


def _rounded(values: Any) -> Any:
    """Every number in nested values to six places."""
    if isinstance(values, dict):
        return {key: _rounded(value) for key, value in values.items()}
    if isinstance(values, tuple):
        return [_rounded(value) for value in values]
    return round(values, 6)
