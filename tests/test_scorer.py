"""Scores against examples worked out by hand, and against a slow, literal scorer."""

from __future__ import annotations

import json
import random
import re

import pytest

from diffusionner.corpus import Entity, Span
from diffusionner.evaluation.counts import Average, Counts, SliceCounts
from diffusionner.evaluation.report import Report
from diffusionner.evaluation.scorer import score


def spans(*triples: tuple[int, int, str]) -> list[Span]:
    return [Span(*triple) for triple in triples]


@pytest.fixture
def report() -> Report:
    """Two flat sentences: one right, one with a wrong label, one missed, one made up."""
    gold = [spans((0, 2, "PER"), (3, 4, "LOC")), spans((1, 2, "ORG"))]
    predicted = [spans((0, 2, "PER"), (3, 4, "ORG")), spans((5, 6, "ORG"))]
    return score(gold, predicted)


def test_flat_example(report):
    assert report.sentences == 2
    assert report.micro == Counts(correct=1, predicted=3, gold=3)
    assert report.micro.precision == report.micro.recall == pytest.approx(1 / 3)
    assert report.micro.f1 == pytest.approx(1 / 3)
    assert report.boundaries == Counts(2, 3, 3)
    # Sentence 1 has PER on both sides; sentence 2 has ORG on both, at different places.
    assert report.types == Counts(2, 3, 3)
    assert report.per_type == {
        "LOC": Counts(0, 0, 1),
        "ORG": Counts(0, 2, 1),
        "PER": Counts(1, 1, 1),
    }
    assert list(report.per_type) == ["LOC", "ORG", "PER"]
    assert report.macro == Average(pytest.approx(1 / 3), pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert report.nested == SliceCounts(0, 0, 0, 0)


def test_fractions_differ_where_they_should():
    report = score([spans((0, 1, "A"), (2, 3, "A"), (4, 5, "B"))], [spans((0, 1, "A"))])
    assert (report.micro.precision, report.micro.recall) == (1.0, pytest.approx(1 / 3))
    assert report.micro.f1 == pytest.approx(0.5)
    # A: 1, 1/2, 2/3; B: 0, 0, 0.
    assert report.macro == Average(0.5, 0.25, pytest.approx(1 / 3))


def test_types_that_are_only_predicted_weigh_on_the_macro_average():
    report = score([spans((0, 1, "A"))], [spans((0, 1, "A"), (1, 2, "B"))])
    assert report.per_type == {"A": Counts(1, 1, 1), "B": Counts(0, 1, 0)}
    assert report.macro == Average(0.5, 0.5, 0.5)


def test_nested_example():
    outer, inner, alone = Span(0, 5, "ORG"), Span(2, 4, "LOC"), Span(7, 8, "PER")
    crossing = Span(4, 7, "X")
    # Gold: outer and inner nest. Predictions: inner nests in a wrong (1, 4).
    report = score([[outer, inner, alone]], [[inner, Span(1, 4, "LOC"), alone, crossing]])
    assert report.micro == Counts(2, 4, 3)
    assert report.nested == SliceCounts(correct=1, predicted=2, found=1, gold=2)
    assert report.nested.precision == report.nested.recall == report.nested.f1 == 0.5


def test_nested_sides_count_separately():
    outer, inner = Span(0, 5, "ORG"), Span(2, 4, "LOC")
    # The outer one alone is found: no prediction nests, yet half the nested gold is found.
    nested = score([[outer, inner]], [[outer]]).nested
    assert nested == SliceCounts(0, 0, 2, 1)
    assert (nested.precision, nested.recall, nested.f1) == (0.0, 0.5, 0.0)
    # Both predicted, one of them gold, nothing nested in gold.
    nested = score([[outer]], [[outer, inner]]).nested
    assert nested == SliceCounts(1, 2, 0, 0)
    assert (nested.precision, nested.recall, nested.f1) == (0.5, 0.0, 0.0)


def test_crossing_and_touching_entities_do_not_nest():
    crossing = spans((0, 3, "A"), (2, 5, "A"), (5, 6, "A"))
    assert score([crossing], [crossing]).nested == SliceCounts(0, 0, 0, 0)


@pytest.mark.parametrize("other", [(0, 3, "B"), (0, 2, "A"), (1, 3, "A"), (1, 2, "A"), (0, 9, "A")])
def test_shared_edges_nest(other):
    both = spans((0, 3, "A"), other)
    assert score([both], [both]).nested == SliceCounts(2, 2, 2, 2)


def test_one_span_with_two_labels():
    report = score([spans((0, 2, "A"), (0, 2, "B"))], [spans((0, 2, "B"))])
    assert report.micro == Counts(1, 1, 2)
    assert report.boundaries == Counts(1, 1, 1)
    assert report.types == Counts(1, 1, 2)
    assert report.nested == SliceCounts(0, 0, 2, 1)


def test_types_are_a_multiset():
    gold = spans((0, 1, "A"), (1, 2, "A"), (2, 3, "B"))
    predicted = spans((5, 6, "A"), (6, 7, "A"), (7, 8, "A"))
    assert score([gold], [predicted]).types == Counts(2, 3, 3)


def test_duplicates_count_once():
    gold, predicted = spans((0, 1, "A"), (0, 1, "A")), spans((0, 1, "A"), (0, 1, "A"), (1, 2, "A"))
    report = score([gold], [predicted])
    assert report.micro == report.boundaries == report.types == Counts(1, 2, 1)
    assert report.nested == SliceCounts(0, 0, 0, 0)


def test_scores_and_texts_of_entities_do_not_matter():
    predicted = [Entity(0, 1, "A", 0.9, "x"), Entity(0, 1, "A", 0.8, "x")]
    assert score([spans((0, 1, "A"))], [predicted]).micro == Counts(1, 1, 1)


def test_the_same_entity_in_another_sentence_is_wrong():
    assert score([spans((0, 1, "A")), []], [[], spans((0, 1, "A"))]).micro == Counts(0, 1, 1)


@pytest.mark.parametrize(
    ("gold", "predicted", "counts"),
    [
        ([[]], [spans((0, 2, "A"), (0, 1, "A"))], Counts(0, 2, 0)),
        ([spans((0, 2, "A"), (0, 1, "A"))], [[]], Counts(0, 0, 2)),
        ([[], []], [[], []], Counts(0, 0, 0)),
        ([], [], Counts(0, 0, 0)),
    ],
)
def test_nothing_on_one_side_or_both(gold, predicted, counts):
    report = score(gold, predicted)
    assert report.micro == report.boundaries == report.types == report.overlap == counts
    rows = (report.micro, report.macro, report.boundaries, report.types, report.nested)
    for row in (*rows, report.overlap, report.overlap_macro):
        assert (row.precision, row.recall, row.f1) == (0.0, 0.0, 0.0)
    assert (report.nested.predicted, report.nested.gold) == (counts.predicted, counts.gold)


def test_length_mismatch():
    with pytest.raises(ValueError, match="2 gold sentences but 1 predicted"):
        score([[], []], [[]])


def test_to_dict_survives_json(report):
    found = json.loads(json.dumps(report.to_dict()))
    third = {"precision": 0.333333, "recall": 0.333333, "f1": 0.333333}
    assert found["sentences"] == 2
    assert found["micro"] == third | {"correct": 1, "predicted": 3, "gold": 3}
    assert found["macro"] == third
    assert found["boundaries"]["f1"] == 0.666667
    assert found["nested"] == {
        **{"precision": 0.0, "recall": 0.0, "f1": 0.0},
        **{"correct": 0, "predicted": 0, "found": 0, "gold": 0},
    }
    assert list(found["per_type"]) == ["LOC", "ORG", "PER"]
    assert found["types"]["correct"] == 2


def test_printed_report():
    gold = [spans((0, 2, "[red]"), (0, 1, "LOC")), spans((0, 1, "LOC"), (1, 2, "LOC"))]
    predicted = [spans((0, 2, "[red]"), (0, 1, "LOC")), spans((0, 1, "LOC"))]
    lines = str(score(gold, predicted)).splitlines()[1:]
    rows = [re.split(r"\s\s+", line) for line in lines if line]
    assert rows == [
        ["strict, micro", "100.00", "75.00", "85.71", "4"],
        ["strict, macro", "100.00", "83.33", "90.00"],
        ["overlap, micro", "100.00", "75.00", "85.71", "4"],
        ["overlap, macro", "100.00", "83.33", "90.00"],
        ["boundaries only", "100.00", "75.00", "85.71", "4"],
        ["types only", "100.00", "75.00", "85.71", "4"],
        ["nested entities", "100.00", "100.00", "100.00", "2"],
        ["LOC", "100.00", "66.67", "80.00", "3"],
        ["[red]", "100.00", "100.00", "100.00", "1"],
    ]


def slow_nested(entities: list[Span]) -> list[Span]:
    """The definition, word for word, over all pairs."""

    def strictly_contains(a: Span, b: Span) -> bool:
        return a.start <= b.start and b.end <= a.end and (a.start, a.end) != (b.start, b.end)

    return [
        a
        for a in entities
        if any(
            a != b
            and (
                strictly_contains(a, b)
                or strictly_contains(b, a)
                or (a.start, a.end) == (b.start, b.end)
            )
            for b in entities
        )
    ]


def slow_overlap(a: list, b: list) -> int:
    """The size of the multiset intersection, by crossing off."""
    left = list(b)
    count = 0
    for item in a:
        if item in left:
            left.remove(item)
            count += 1
    return count


def without_repeats(items: list) -> list:
    return [item for index, item in enumerate(items) if item not in items[:index]]


def test_agrees_with_a_slow_scorer():
    rng = random.Random(7)

    def sentence() -> list[Span]:
        starts = [rng.randrange(6) for _ in range(rng.randrange(8))]
        return [Span(s, s + rng.randint(1, 4), rng.choice("ABC")) for s in starts]

    gold = [sentence() for _ in range(400)]
    predicted = [
        [span for span in spans_ if rng.random() < 0.6] + sentence()[: rng.randrange(4)]
        for spans_ in gold
    ]
    report = score(gold, predicted)

    pairs = [(without_repeats(g), without_repeats(p)) for g, p in zip(gold, predicted, strict=True)]
    all_predicted, all_gold = sum(len(p) for _, p in pairs), sum(len(g) for g, _ in pairs)
    correct = sum(slow_overlap(g, p) for g, p in pairs)
    assert report.micro == Counts(correct, all_predicted, all_gold)
    bounds = [
        (without_repeats([s[:2] for s in g]), without_repeats([s[:2] for s in p])) for g, p in pairs
    ]
    assert report.boundaries == Counts(
        sum(slow_overlap(g, p) for g, p in bounds),
        sum(len(p) for _, p in bounds),
        sum(len(g) for g, _ in bounds),
    )
    labels = [([s.label for s in g], [s.label for s in p]) for g, p in pairs]
    types_correct = sum(slow_overlap(g, p) for g, p in labels)
    assert report.types == Counts(types_correct, all_predicted, all_gold)
    assert report.nested == SliceCounts(
        correct=sum(slow_overlap(slow_nested(p), g) for g, p in pairs),
        predicted=sum(len(slow_nested(p)) for _, p in pairs),
        found=sum(slow_overlap(slow_nested(g), p) for g, p in pairs),
        gold=sum(len(slow_nested(g)) for g, _ in pairs),
    )
    for label in "ABC":
        own = [
            ([s for s in g if s.label == label], [s for s in p if s.label == label])
            for g, p in pairs
        ]
        assert report.per_type[label] == Counts(
            sum(slow_overlap(g, p) for g, p in own),
            sum(len(p) for _, p in own),
            sum(len(g) for g, _ in own),
        )
    assert 0 < report.nested.correct < report.nested.predicted
    assert 0 < report.nested.found < report.nested.gold
