"""Alignment of two files: by words, by texts, or a clear message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffusionner import formats
from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError
from diffusionner.evaluation.alignment import align
from diffusionner.evaluation.counts import Counts
from diffusionner.evaluation.scorer import score_pairs
from diffusionner.formats.documents import Annotation, TextDocument, TextOptions, to_sentences

NAMES = ("gold.x", "pred.x")


def sentence(words: str, line: int = 0, **more) -> Sentence:
    return Sentence(words.split(), where=f"f:{line}" if line else "", **more)


def counts(gold: list[Sentence], predicted: list[Sentence]) -> tuple[Counts, bool]:
    pairs, by_characters = align(gold, predicted, NAMES)
    return score_pairs(pairs).micro, by_characters


def document(text: str, *entities: tuple[int, int, str], words: str = "rules") -> list[Sentence]:
    annotations = [Annotation(((start, end),), label) for start, end, label in entities]
    return to_sentences(TextDocument(text, annotations, where="t:1"), TextOptions(words))


def test_the_same_words():
    """Documents and texts need not be the same."""
    gold = [sentence("Ada met Bob", entities=[Span(0, 1, "PER")], doc="d"), sentence("Rome")]
    found = [*document("Ada met  Bob", (0, 3, "PER"), (9, 12, "PER")), sentence("Rome")]
    assert counts(gold, found) == (Counts(1, 2, 1), False)


@pytest.mark.parametrize("words", ["rules", "spaces"])
def test_predictions_of_unannotated_types_do_not_count(words):
    """As in `evaluate`: the entity may exist although it is not annotated."""
    text = "Ada went to Rome."
    (gold,) = document(text, (0, 3, "PER"))
    found = document(text, (0, 3, "PER"), (12, 16, "LOC"), words=words)
    assert counts([gold], found)[0] == Counts(1, 2, 1)
    gold.types = ("PER",)
    assert counts([gold], found)[0] == Counts(1, 1, 1)


def test_other_words_in_the_same_text():
    text = "Ada met Bob. IL-2-driven cells grew."
    entities = (0, 3, "PER"), (8, 11, "PER"), (13, 17, "DNA"), (13, 30, "CELL")
    gold = document(text, *entities)
    assert len(gold) == 2
    found = document(text, *entities, (4, 11, "X"), words="spaces")
    assert len(found) == 1
    # "Bob" cuts through "Bob." there, "IL-2" through "IL-2-driven" in both.
    assert counts(gold, found) == (Counts(4, 5, 4), True)
    pairs, _ = align(gold, found, NAMES)
    assert score_pairs(pairs).irregular == Counts(1, 1, 1)
    assert [pair.sentence for pair in pairs] == gold
    # By characters, one too many is wrong.
    assert counts(gold, document(text, (0, 4, "PER"), words="spaces"))[0] == Counts(0, 1, 4)
    assert counts(gold, document(text, (0, 13, "PER"), words="spaces"))[0] == Counts(0, 1, 4)


def test_discontinuous_entities_in_other_words():
    text = "Muscle-pain and stiffness hurt."

    def annotated(words: str, *parts: tuple[tuple[int, int], ...]) -> list[Sentence]:
        annotations = [Annotation(each, "S") for each in parts]
        return to_sentences(TextDocument(text, annotations, where="t:1"), TextOptions(words))

    whole, cut = ((0, 11), (16, 25)), ((0, 6), (16, 25))
    gold = annotated("rules", whole, cut)
    pairs, by_characters = align(gold, annotated("spaces", whole, cut, ((0, 11), (26, 30))), NAMES)
    report = score_pairs(pairs)
    assert by_characters
    assert report.discontinuous == report.micro == Counts(2, 3, 2)
    assert report.irregular == Counts(1, 1, 1)
    words = [["Muscle-pain", "and", "stiffness", "hurt", "."]]
    assert [sentence.words for sentence in gold] == words


def test_predictions_over_the_end_of_a_gold_sentence():
    gold = document("One is here. Two is there.", (0, 3, "A"), (13, 16, "A"))
    found = document("One is here. Two is there.", (0, 16, "A"), (0, 20, "A"), (13, 16, "A"))
    assert (len(gold), len(found)) == (2, 1)
    assert counts(gold, found) == (Counts(1, 3, 2), True)


@pytest.mark.parametrize("doc", [None, "d"])
def test_sentences_without_a_text_against_texts(doc):
    """The text is then the words joined by spaces: of a sentence, or of a document, in lines."""
    gold = [
        sentence("Ada met Bob .", entities=[Span(2, 3, "PER")], doc=doc),
        sentence("Zoë left .", entities=[Span(0, 1, "PER")], doc=doc),
    ]
    lines = document("Ada met Bob .", (8, 11, "PER")) + document("Zoë left .", (0, 3, "X"))
    lines[0].words = ["Ada met", "Bob", "."]  # otherwise the words would be the same
    lines[0].offsets = [(0, 7), (8, 11), (12, 13)]
    lines[0].entities = [Span(1, 2, "PER")]
    assert counts(gold, lines) == (Counts(1, 2, 2), True)
    if doc:
        whole = document("Ada met Bob .\nZoë left .\n", (8, 11, "PER"), (14, 17, "PER"))
        whole[-1].words[-1:] = []
        whole[-1].offsets[-1:] = []
        assert counts(gold, whole) == (Counts(2, 2, 2), True)


def test_empty_lines_around_texts_do_not_matter():
    gold = document("Bob left.", (0, 3, "PER"))
    found = document("Bob left.\n\n", (0, 3, "PER"), words="spaces")
    assert counts(gold, found) == (Counts(1, 1, 1), True)


words = st.lists(st.sampled_from(["Ada", "e", "Zoë", "北京", "a-b", "."]), min_size=1, max_size=8)


@settings(max_examples=50, deadline=None)
@given(words, st.data())
def test_by_words_and_by_characters_agree(given_words, data):
    text = " ".join(given_words)
    size = len(given_words)
    runs = st.tuples(st.integers(0, size - 1), st.integers(1, size), st.sampled_from("AB"))
    both = st.lists(runs.filter(lambda run: run[0] < run[1]), max_size=5, unique=True)
    offsets = Sentence(given_words).characters()[1]
    gold_spans, found_spans = data.draw(both), data.draw(both)
    gold = Sentence(given_words, [Span(*s) for s in gold_spans], text=text, offsets=offsets)
    found = Sentence(given_words, [Span(*s) for s in found_spans], text=text, offsets=offsets)
    # The same predictions over words that are single characters.
    single = [(i, i + 1) for i, character in enumerate(text) if character != " "]
    at = {start: i for i, (start, _) in enumerate(single)}
    spans = [Span(at[offsets[s][0]], at[offsets[e - 1][1] - 1] + 1, x) for s, e, x in found_spans]
    split = Sentence([text[s:e] for s, e in single], spans, text=text, offsets=single)
    pairs, _ = align([gold], [found], NAMES)
    other_pairs, _ = align([gold], [split], NAMES)
    assert score_pairs(other_pairs) == score_pairs(pairs)


@pytest.mark.parametrize(
    ("gold", "predicted", "expected"),
    [
        (
            [sentence("a b", 1), sentence("c d e", 2)],
            [sentence("a b", 7), sentence("c x e f", 8)],
            "f:2 and f:8 differ from word 1 on: 'd e' against 'x e f'",
        ),
        (
            [sentence("a b", 1)],
            [sentence("a", 1)],
            "f:1 and f:1 differ from word 1 on: 'b' against nothing",
        ),
        (
            [sentence("a b", 1), sentence("c", 2)],
            [sentence("a b", 1)],
            "f:2: 'c' has no counterpart, pred.x ends after 1 sentences",
        ),
        (
            [sentence("a b")],
            [sentence("a b"), sentence("c " * 100)],
            f"pred.x, number 2: '{'c ' * 29}c…' has no counterpart, gold.x ends after 1 sentences",
        ),
        (
            document("One text."),
            document("One  text.", words="spaces"),
            "t:1 and t:1 differ from character 4 on: 'text.' against ' text.'",
        ),
        (
            document("One text.") + document("Two texts"),
            document("One text.", words="spaces"),
            "t:1: 'Two texts' has no counterpart, pred.x ends after 1 texts",
        ),
    ],
)
def test_differences_are_named(gold, predicted, expected):
    with pytest.raises(DataError) as error:
        align(gold, predicted, NAMES)
    message = str(error.value)
    assert expected in message
    assert "both files must contain the same sentences" in message


def test_texts_that_say_the_same_are_still_several(tmp_path: Path):
    """Two records with equal texts are two, in both files."""
    record = {"text": "Bob left.", "entities": [{"start": 0, "end": 3, "label": "PER"}]}
    path = tmp_path / "gold.jsonl"
    path.write_text("\n".join([json.dumps(record)] * 3))
    gold, found = formats.read(path), formats.read(path, "jsonl:words=spaces")
    assert counts(gold, found) == (Counts(3, 3, 3), True)
    with pytest.raises(DataError, match=r"pred\.x ends after 2 texts"):
        align(gold, found[:2], NAMES)
