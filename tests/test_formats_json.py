"""The JSON of annotation tools and of GLiNER: told apart and read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diffusionner import formats
from diffusionner.corpus import Irregular, Span
from diffusionner.errors import DataError

FORMATS = ("gliner", "prodigy", "doccano", "labelstudio")


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a file, of JSON unless it is given text, and returns its path."""

    def write(content: Any, name: str = "corpus.json") -> Path:
        path = tmp_path / name
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text, encoding="utf-8")
        return path

    return write


# What is read: one file of each shape.

TEXT = "Tim lives in New York."
ENTITIES = [Span(0, 1, "PER"), Span(3, 5, "LOC"), Span(3, 5, "CITY")]
WORDS = ["Tim", "lives", "in", "New", "York", "."]

GLINER = """[
  {"tokenized_text": ["Tim", "lives", "in", "New", "York", "."],
   "ner": [[0, 0, "PER"], [3, 4, "LOC"], [3, 4, "CITY"]], "negatives": ["ORG"]}
]
"""
DOCCANO = """{"id": 7, "text": "Tim lives in New York.", "label": [[0, 3, "PER"], \
[13, 21, "LOC"], [13, 21, "CITY"]], "Comments": []}
"""
DOCCANO_OLD = DOCCANO.replace('"label"', '"labels"')
DOCCANO_RELATIONS = """{"id": 7, "text": "Tim lives in New York.", "entities": [\
{"id": 1, "label": "PER", "start_offset": 0, "end_offset": 3}, \
{"id": 2, "label": "LOC", "start_offset": 13, "end_offset": 21}, \
{"id": 3, "label": "CITY", "start_offset": 13, "end_offset": 21}], \
"relations": [{"id": 1, "from_id": 1, "to_id": 2, "type": "lives"}], "Comments": ["sure?"]}
"""
PRODIGY = """{"text": "Tim lives in New York.", "_input_hash": 12, "_task_hash": -5, "tokens": [\
{"text": "Tim", "start": 0, "end": 3, "id": 0, "ws": true}, \
{"text": "lives", "start": 4, "end": 9, "id": 1, "ws": true}, \
{"text": "in", "start": 10, "end": 12, "id": 2, "ws": true}, \
{"text": "New", "start": 13, "end": 16, "id": 3, "ws": true}, \
{"text": "York", "start": 17, "end": 21, "id": 4, "ws": false}, \
{"text": ".", "start": 21, "end": 22, "id": 5, "ws": false}], "spans": [\
{"start": 0, "end": 3, "token_start": 0, "token_end": 0, "label": "PER"}, \
{"start": 13, "end": 21, "token_start": 3, "token_end": 4, "label": "LOC"}, \
{"start": 13, "end": 21, "label": "CITY"}], "answer": "accept"}
{"text": "Skipped.", "spans": [{"start": 0, "end": 7, "label": "PER"}], "answer": "reject"}
{"text": "Skipped.", "tokens": "whatever", "answer": "ignore"}
"""
PRODIGY_TEXT = """{"text": "Tim lives in New York.", "spans": [\
{"start": 0, "end": 3, "label": "PER"}, {"start": 13, "end": 21, "label": "LOC"}, \
{"start": 13, "end": 21, "label": "CITY"}]}
"""
LABELSTUDIO = """[
  {
    "id": 1,
    "data": {"text": "Tim lives in New York.", "source": 3},
    "annotations": [
      {"id": 4, "was_cancelled": true, "result": [
        {"type": "labels", "value": {"start": 4, "end": 9, "labels": ["NO"]}}
      ]},
      {"id": 5, "was_cancelled": false, "result": [
        {"id": "a", "type": "labels", "from_name": "label", "to_name": "text",
         "value": {"start": 0, "end": 3, "text": "Tim", "labels": ["PER"]}},
        {"id": "b", "type": "labels", "from_name": "label", "to_name": "text",
         "value": {"start": 13, "end": 21, "text": "New York", "labels": ["LOC", "CITY"]}},
        {"type": "choices", "from_name": "mood", "to_name": "text",
         "value": {"choices": ["good"]}},
        {"type": "relation", "from_id": "a", "to_id": "b", "direction": "right"}
      ]},
      {"id": 6, "result": []}
    ],
    "predictions": [{"result": []}]
  }
]
"""
LABELSTUDIO_OLD = LABELSTUDIO.replace('"annotations"', '"completions"')
LABELSTUDIO_FLAT = """[{"text": "Tim lives in New York.", "id": 1, "ner": [\
{"start": 0, "end": 3, "text": "Tim", "labels": ["PER"]}, \
{"start": 13, "end": 21, "text": "New York", "labels": ["LOC", "CITY"]}], "mood": ["good", "calm"],\
"annotator": 1, "annotation_id": 5, "lead_time": 3.2},
{"text": "Tim lives in New York.", "id": 1, "annotator": 2, "annotation_id": 6, "lead_time": 1.0}]
"""

