"""JSON of research code: what is particular to reference, w2ner and mrc."""

from __future__ import annotations

import json

import pytest
from test_formats_research import NESTED, REFERENCE

from diffusionner import formats
from diffusionner.corpus import Discontinuous, Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats import read

# reference


def test_reference_documents_and_context(make):
    first, second = read(make("a.json", REFERENCE))
    assert (first.doc, second.doc) == ("d1", "d1")
    assert second.where.endswith("a.json:6")


@pytest.mark.parametrize(
    ("keys", "doc"),
    [
        ({"orig_id": 5}, "5"),
        ({"org_id": "o", "doc_id": "d"}, "d"),
        ({"orig_id": None, "org_id": "o"}, "o"),
        ({"orig_id": None}, None),
    ],
)
def test_reference_names_of_documents(make, keys, doc):
    record = {"tokens": ["a"], "entities": [], **keys}
    assert read(make("a.json", json.dumps([record])))[0].doc == doc


def test_reference_writes_the_neighbours(tmp_path):
    docs = {"a b": "x", "c": "x", "d e": "x", "f": "y", "g": None, "h": None}
    corpus = [Sentence(words.split(), doc=doc) for words, doc in docs.items()]
    corpus[0].entities = [Span(0, 2, "X")]
    formats.write(tmp_path / "out.json", iter(corpus), "reference")
    records = json.loads((tmp_path / "out.json").read_text())
    assert records[0] == {
        "tokens": ["a", "b"],
        "entities": [{"type": "X", "start": 0, "end": 2}],
        "relations": [],
        "orig_id": "x",
        "ltokens": [],
        "rtokens": ["c"],
    }
    context = [("".join(r["ltokens"]), "".join(r["rtokens"])) for r in records]
    assert context == [("", "c"), ("ab", "de"), ("c", ""), ("", ""), ("", ""), ("", "")]


def test_reference_types_file(make, tmp_path):
    types = tmp_path / "types.json"
    name = f"reference:types={types}"
    formats.write(tmp_path / "a.json", [Sentence(["a"], [Span(0, 1, "Ä")])], name)
    empty = {"relations": {}}
    assert json.loads(types.read_text()) == {
        "entities": {"Ä": {"short": "Ä", "verbose": "Ä"}},
        **empty,
    }
    types.write_text('{"entities": {"GPE": {"short": "G", "verbose": "Place"}}, "relations": {}}')
    with pytest.raises(DataError, match=r"b\.json:2: type 'ORG' is not in .*types\.json"):
        read(make("b.json", REFERENCE), name)
    formats.write(tmp_path / "c.json", read(make("b.json", REFERENCE)), name)
    assert json.loads(types.read_text())["entities"] == {
        "GPE": {"short": "G", "verbose": "Place"},
        "ORG": {"short": "ORG", "verbose": "ORG"},
    }
    assert sorted(read(tmp_path / "c.json", name)[0].entities) == NESTED


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"types\.json:1: not valid JSON"),
        (b'{\n"entities": [}', r"types\.json:2: not valid JSON"),
        (b"[]", r"types\.json:1: expected an object"),
        (b"{}", r"types\.json:1: no 'entities'"),
        (b'{"entities": ["PER"]}', r"types\.json:1: 'entities' must be an object, not a list"),
        (b'{"entities": {"\xff": {}}}', r"types\.json:1: not UTF-8"),
        (None, r"types\.json: cannot be read"),
    ],
)
def test_reference_bad_types_file(make, tmp_path, content, message):
    path = make("a.json", REFERENCE)
    if content is not None:
        make("types.json", content)
    with pytest.raises(DataError, match=message):
        read(path, f"reference:types={tmp_path / 'types.json'}")


def test_a_failed_write_leaves_the_types_file(make, tmp_path):
    types = make("types.json", '{"entities": {}}')
    bad = Sentence(["a", "b", "c"], discontinuous=[Discontinuous(((0, 1), (2, 3)), "X")])
    with pytest.raises(DataError):
        formats.write(tmp_path / "a.json", [bad], f"reference:types={types}")
    assert types.read_text() == '{"entities": {}}'


# w2ner


def test_w2ner_discontinuous(make):
    record = {"sentence": ["sore", "arms", "and", "legs"], "ner": []}
    record["ner"] = [{"index": [0, 3], "type": "X"}, {"index": [0, 1], "type": "X"}]
    (sentence,) = read(make("a.json", json.dumps([record])))
    assert sentence.entities == [Span(0, 2, "X")]
    assert sentence.discontinuous == [Discontinuous(((0, 1), (3, 4)), "X")]


def test_w2ner_writes_lists_of_words(tmp_path):
    text = "He can't walk"
    offsets = [(0, 2), (3, 5), (5, 8), (9, 13)]
    sentence = Sentence(["He", "ca", "n't", "walk"], [Span(1, 3, "X")], "d", "", text, offsets)
    sentence.discontinuous = [Discontinuous(((1, 2), (3, 4)), "V")]
    formats.write(tmp_path / "a.json", [sentence], "w2ner")
    assert json.loads((tmp_path / "a.json").read_text()) == [
        {
            "sentence": ["He", "ca", "n't", "walk"],
            "ner": [{"index": [1, 2], "type": "X"}, {"index": [1, 3], "type": "V"}],
            "doc": "d",
        }
    ]


# mrc


def test_mrc_sentences(make):
    def record(context: str, number: str, spans: list[str]) -> dict[str, object]:
        return {"context": context, "qas_id": number, "entity_label": "X", "span_position": spans}

    records = [
        record("a b", "0.1", ["0;0"]),
        record("a b", "0.2", ["0,1"]),
        record("a b", "1.1", []),  # the same words again
        record("a b c", "1.2", []),
    ]
    found = read(make("a.json", json.dumps(records, indent=1)))
    assert [s.words for s in found] == [["a", "b"], ["a", "b"], ["a", "b", "c"]]
    assert [s.entities for s in found] == [[Span(0, 1, "X"), Span(0, 2, "X")], [], []]
    assert [s.where.rpartition(":")[2] for s in found] == ["2", "18", "24"]


def test_mrc_writes_the_questions_asked_for(tmp_path):
    corpus = [Sentence(["a", "b"], [Span(0, 2, "Y"), Span(1, 2, "Y")]), Sentence(["c"])]
    formats.write(tmp_path / "a.json", corpus, "mrc:labels=Y+X")
    records = json.loads((tmp_path / "a.json").read_text())
    assert [(r["qas_id"], r["entity_label"]) for r in records] == [
        *[("0.1", "X"), ("0.2", "Y"), ("1.1", "X"), ("1.2", "Y")]
    ]
    assert records[1] == {
        "context": "a b",
        "end_position": [1, 1],
        "entity_label": "Y",
        "impossible": False,
        "qas_id": "0.2",
        "query": "Y",
        "span_position": ["0;1", "1;1"],
        "start_position": [0, 1],
    }
    formats.write(tmp_path / "b.json", corpus, "mrc")
    records = json.loads((tmp_path / "b.json").read_text())
    assert [(r["qas_id"], r["impossible"]) for r in records] == [("0.1", False), ("1.1", True)]
    with pytest.raises(DataError, match="label 'Y' is not among the labels to write"):
        formats.write(tmp_path / "c.json", corpus, "mrc:labels=X")
