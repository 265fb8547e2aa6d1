"""The measures against seqeval on flat data and against literal definitions on nested data."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import classification_report
from seqeval.scheme import IOB2

from diffusionner.corpus import Discontinuous, Entity, Irregular, Sentence, Span
from diffusionner.evaluation.counts import METRICS, Counts, SliceCounts
from diffusionner.evaluation.matching import Outcome, match_mentions
from diffusionner.evaluation.mentions import Mention, sentence_mentions
from diffusionner.evaluation.report import Pair
from diffusionner.evaluation.scorer import score, score_pairs, score_sentences

QUICK = settings(max_examples=60, deadline=None)
LABELS = "ABC"


# --- seqeval ----------------------------------------------------------------------------------


@st.composite
def flat(draw: st.DrawFn) -> tuple[list[str], list[Span]]:
    """A sentence's IOB2 tags and the entities they say."""
    tags: list[str] = []
    entities = []
    for length, label in draw(
        st.lists(st.tuples(st.integers(1, 4), st.sampled_from("O" + LABELS)), max_size=6)
    ):
        if label == "O":
            tags += ["O"] * length
            continue
        entities.append(Span(len(tags), len(tags) + length, label))
        tags += [f"B-{label}"] + [f"I-{label}"] * (length - 1)
    return tags, entities


@QUICK
@given(st.lists(st.tuples(flat(), flat(), st.booleans()), min_size=1, max_size=8))
def test_agrees_with_seqeval(drawn):
    gold, predicted = [], []
    for one, other, right in drawn:
        other = one if right else other
        size = max(len(one[0]), len(other[0]))
        for side, (tags, entities) in ((gold, one), (predicted, other)):
            side.append((tags + ["O"] * (size - len(tags)), entities))
    report = score([entities for _, entities in gold], [entities for _, entities in predicted])
    if not report.micro.gold or not report.micro.predicted:
        return  # seqeval refuses some of these
    theirs = classification_report(
        [tags for tags, _ in gold], [tags for tags, _ in predicted],
        mode="strict", scheme=IOB2, output_dict=True, zero_division=0,
    )  # fmt: skip
    rows = {"micro avg": report.micro, "macro avg": report.macro, **report.per_type}
    assert theirs.keys() == rows.keys() | {"weighted avg"}
    for name, row in rows.items():
        assert [theirs[name][key] for key in ("precision", "recall", "f1-score")] == pytest.approx(
            [getattr(row, fraction) for fraction in METRICS]
        )
        assert theirs[name]["support"] == (report.micro if name == "macro avg" else row).gold


# --- Literal definitions ----------------------------------------------------------------------

spans = st.builds(
    lambda start, length, label: Span(start, start + length, label),
    st.integers(0, 6), st.integers(1, 4), st.sampled_from(LABELS),
)  # fmt: skip
some_spans = st.lists(spans, max_size=5, unique=True)
sentences = st.lists(st.tuples(some_spans, some_spans, some_spans), min_size=1, max_size=4)


def sides(drawn) -> tuple[list[list[Span]], list[list[Span]]]:
    """Gold and predictions with something in common."""
    return [[*gold, *common] for gold, _, common in drawn], [
        [*p, *common] for _, p, common in drawn
    ]


def overlap(one: Span, other: Span) -> bool:
    return any(word in range(*other[:2]) for word in range(*one[:2]))


def matchings(gold: list, predicted: list):
    """Every way to pair some of the one with some of the other, one to one."""
    if not gold:
        yield []
        return
    for rest in matchings(gold[1:], predicted):
        yield rest
    for partner in predicted:
        left = [p for p in predicted if p != partner]
        for rest in matchings(gold[1:], left):
            yield [(gold[0], partner), *rest]


def most_overlapping(gold: list[Span], predicted: list[Span]) -> int:
    pairs = [(g, p) for g, p in product(gold, predicted) if overlap(g, p) and g.label == p.label]

    def best(free: list[tuple[Span, Span]]) -> int:
        if not free:
            return 0
        (g, p), *rest = free
        return max(best(rest), 1 + best([(a, b) for a, b in rest if a != g and b != p]))

    return best(pairs)


def depth(span: Span, among: list[Span]) -> int:
    return sum(
        other.start <= span.start and span.end <= other.end and other[:2] != span[:2]
        for other in set(among)
    )


def bucket(words: int) -> str:
    return str(words) if words <= 5 else "6-10" if words <= 10 else "11+"


