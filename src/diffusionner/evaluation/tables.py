"""Scores as grids of text: one source for the tables of the terminal and of the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diffusionner.evaluation.counts import FRACTIONS, Average, Row, SliceCounts
from diffusionner.evaluation.matching import Kind
from diffusionner.evaluation.scorer import Report
from diffusionner.evaluation.significance import Intervals, Other

if TYPE_CHECKING:
    from rich.table import Table

KIND_NAMES = {
    Kind.CORRECT: "correct",
    Kind.TYPE: "wrong type",
    Kind.BOUNDARY: "wrong boundary",
    Kind.BOTH: "both wrong",
    Kind.MISSED: "missed",
    Kind.SPURIOUS: "spurious",
}
_MEANINGS = {
    Kind.CORRECT: "boundaries and type right",
    Kind.TYPE: "only boundaries right",
    Kind.BOUNDARY: "type right, overlapping",
    Kind.BOTH: "only overlapping",
    Kind.MISSED: "gold without partner",
    Kind.SPURIOUS: "predicted without partner",
}


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: the first column names the rows, the others are numbers unless `prose`."""

    title: str
    headings: list[str]
    sections: list[list[list[str]]]
    note: str = ""
    prose: bool = False  # the last column is text
    wide: bool = False  # a column a type: of no use when squeezed

    def to_rich(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        # Text, because a label may hold brackets, which rich would take for markup.
        table = Table(title=Text(self.title) if self.title else None, title_justify="left")
        last = len(self.headings) - 1
        for number, heading in enumerate(self.headings):
            text = number == 0 or (self.prose and number == last)
            table.add_column(Text(heading), justify="left" if text else "right")
        for section in self.sections:
            for row in section:
                table.add_row(*map(Text, row))
            table.add_section()
        if self.note:
            table.caption, table.caption_justify = Text(self.note), "left"
        return table


def summary(report: Report, intervals: Intervals | None = None, title: str = "") -> Grid:
    """Percentages, and as support the number of gold entities; below, the types one by one."""

    def cells(name: str, row: Row, key: str = "", label: str | None = None) -> list[str]:
        between = []
        if intervals is not None:
            found = intervals.per_type.get(label) if label else intervals.measures.get(key)
            between = ["" if found is None else _range(found.f1)]
        support = "" if isinstance(row, Average) else str(row.gold)
        return [name, *_percentages(row), *between, support]

    rows = [
        cells("strict, micro", report.micro, "micro"),
        cells("strict, macro", report.macro),
        cells("overlap, micro", report.overlap, "overlap"),
        cells("overlap, macro", report.overlap_macro),
        cells("boundaries alone", report.boundaries, "boundaries"),
        cells("types alone", report.types),
        cells("nested entities", report.nested),
    ]
    if report.irregular.gold or report.irregular.predicted:
        rows.append(cells("in parts or cutting words", report.irregular))
    types = [cells(label, row, label=label) for label, row in report.per_type.items()]
    middle = [] if intervals is None else ["95% of F1"]
    return Grid(title, ["", "precision", "recall", "F1", *middle, "support"], [rows, types])


def overlap_by_type(report: Report) -> Grid:
    rows = [
        [label, *_percentages(row), str(row.gold)] for label, row in report.overlap_per_type.items()
    ]
    return Grid("Overlap, by type", ["", "precision", "recall", "F1", "support"], [rows])


def breakdowns(report: Report) -> Grid:
    def rows(parts: Mapping[str, SliceCounts], name: str) -> list[list[str]]:
        return [
            [name.format(key), *_percentages(row)]
            + [str(count) for count in (row.gold, row.found, row.predicted)]
            for key, row in parts.items()
        ]

    return Grid(
        "Strict scores by depth and length",
        ["", "precision", "recall", "F1", "gold", "found", "predicted"],
        [
            rows(report.by_depth, "depth {}"),
            rows(report.by_length, "words {}"),
            rows(report.by_sentence_length, "sentence {}"),
        ],
        note="depth: how many entities of the same side contain it; sentence: its words",
    )


def errors(report: Report) -> Grid:
    def share(count: int, whole: int) -> str:
        return f"{100 * count / whole:.2f}%" if whole else ""

    rows = []
    for kind, count in report.errors.items():
        of_gold = "" if kind is Kind.SPURIOUS else share(count, report.micro.gold)
        of_predicted = "" if kind is Kind.MISSED else share(count, report.micro.predicted)
        rows.append([KIND_NAMES[kind], str(count), of_gold, of_predicted, _MEANINGS[kind]])
    return Grid(
        "Errors",
        ["", "count", "of gold", "of predicted", "meaning"],
        [rows],
        note="all but spurious add up to gold, all but missed to predicted",
        prose=True,
    )


def confusion(report: Report) -> Grid:
    names: list[str | None] = [*report.per_type, None]
    rows = [
        [name or "none", *(str(report.confusion.get((name, other), "·")) for other in names)]
        for name in names
    ]
    return Grid(
        "Types of entities with the same boundaries",
        ["gold ↓ predicted →", *(name or "none" for name in names)],
        [rows[:-1], rows[-1:]],
        note="none: the other side has no entity with these boundaries",
        wide=True,
    )


def comparison(report: Report, other: Other) -> Grid:
    names = {"micro": "strict", "boundaries": "boundaries alone"}
    rows = []
    for measure, found in other.differences.items():
        first, second = (100 * getattr(each, measure).f1 for each in (report, other.report))
        numbers = f"{first:.2f}", f"{second:.2f}", f"{100 * found.f1:+.2f}"
        between = _range(found.interval)
        rows.append([names.get(measure, measure), *numbers, between, f"{found.p:.4f}"])
    return Grid(
        "Against the other prediction",
        ["F1", "this", "other", "difference", "95% of it", "p"],
        [rows],
        note=f"other: {other.name}; p: two-sided, approximate randomisation over sentences",
    )


def _percentages(row: Row) -> list[str]:
    return [f"{100 * getattr(row, fraction):.2f}" for fraction in FRACTIONS]


def _range(ends: tuple[float, float]) -> str:
    return f"{100 * ends[0]:.2f} to {100 * ends[1]:.2f}"