SHAPES = {
    "gliner": ("gliner", GLINER),
    "gliner-lines": ("gliner", json.dumps(json.loads(GLINER)[0]) + "\n"),
    "doccano": ("doccano", DOCCANO),
    "doccano-old": ("doccano", DOCCANO_OLD),
    "doccano-relations": ("doccano", DOCCANO_RELATIONS),
    "prodigy": ("prodigy", PRODIGY),
    "prodigy-text": ("prodigy", PRODIGY_TEXT),
    "labelstudio": ("labelstudio", LABELSTUDIO),
    "labelstudio-lines": ("labelstudio", json.dumps(json.loads(LABELSTUDIO)[0]) + "\n"),
    "labelstudio-old": ("labelstudio", LABELSTUDIO_OLD),
    "labelstudio-flat": ("labelstudio", LABELSTUDIO_FLAT),
}


@pytest.mark.parametrize(("format", "content"), SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_reads_every_shape(make, format, content, line_end):
    path = make("\ufeff" + content.replace("\n", line_end), "corpus.txt")
    assert formats.detect(path).name == format
    (sentence,) = formats.read(path)
    assert sentence.words == WORDS
    assert sentence.entities == ENTITIES
    assert sentence.doc is None
    array_on_its_own_line = content.startswith("[\n")
    assert sentence.where == f"{path}:{2 if array_on_its_own_line else 1}"
    if format != "gliner":
        assert sentence.text == TEXT
        assert sentence.offsets[3:5] == [(13, 16), (17, 21)]


OTHERS = {
    "jsonl": '{"tokens": ["a"], "entities": [{"start": 0, "end": 1, "label": "X"}]}',
    "jsonl-text": '{"text": "a", "entities": [{"start": 0, "end": 1, "label": "X"}]}',
    "jsonl-both": '{"tokens": ["a"], "entities": [], "text": "a", "offsets": [[0, 1]]}',
    "jsonl-relations": (
        '{"text": "a", "entities": [{"start": 0, "end": 1, "label": "X"}], "relations": []}'
    ),
    "jsonl-bare": '{"text": "a"}',
    "reference": '{"tokens": ["a"], "entities": [{"type": "X", "start": 0, "end": 1}]}',
    "reference-context": '{"tokens": ["a"], "entities": [], "relations": [], "ltokens": ["b"]}',
    "w2ner": '{"sentence": ["a"], "ner": [{"index": [0], "type": "X"}]}',
    "w2ner-empty": '{"sentence": ["a"], "ner": []}',
    "mrc": '{"context": "a b", "span_position": ["0;1"], "entity_label": "X", "query": "?"}',
}


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS.keys())
@pytest.mark.parametrize("array", [False, True])
def test_leaves_other_json_alone(make, content, array):
    assert formats.detect(make(f"[{content}]" if array else content)).name not in FORMATS


