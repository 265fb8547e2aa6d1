"""Layout of the results on corpora with discontinuous entities."""

from __future__ import annotations

from reproduce import published
from reproduce.corpora import CORPORA, GAPPED
from reproduce.grids import Cell, Grid, Row, Unit
from reproduce.pages import DEFAULT, Page, TableRecords, non_empty, percent
from reproduce.tables import CONTIGUOUS, DEV, TEST, Point, Table, Variant

COLUMNS: tuple[tuple[str, Unit], ...] = (
    ("precision", "percent"),
    ("recall", "percent"),
    ("F1", "percent"),
    ("F1, contiguous", "percent"),
    ("F1, discontinuous", "percent"),
    ("dev F1", "percent"),
)


def discontinuous(table: Table, records: TableRecords) -> Page:
    grids = [_one_corpus(records, corpus) for corpus in GAPPED]
    text = [
        "Strict precision, recall and F1 on test over all entities, and F1 over contiguous and "
        "discontinuous ones apart, mean ± standard deviation over the seeds. An entity is right if "
        "its type and all its fragments are. The epoch and the thresholds are chosen on dev.",
        "The second row of a corpus is a model that was trained without discontinuous entities: "
        "what finding them costs the others.",
        "Published rows have larger encoders, and biomedical ones where that is said.",
    ]
    return Page(text, [grid for grid in grids if grid.rows])


def _one_corpus(records: TableRecords, corpus: str) -> Grid:
    rows = [
        Row(title, _cells(records, corpus, variant))
        for title, variant in (("DiffusionNER", DEFAULT), (CONTIGUOUS.title, CONTIGUOUS))
    ]
    for title, f1 in published.DISCONTINUOUS.get(corpus, {}).items():
        unknown = Cell()
        rows.append(Row(title, (unknown, unknown, Cell.printed(f1), unknown, unknown, unknown)))
    return Grid(CORPORA[corpus].title, "method", COLUMNS, non_empty(rows))


def _cells(records: TableRecords, corpus: str, variant: Variant) -> tuple[Cell, ...]:
    names = ("precision", "recall", "f1")
    whole = (records.f1(corpus, TEST, variant=variant, name=name) for name in names)
    parts = _apart(records, corpus, variant, TEST)
    return *whole, *parts, records.f1(corpus, DEV, variant=variant)


def _apart(records: TableRecords, corpus: str, variant: Variant, point: Point) -> tuple[Cell, Cell]:
    """Return F1 over contiguous and over discontinuous entities."""
    runs = records.runs(corpus, variant=variant, points=[point])
    found = [parts for run in runs if (parts := run.apart(point)) is not None]
    return percent(one.f1 for one, _ in found), percent(other.f1 for _, other in found)