@QUICK
@given(sentences)
def test_measures_and_slices_are_as_defined(drawn):
    gold, predicted = sides(drawn)
    report = score(gold, predicted)
    pairs = [(sorted(set(g)), sorted(set(p))) for g, p in zip(gold, predicted, strict=True)]
    sizes = sum(len(p) for _, p in pairs), sum(len(g) for g, _ in pairs)
    assert report.micro == Counts(sum(s in g for g, p in pairs for s in p), *sizes)
    assert report.overlap == Counts(sum(most_overlapping(g, p) for g, p in pairs), *sizes)
    assert report.overlap.correct >= report.micro.correct
    for label in report.per_type:
        own = [
            ([s for s in g if s.label == label], [s for s in p if s.label == label])
            for g, p in pairs
        ]
        assert report.overlap_per_type[label].correct == sum(most_overlapping(*o) for o in own)

    for found, name in (
        (report.by_depth, lambda span, among: str(depth(span, among))),
        (report.by_length, lambda span, among: bucket(span.end - span.start)),
    ):
        rows = {}
        for g, p in pairs:
            for span, among, others, right, total in (
                *((s, p, g, "correct", "predicted") for s in p),
                *((s, g, p, "found", "gold") for s in g),
            ):
                row = rows.setdefault(name(span, among), Counter())
                row[right] += span in others
                row[total] += 1
        assert found == {key: SliceCounts(**row) for key, row in rows.items()}
        assert sum(row.gold for row in found.values()) == report.micro.gold
        assert sum(row.correct for row in found.values()) == report.micro.correct


few = st.lists(spans, max_size=3, unique=True)


@QUICK
@given(few, few, st.lists(spans, max_size=1))
def test_errors_are_the_best_pairing(gold, predicted, common):
    """Find the best pairing by brute force: most type errors, then boundary errors, then both."""
    gold, predicted = sorted({*gold, *common}), sorted({*predicted, *common})
    report = score([gold], [predicted])
    correct = set(gold) & set(predicted)
    wrong = [g for g in gold if g not in correct], [p for p in predicted if p not in correct]
    best = max(
        (
            sum(g[:2] == p[:2] for g, p in matching),
            sum(g.label == p.label for g, p in matching),
            sum(g[:2] != p[:2] and g.label != p.label for g, p in matching),
        )
        for matching in matchings(*wrong)
        if all(overlap(g, p) for g, p in matching)
    )
    errors = report.errors
    assert (errors[Outcome.TYPE], errors[Outcome.BOUNDARY], errors[Outcome.BOTH]) == best
    assert errors[Outcome.CORRECT] == len(correct)


@QUICK
@given(sentences, st.randoms(use_true_random=False))
def test_errors_and_confusion_add_up_in_any_order(drawn, random):
    gold, predicted = sides(drawn)
    report = score(gold, predicted)
    errors = report.errors
    paired = (
        errors[Outcome.CORRECT]
        + errors[Outcome.TYPE]
        + errors[Outcome.BOUNDARY]
        + errors[Outcome.BOTH]
    )
    assert paired + errors[Outcome.MISSED] == report.micro.gold
    assert paired + errors[Outcome.SPURIOUS] == report.micro.predicted
    assert errors[Outcome.CORRECT] == report.micro.correct

    for label, counts in report.per_type.items():
        row = sum(n for (g, _), n in report.confusion.items() if g == label)
        column = sum(n for (_, p), n in report.confusion.items() if p == label)
        assert (row, column) == (counts.gold, counts.predicted)
        assert report.confusion.get((label, label), 0) == counts.correct
    kept = {cell: n for cell, n in report.confusion.items() if None not in cell}
    assert sum(kept.values()) == errors[Outcome.CORRECT] + errors[Outcome.TYPE]
    assert (None, None) not in report.confusion

    shuffled = list(zip(gold, predicted, strict=True))
    random.shuffle(shuffled)
    for pair in shuffled:
        for side in pair:
            random.shuffle(side)
    assert score(*zip(*shuffled, strict=True)) == report


def test_errors_by_hand():
    gold = [Span(0, 2, "A"), Span(4, 6, "A"), Span(8, 10, "A"), Span(12, 13, "A")]
    predicted = [Span(0, 2, "B"), Span(4, 7, "A"), Span(9, 11, "B"), Span(20, 21, "C")]
    report = score([gold], [predicted])
    assert set(report.errors.items()) == {(kind, 1) for kind in Outcome} - {
        (Outcome.CORRECT, 1)
    } | {(Outcome.CORRECT, 0)}
    assert report.confusion == {
        **{("A", "B"): 1, ("A", None): 3},
        **{(None, "A"): 1, (None, "B"): 1, (None, "C"): 1},
    }
    found = report.to_dict()["confusion"]
    assert found["labels"] == ["A", "B", "C"]
    assert found["counts"] == [[0, 1, 0, 3], [0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]]


def test_a_better_overlap_is_the_partner():
    gold = [Mention(((0, 10),), "A", 10)]
    near, far = Mention(((1, 10),), "A", 9), Mention(((0, 1),), "A", 1)
    found = {(j.outcome, j.predicted) for j in match_mentions(gold, [far, near])}
    assert found == {(Outcome.BOUNDARY, near), (Outcome.SPURIOUS, far)}