@pytest.mark.parametrize(
    ("format", "content"),
    [
        ("doccano", '{"text": "a", "label": []}'),
        ("doccano", '{"text": "a", "entities": [], "relations": [], "Comments": []}'),
        ("prodigy", '{"text": "a", "spans": []}'),
        ("prodigy", '{"text": "a", "answer": "accept"}'),
        ("labelstudio", '[{"data": {"review": "a"}}]'),
        ("labelstudio", '[{"text": "a", "annotation_id": 1, "lead_time": 2}]'),
        ("gliner", '[{"tokenized_text": ["a"], "ner": []}]'),
    ],
)
def test_detects_what_has_no_entities(make, format, content):
    assert formats.detect(make(content)).name == format


def test_detects_by_keys_behind_a_long_text(make):
    text = "word " * 20_000
    record = {"text": text, "label": [[0, 4, "X"]]}
    path = make(record)
    assert formats.detect(path).name == "doccano"
    assert sum(len(sentence.entities) for sentence in formats.iterate(path)) == 1
    path.write_text(json.dumps(record)[:-4])
    with pytest.raises(DataError, match=rf"{path}:1: "):
        formats.read(path)


def test_splits_a_text_as_told(make):
    path = make({"text": "It's here.\nNo, there.", "label": [[0, 4, "X"], [11, 13, "Y"]]})
    first, second = formats.read(path)
    assert first.words == ["It", "'s", "here", "."]
    first, second = formats.read(path, "doccano:words=spaces")
    assert first.words == ["It's", "here."]
    assert first.entities == [Span(0, 1, "X")]
    assert second.irregular == [Irregular(((11, 13),), "Y")]


def test_documents_names(make):
    record = {"tokenized_text": ["a"], "ner": [], "doc": "d"}
    assert formats.read(make([record]))[0].doc == "d"
    assert formats.read(make({"text": "a", "label": [], "doc": 3}))[0].doc == "3"
    assert formats.read(make({"text": "a", "spans": [], "meta": {"doc": "d"}}))[0].doc == "d"
    assert formats.read(make([{"data": {"text": "a", "doc": "d"}}]))[0].doc == "d"


def test_prodigy_tokens_stay_one_sentence_and_may_have_any_ids(make):
    words = [("One", 0, 3), (".", 3, 4), ("\n\n", 4, 6), ("Two", 6, 9), (".", 9, 10)]
    tokens = [
        {"text": word, "start": start, "end": end, "id": 100 + number}
        for number, (word, start, end) in enumerate(words)
    ]
    span = {"start": 6, "end": 9, "label": "N", "token_start": 103, "token_end": 103}
    (sentence,) = formats.read(
        make({"text": "One.\n\nTwo.", "tokens": tokens, "spans": [span], "meta": None})
    )
    assert sentence.words == [word for word, _, _ in words]
    assert sentence.entities == [Span(3, 4, "N")]


def test_prodigy_foreign_metadata_is_ignored(make):
    tokens = [{"text": "a", "start": 0, "end": 1, "id": 0}]
    record = {"text": "a", "tokens": tokens, "spans": None, "meta": {"text_start": "chapter 2"}}
    (sentence,) = formats.read(make(record))
    assert (sentence.words, sentence.text) == (["a"], "a")


def test_labelstudio_tasks_skipped_and_without_annotations(make):
    cancelled = {"was_cancelled": True, "result": []}
    tasks = [
        {"data": {"text": "skipped"}, "annotations": [cancelled, cancelled]},
        {"data": {"text": "unlabelled"}, "annotations": []},
        {"data": {"text": "new"}},
    ]
    assert [s.words for s in formats.read(make(tasks))] == [["unlabelled"], ["new"]]


