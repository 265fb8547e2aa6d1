"""What the campaign of mutated inputs found, and a short campaign."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_round_trips import skip_without_package

from benchmarks.attack import binary, inputs
from diffusionner import formats
from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats import FORMATS


@pytest.mark.parametrize("name", [*FORMATS, inputs.ANNOTATE])
def test_mutated_inputs(name):
    """A few of each kind; `python -m benchmarks attack-inputs` tries thousands."""
    if name in binary.NAMES:
        skip_without_package(name)
    for kind in inputs.kinds_of(name):
        outcome = inputs.Outcome()
        for number in range(12):
            inputs.attack(f"test/{number}/{name}/{kind}", name, kind, outcome)
        assert outcome.faults == []
        assert outcome.read + outcome.refused == 12


def test_a_campaign_finds_what_is_lost(monkeypatch):
    """A reader that drops the last entity of a sentence, and one that drops a sentence."""
    read = formats.read

    def losing(path, format=None):
        sentences = read(path, format)
        sentences[-1].entities = sentences[-1].entities[:-1]
        return sentences

    monkeypatch.setattr(formats, "read", losing)
    assert inputs.campaign(200, 0)["jsonl", "respelled"].faults
    monkeypatch.setattr(formats, "read", lambda *arguments: read(*arguments)[1:])
    assert inputs.campaign(200, 0)["conll", "respelled"].faults


def refusal(path: Path, text: str, name: str) -> str:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        formats.read(path, name)
    errors: list[DataError] = []
    list(formats.iterate_with_errors(path, name, errors))
    assert str(caught.value) in map(str, errors) or "lies outside" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "record", "message"),
    [
        ("jsonl", {"tokens": ["Ada"], "entites": []}, "'entites'; did you mean 'entities'?"),
        ("jsonl", {"text": "Ada", "enti,ties": [{}]}, "'enti,ties'; did you mean 'entities'?"),
        ("prodigy", {"text": "Ada", "span": []}, "'span'; did you mean 'spans'?"),
        ("labelstudio", {"data": {"text": "Ada"}, "annotation": []}, "did you mean 'annotations'?"),
    ],
)
def test_entities_under_a_misspelt_key(tmp_path, name, record, message):
    """They would be ignored, as every other key is, and the record read without entities."""
    path = tmp_path / "corpus.json"
    assert message in refusal(path, json.dumps(record), name)


def test_other_keys_are_ignored(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"tokens": ["Ada"], "identity": [1], "types_of": [], "entity_count": 1}\n')
    assert formats.read(path, "jsonl")[0].words == ["Ada"]


@pytest.mark.parametrize("kind", ["", "labe{ls", "choices"])
def test_labels_of_another_type(tmp_path, kind):
    value = {"start": 0, "end": 3, "labels": ["PER"]}
    result = [{"type": kind, "value": value}]
    task = {"data": {"text": "Ada"}, "annotations": [{"result": result}]}
    message = refusal(tmp_path / "corpus.json", json.dumps([task]), "labelstudio")
    assert f"a result of type '{kind}' is not on plain text" in message


def test_tags_on_the_line_that_begins_a_document(tmp_path):
    message = refusal(tmp_path / "a.conll", "-DOCSTART- d1 B-PER\nAda B-PER\n", "conll")
    assert "a.conll:1: -DOCSTART- with the tags of a word" in message
    (tmp_path / "a.conll").write_text("-DOCSTART- -X- -X- O\n\nAda NNP I-NP I-PER\n")
    assert formats.read(tmp_path / "a.conll", "conll")[0].entities == [Span(0, 1, "PER")]


def test_a_row_for_a_hashtag_with_an_invalid_tag_is_no_comment(tmp_path):
    message = refusal(tmp_path / "a.conll", "at B-X\n#NeurIPS )I-X\nAda O\n", "conll")
    assert "a.conll:2: unknown tag ')I-X'" in message
    (tmp_path / "a.conll").write_text("at B-X\n# a comment\n#three columns here\nAda O\n")
    assert formats.read(tmp_path / "a.conll", "conll")[0].words == ["at", "Ada"]


def test_an_entity_without_a_name_in_conllu(tmp_path):
    text = "# global.Entity = GRP-etype\n1\tAda" + "\t_" * 7 + "\tEntity=(-1-PER)\n"
    assert "'(-1-PER' has no type or no name" in refusal(tmp_path / "a.conllu", text, "conllu")


def test_text_after_the_end_of_a_document_in_ontonotes(tmp_path):
    row = "x 0 0 Ada - * - - - - (PER) -\n"
    text = f"#begin document (a);\n{row}\n#end document#begin document (b);\n{row}\n#end document\n"
    assert ":4: " in refusal(tmp_path / "a.gold_conll", text, "ontonotes")


def test_a_text_of_ace_that_begins_nowhere(tmp_path):
    (tmp_path / "a.sgm").write_text("<DOC>\nAda met Bob.\n</TEXT></DOC>\n")
    (tmp_path / "a.apf.xml").write_text("<source_file><document/></source_file>")
    assert [s.words for s in formats.read(tmp_path, "ace")] == [["Ada", "met", "Bob", "."]]


@pytest.mark.parametrize("label", ["", " ", "\n", "\t\n"])
def test_blank_labels_are_not_written(tmp_path, label):
    """No reader accepts them."""
    for name in FORMATS:
        if FORMATS[name].write is not None:
            with pytest.raises(DataError, match="must be a non-empty string"):
                formats.write(tmp_path / "out", [Sentence(["a"], [Span(0, 1, label)])], name)
    assert not list(tmp_path.iterdir())


def test_an_empty_name_of_a_document_is_none(tmp_path):
    corpus = [Sentence(["a"], doc="d"), Sentence(["b"], doc="")]
    for name in ("ontonotes", "conll", "jsonl", "gliner", "conllu"):
        formats.write(tmp_path / "out", corpus, name)
        assert [s.doc for s in formats.read(tmp_path / "out", name)] == ["d", None]


def test_errors_stay_on_their_line(tmp_path):
    """A label may have line breaks, or the codes that control a terminal."""
    entity = {"start": 0, "end": 9, "label": "a\nb\x1b[2J\x85"}
    record = json.dumps({"tokens": ["Ada"], "entities": [entity]})
    message = refusal(tmp_path / "a.jsonl", record, "jsonl")
    assert r"entity a\nb\x1b[2J\x85 [0, 9) lies outside" in message


def test_a_line_of_brat_that_only_begins_like_a_note(tmp_path):
    (tmp_path / "a.txt").write_text("Ada met Bob")
    (tmp_path / "a.ann").write_text("R1\tKnows Arg1:T1 Arg2:T2\t\n#1\tAnnotatorNotes T1\tx\n*\tx\n")
    assert len(formats.read(tmp_path, "brat")) == 1
    (tmp_path / "a.ann").write_text("NaN\tPER 0 3\tAda\n")
    with pytest.raises(DataError, match=r"a\.ann:1: not a brat annotation"):
        formats.read(tmp_path, "brat")