def test_a_label_called_none_is_a_label():
    report = score([[Span(0, 1, "none")]], [[Span(0, 1, "none"), Span(1, 2, "none")]])
    assert report.confusion == {("none", "none"): 1, (None, "none"): 1}
    assert report.to_dict()["confusion"] == {"labels": ["none"], "counts": [[1, 0], [1, 0]]}


def test_a_crowded_sentence_is_no_trouble():
    gold = [Span(i, i + 3, "A") for i in range(0, 9000, 3)]
    predicted = [Span(i, i + 2, "A") for i in range(0, 9000, 3)]
    report = score([gold], [predicted])
    assert report.overlap.correct == report.errors[Outcome.BOUNDARY] == 3000


# --- Sentences: their length, and annotations that are no run of words -------------------------


def test_by_sentence_length():
    gold = [
        Sentence(["w"] * size, [Span(0, 1, "A"), Span(1, 2, "A")]) for size in (10, 11, 50, 51, 90)
    ]
    found = [[Span(0, 1, "A")], [], [Span(0, 1, "A")], [Span(0, 1, "B")], [Span(1, 2, "A")]]
    report = score_sentences(gold, found)
    assert report.by_sentence_length == {
        "1-10": SliceCounts(1, 1, 2, 1),
        "11-20": SliceCounts(0, 0, 2, 0),
        "41-50": SliceCounts(1, 1, 2, 1),
        "51+": SliceCounts(1, 2, 4, 1),
    }
    assert "by_sentence_length" in report.to_dict()
    assert "by_sentence_length" not in score([[]], [[]]).to_dict()


def sentence(text: str, *irregular: Irregular, entities: tuple[Span, ...] = ()) -> Sentence:
    return Sentence(text.split(), list(entities), irregular=list(irregular))


TEXT = "left and right lung cancers"
IN_PARTS = Irregular(((0, 4), (15, 27)), "DIS")
CUT = Irregular(((15, 17),), "X")


@pytest.mark.parametrize(
    ("predicted", "correct"),
    [
        ([IN_PARTS, CUT], 2),
        ([IN_PARTS._replace(label="X"), CUT._replace(label="DIS")], 0),
        ([Irregular(((0, 4), (15, 26)), "DIS"), Irregular(((15, 18),), "X")], 0),
        ([Irregular(((0, 4),), "DIS"), Irregular(((15, 27),), "DIS")], 0),
        ([], 0),
    ],
)
def test_irregular_annotations_count(predicted, correct):
    outer = Span(2, 5, "DIS")
    gold = sentence(TEXT, IN_PARTS, CUT, entities=(outer,))
    other = sentence(TEXT, *predicted, entities=(outer,))
    report = score_pairs([Pair(sentence_mentions(gold), sentence_mentions(other), gold)])
    cut = [p for p in predicted if any(end not in (4, 27) for _, end in p.parts)]
    parts = [p for p in predicted if len(p.parts) > 1]
    assert report.irregular == Counts(CUT in predicted, len(cut), 1)
    assert report.discontinuous == Counts(IN_PARTS in predicted, len(parts), 1)
    assert report.micro == Counts(correct + 1, len(predicted) + 1, 3)
    assert report.to_dict()["irregular"]["gold"] == 1


def test_irregular_annotations_nest_and_overlap():
    gold = sentence(TEXT, IN_PARTS, CUT, entities=(Span(0, 5, "ALL"),))
    found = sentence(TEXT, entities=(Span(0, 1, "DIS"), Span(1, 3, "DIS"), Span(3, 4, "X")))
    report = score_pairs([Pair(sentence_mentions(gold), sentence_mentions(found), gold)])
    # CUT lies in the part "lung cancers" and in all; between the parts IN_PARTS is not.
    assert {key: row.gold for key, row in report.by_depth.items()} == {"0": 1, "1": 1, "2": 1}
    assert report.overlap == Counts(2, 3, 3)
    assert report.errors[Outcome.BOUNDARY] == 2
    assert report.by_length["3"].gold == 1  # the words it touches


def test_irregular_annotations_are_the_same_in_any_text():
    text = "  left\n\nand  right lung cancers"
    offsets = [(2, 6), (8, 11), (13, 18), (19, 23), (24, 31)]
    parts = Irregular(((2, 6), (19, 31)), "DIS"), Irregular(((19, 21),), "X")
    placed = Sentence(TEXT.split(), text=text, offsets=offsets, irregular=list(parts))
    assert sentence_mentions(placed) == sentence_mentions(sentence(TEXT, IN_PARTS, CUT))
    beyond = [Irregular(((1, 6),), "A"), Irregular(((2, 7),), "A"), Irregular(((2, 8),), "A")]
    placed.irregular = [*beyond, Irregular(((2, 6),), "A")]
    assert len(sentence_mentions(placed)) == 3  # with white space before, after, and without
    assert sum(mention.aligned for mention in sentence_mentions(placed)) == 1