def test_labelstudio_other_name_of_the_text(make):
    path = make([{"data": {"review": "a b", "text": 3}}])
    assert formats.read(path, "labelstudio:key=review")[0].words == ["a", "b"]
    value = {"start": 0, "end": 1, "labels": ["X"]}
    path = make([{"doc": "a b", "tag": [value], "annotation_id": 1, "lead_time": 1, "id": 1}])
    (sentence,) = formats.read(path, "labelstudio:key=doc")
    assert (sentence.words, sentence.doc) == (["a", "b"], None)
    assert sentence.entities == [Span(0, 1, "X")]


@pytest.mark.parametrize("text", ["New\\nYork", "New York", "New  York"])
def test_labelstudio_white_space_of_a_region_does_not_matter(make, text):
    value = {"start": 0, "end": 8, "text": text, "labels": ["LOC"]}
    result = [{"type": "labels", "value": value}]
    path = make([{"data": {"text": "New\nYork"}, "annotations": [{"result": result}]}])
    assert formats.read(path)[0].entities == [Span(0, 2, "LOC")]


# Offsets by UTF-16 code units.

EMOJI = "\U0001f468\U0001f3fb\u200d\U0001f692 drives to Rome"
ROME = (EMOJI.index("Rome"), len(EMOJI))
ROME_UTF16 = (ROME[0] + 3, ROME[1] + 3)


def rome(format: str, start: int, end: int, **more: Any) -> Any:
    if format == "doccano":
        return {"text": EMOJI, "label": [[start, end, "LOC"]]}
    value = {"start": start, "end": end, "labels": ["LOC"], **more}
    result = [{"type": "labels", "value": value}]
    return [{"data": {"text": EMOJI}, "annotations": [{"result": result}]}]


@pytest.mark.parametrize("format", ["doccano", "labelstudio"])
def test_utf16_offsets_are_read_and_written_when_told(make, format):
    for offsets, option in ((ROME, "characters"), (ROME_UTF16, "utf16")):
        path = make(rome(format, *offsets))
        (sentence,) = formats.read(path, f"{format}:offsets={option}")
        assert [sentence.words[s:e] for s, e, _ in sentence.entities] == [["Rome"]]
        formats.write(path, [sentence], f"{format}:offsets={option}")
        content = path.read_text(encoding="utf-8")
        assert f'"label":[[{offsets[0]},{offsets[1]}' in content or (
            f'"start":{offsets[0]},"end":{offsets[1]},"text":"Rome"' in content
        )


@pytest.mark.parametrize("format", ["doccano", "labelstudio"])
def test_utf16_offsets_beyond_the_text_are_told(make, format):
    path = make(rome(format, *ROME_UTF16))
    with pytest.raises(DataError, match=r"outside its text of .* characters.*offsets=utf16"):
        formats.read(path)
    path = make(rome(format, 1, 2))
    with pytest.raises(DataError, match=r"inside a character.*offsets=characters"):
        formats.read(path, f"{format}:offsets=utf16")


def test_labelstudio_text_tells_what_offsets_count(make):
    start, end = ROME_UTF16
    path = make(rome("labelstudio", start - 3, end - 3, text="Oslo"))
    with pytest.raises(DataError, match=r"'Oslo', but its offsets point to 'Rome'; label it again"):
        formats.read(path)
    drives = EMOJI.index("drives")
    path = make(rome("labelstudio", drives + 3, drives + 9, text="drives"))
    with pytest.raises(DataError, match=r"UTF-16 code units: read the file with .*offsets=utf16"):
        formats.read(path)
    path = make(rome("labelstudio", *ROME, text="Rome"))
    with pytest.raises(DataError, match=r"count characters: read the file with .*=characters"):
        formats.read(path, "labelstudio:offsets=utf16")


@pytest.mark.parametrize("option", ["offsets=bytes", "words=none", "key", "unit=utf16"])
def test_options_that_do_not_exist(make, option):
    with pytest.raises(DataError, match="format labelstudio"):
        formats.read(make("[]"), f"labelstudio:{option}")
