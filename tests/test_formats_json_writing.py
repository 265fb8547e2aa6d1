"""The JSON of annotation tools and of GLiNER: written, and read again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from diffusionner import formats
from diffusionner.corpus import Discontinuous, Irregular, Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats.documents import TextDocument, contiguous, to_documents, to_sentences

FORMATS = ("gliner", "prodigy", "doccano", "labelstudio")
CHARACTERS = FORMATS[1:]  # those that count characters of a text


def written(sentences: list[Sentence], format: str, **options: bool) -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        formats.write(path, iter(sentences), format, **options)
        return path.read_text(encoding="utf-8")


def again(sentences: list[Sentence], format: str) -> list[Sentence]:
    """Read back what was written; the format must also be detected."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        formats.write(path, iter(sentences), format)
        assert formats.detect(path).name == format.partition(":")[0]
        return formats.read(path, format)


# What is written.


def test_written_files():
    text = "Tim's in New York. He.\n"
    document = TextDocument(text, [contiguous(0, 3, "PER"), contiguous(9, 11, "CUT")], "d\u00e9")
    sentences = to_sentences(document)
    assert json.loads(written(sentences[1:], "gliner")) == [
        {"tokenized_text": ["He", "."], "ner": [], "doc": "d\u00e9"}
    ]
    assert written([Sentence(["a", "b"], [Span(0, 2, "X")])], "gliner") == (
        '[\n{"tokenized_text":["a","b"],"ner":[[0,1,"X"]]}\n]\n'
    )
    assert written(sentences, "doccano") == (
        '{"id":1,"text":"Tim\'s in New York. He.\\n",'
        '"label":[[0,3,"PER"],[9,11,"CUT"]],"doc":"d\u00e9"}\n'
    )
    (only,) = json.loads(written(sentences, "labelstudio"))
    assert only == {
        "id": 1,
        "data": {"text": text, "doc": "d\u00e9"},
        "annotations": [
            {
                "result": [
                    {
                        "id": f"1-{number}",
                        "type": "labels",
                        "from_name": "label",
                        "to_name": "text",
                        "value": {"start": start, "end": end, "text": part, "labels": [label]},
                    }
                    for number, (start, end, part, label) in enumerate(
                        [(0, 3, "Tim", "PER"), (9, 11, "Ne", "CUT")], 1
                    )
                ]
            }
        ],
    }
    first, second = map(json.loads, written(sentences, "prodigy").splitlines())
    assert first["text"] == "Tim's in New York. "
    assert [t["text"] for t in first["tokens"]] == ["Tim", "'s", "in", "New", "York", "."]
    assert [t["ws"] for t in first["tokens"]] == [False, True, True, True, False, True]
    assert [t["id"] for t in first["tokens"]] == [0, 1, 2, 3, 4, 5]
    assert first["spans"] == [
        {"start": 0, "end": 3, "label": "PER", "token_start": 0, "token_end": 0},
        {"start": 9, "end": 11, "label": "CUT"},
    ]
    assert first["answer"] == "accept"
    assert first["meta"] == {"doc": "d\u00e9", "text_start": 0}
    assert second["text"] == "He.\n"
    assert second["meta"] == {"doc": "d\u00e9", "text_start": 19}
    assert second["tokens"][0] == {"text": "He", "start": 0, "end": 2, "id": 0, "ws": False}


@pytest.mark.parametrize("format", FORMATS)
def test_annotations_in_parts_are_refused_or_left_out(format):
    gapped = Discontinuous(((0, 1), (2, 3)), "GAPPED")
    parts, cut = Irregular(((0, 1), (4, 5)), "PARTS"), Irregular(((0, 1),), "CUT")
    sentence = Sentence(["ab", "cd", "e"], [Span(0, 1, "X")], where="f:1")
    for refused in ({"discontinuous": [gapped]}, {"irregular": [parts]}):
        with pytest.raises(DataError, match=f"f:1: .*which format {format} cannot represent"):
            written([replace(sentence, **refused)], format)
    everything = replace(sentence, discontinuous=[gapped], irregular=[cut, parts])
    content = written([everything], format, lossy=True)
    assert "GAPPED" not in content and "PARTS" not in content
    assert ("CUT" in content) == (format in CHARACTERS)


# Round trips.

PLAIN = "abAB19.,-'\"\\"
AWKWARD = (
    "\u0301\u0308"  # combining marks
    "\u200d\ufe0f\u200b\u00ad\ufeff"  # joiners, selectors, nothing visible
    "\U0001f468\U0001f469\U0001f3fb\U0001f1e9"  # emoji that join, and half a flag
    "\u05e9\u0645\u202e"  # right to left, and what makes it so
    "\u4e2d\u0e01\uac00"
    "\u0000\u001f\u0085"
)
SPACES = " \n\t\r\u00a0\u2028\u2029\u3000"