# --- Discontinuous entities ---------------------------------------------------------------------

PAIN = Discontinuous(((0, 1), (3, 4)), "ADR")
SYMPTOMS = "Muscle pain and stiffness".split()


def test_discontinuous_entities_are_right_if_all_fragments_are():
    gold = [Sentence(SYMPTOMS, [Span(0, 2, "ADR")], discontinuous=[PAIN])] * 4
    found = [
        [Span(0, 2, "ADR"), Entity(0, 4, "ADR", 0.9, gaps=((1, 3),))],
        [Span(0, 2, "ADR"), Entity(0, 4, "ADR", 0.9, gaps=((1, 2),))],
        [Span(0, 4, "ADR")],
        [Discontinuous(PAIN.fragments, "X")],
    ]
    report = score_sentences(gold, found)
    assert report.micro == Counts(3, 6, 8)
    assert report.discontinuous == Counts(1, 3, 4)
    assert report.boundaries == Counts(4, 6, 8)
    assert report.irregular == Counts(0, 0, 0)
    # Of the words 0, 1 and 3 are found: all, all and "and", likewise, none of the type.
    assert report.words == Counts(9, 13, 12)
    assert report == score_pairs(
        [
            Pair(sentence_mentions(one), sentence_mentions(to_sentence(other)), one)
            for one, other in zip(gold, found, strict=True)
        ]
    )
    shown = str(report)
    assert "discontinuous" in shown
    assert "misaligned" not in shown
    assert report.to_dict()["discontinuous"]["correct"] == 1
    assert "irregular" not in report.to_dict()


def to_sentence(entities: list[Span | Discontinuous | Entity]) -> Sentence:
    result = Sentence(SYMPTOMS)
    for one in entities:
        if len(one.fragments) > 1:
            result.discontinuous.append(Discontinuous(one.fragments, one.label))
        else:
            result.entities.append(Span(one.start, one.end, one.label))
    return result


def test_contiguous_entities_have_no_row_for_discontinuous_ones():
    report = score([[Span(0, 2, "A")]], [[Span(0, 1, "A"), Span(1, 2, "B")]])
    assert report.words == Counts(1, 2, 2)
    assert report.to_dict()["words"]["f1"] == 0.5
    assert not {"discontinuous", "irregular"} & report.to_dict().keys()
    assert not any(name in str(report) for name in ("words", "discontinuous", "misaligned"))


def test_two_predictions_are_compared_on_discontinuous_entities():
    gold = [[PAIN]] * 20
    ours, theirs = score(gold, gold), score(gold, [[]] * 20)
    compared = ours.compare_with(theirs, "nothing", resamples=50)
    assert compared.other is not None
    assert compared.other.differences["discontinuous"].f1 == 1
    assert compared.other.differences["words"].f1 == 1


@st.composite
def fragmented(draw: st.DrawFn) -> Discontinuous | Span:
    edges = sorted(draw(st.sets(st.integers(0, 8), min_size=2, max_size=6)))
    edges = edges[: len(edges) // 2 * 2]
    fragments = tuple(zip(edges[::2], edges[1::2], strict=True))
    label = draw(st.sampled_from(LABELS))
    return Discontinuous(fragments, label) if fragments[1:] else Span(*fragments[0], label)


some_fragmented = st.lists(fragmented(), max_size=4, unique=True)


@QUICK
@given(st.lists(st.tuples(some_fragmented, some_fragmented, some_fragmented), max_size=4))
def test_any_fragments(drawn):
    """The strict measure and that of words against literal definitions."""
    gold, predicted = ([[*each[side], *each[2]] for each in drawn] for side in (0, 1))
    both = list(zip(gold, predicted, strict=True))

    def words(entities):
        return {(w, e.label) for e in entities for f in e.fragments for w in range(*f)}

    strict = sum(len({*g} & {*p}) for g, p in both)
    found = sum(len(words(g) & words(p)) for g, p in both)
    sentences = [Sentence(["ab"] * 9) for _ in gold]
    for sentence, entities in zip(sentences, gold, strict=True):
        sentence.entities = [e for e in entities if isinstance(e, Span)]
        sentence.discontinuous = [e for e in entities if isinstance(e, Discontinuous)]
    for report in (score(gold, predicted), score_sentences(sentences, predicted)):
        assert report.micro.correct == strict
        assert report.words == Counts(
            found, sum(len(words(p)) for p in predicted), sum(len(words(g)) for g in gold)
        )