labels = st.sampled_from(["X", "Y", "a b", "\u4e2d", 'q"\\'])
docs = st.none() | st.sampled_from(["d", "e", "\u00e9 \U0001f600"])
anything = st.text(st.sampled_from(PLAIN + AWKWARD + SPACES), max_size=40)


@st.composite
def sentences_of_words(draw: st.DrawFn) -> list[Sentence]:
    """Sentences without text; entities nested, crossing and on one span as they come."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        words = draw(st.lists(anything.filter(bool), min_size=1, max_size=6))
        bounds = st.integers(0, len(words))
        pairs = st.tuples(bounds, bounds).filter(lambda pair: pair[0] < pair[1])
        spans = draw(st.lists(st.tuples(pairs, labels), unique=True, max_size=8))
        found.append(Sentence(words, [Span(*pair, label) for pair, label in spans], draw(docs)))
    return found


@st.composite
def documents(draw: st.DrawFn) -> list[TextDocument]:
    """Texts annotated anywhere, so through words too."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        text = draw(anything.filter(lambda text: to_sentences(TextDocument(text))))
        bounds = st.integers(0, len(text))
        pairs = st.tuples(bounds, bounds).filter(lambda pair: pair[0] < pair[1])
        spans = draw(st.lists(st.tuples(pairs, labels), unique=True, max_size=8))
        annotations = [contiguous(*pair, label) for pair, label in spans]
        found.append(TextDocument(text, annotations, draw(docs)))
    return found


fast = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def by_words(sentences: list[Sentence]) -> list[Any]:
    return [(s.words, sorted(s.entities), s.doc) for s in sentences]


def by_text(texts: list[TextDocument]) -> list[Any]:
    return [(d.text, sorted(d.annotations), d.doc) for d in texts]


@pytest.mark.parametrize("format", ["gliner", "prodigy"])
@fast
@given(sentences=sentences_of_words())
@example([Sentence([" "], [Span(0, 1, "X"), Span(0, 1, "Y")]), Sentence(["\u2028", "\n"])])
def test_words_come_back(format, sentences):
    assert by_words(again(sentences, format)) == by_words(sentences)


@pytest.mark.parametrize("format", ["prodigy", "doccano", "labelstudio", "doccano:offsets=utf16"])
@fast
@given(texts=documents())
@example([TextDocument("a\u0301 b", [contiguous(0, 1, "X"), contiguous(1, 4, "X")])])
def test_texts_come_back(format, texts):
    sentences = [s for text in texts for s in to_sentences(text)]
    back = again(sentences, format)
    assert by_text(list(to_documents(back))) == by_text(texts)
    assert by_words(back) == by_words(sentences)
    assert [s.irregular for s in back] == [s.irregular for s in sentences]
    assert [s.offsets for s in back] == [s.offsets for s in sentences]


@fast
@given(sentences=sentences_of_words(), format=st.sampled_from(CHARACTERS))
def test_words_without_text_keep_their_characters(sentences, format):
    """Sentences become lines; entities stay on the characters that they were on."""
    sentences = [replace(s, words=["a", *s.words]) for s in sentences]  # something is visible
    back = list(to_documents(again(sentences, format)))
    before = list(to_documents(sentences))
    if format == "prodigy":  # a text for each sentence
        before = [d for s in sentences for d in to_documents([s])]
    assert by_text(back) == by_text(before)


@pytest.mark.parametrize("format", ["prodigy", "jsonl"])
def test_sentences_of_a_text_in_any_order(format):
    document = TextDocument("One is. Two is. Three is.", [contiguous(9, 10, "X")], "d")
    one, two, three = to_sentences(document)
    for sentences in ([three, one], [two, two], [one, three], [three, two, one]):
        back = again(sentences, format)
        assert by_words(back) == by_words(sentences)
        for found, sentence in zip(back, sentences, strict=True):
            assert found.characters() == sentence.characters()
            assert found.irregular == sentence.irregular


def test_prodigy_puts_a_text_together_again_without_what_was_rejected(tmp_path):
    document = TextDocument("One is. Two is. Three is.", [], "d")
    lines = written(to_sentences(document), "prodigy").splitlines()
    lines[1] = lines[1].replace('"accept"', '"reject"')
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(lines))
    first, third = formats.read(path)
    assert (first.text, third.text) == ("One is. ", "Three is.")
    assert third.characters()[1][0] == (0, 5)


def test_words_of_lines_come_back_with_spaces():
    sentences = [
        Sentence(["It's", "New", "York."], [Span(1, 3, "LOC"), Span(1, 2, "X")], "d"),
        Sentence(["No"], [], "d"),
        Sentence(["Two"], [Span(0, 1, "N")]),
    ]
    for format in ("doccano", "labelstudio"):
        assert by_words(again(sentences, f"{format}:words=spaces")) == by_words(sentences)
