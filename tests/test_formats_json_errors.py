"""The JSON of annotation tools and of GLiNER: what is wrong is said with file and line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diffusionner import formats
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


def doccano(*entities: Any, **more: Any) -> Any:
    return {"text": "Tim and Tom", "label": list(entities), **more}


def prodigy(**changes: Any) -> Any:
    record: dict[str, Any] = {
        "text": "a bc",
        "tokens": [
            {"text": "a", "start": 0, "end": 1, "id": 0, "ws": True},
            {"text": "bc", "start": 2, "end": 4, "id": 1, "ws": False},
        ],
        "spans": [],
    }
    return {**record, **changes}


def token(text: Any = "bc", start: Any = 2, end: Any = 4) -> Any:
    return prodigy(
        tokens=[
            {"text": "a", "start": 0, "end": 1, "id": 0},
            {"text": text, "start": start, "end": end, "id": 1},
        ]
    )


def span(**changes: Any) -> Any:
    return prodigy(spans=[{"start": 2, "end": 4, "label": "X", **changes}])


def task(value: Any = None, kind: str = "labels", **more: Any) -> Any:
    result = [{"type": kind, "value": value}]
    return {"data": {"text": "Tim and Tom"}, "annotations": [{"result": result}], **more}


MALFORMED: list[tuple[str, Any, str]] = [
    ("gliner", ["a"], "expected an object, found a list"),
    ("gliner", {"tokenized_text": "a b", "ner": []}, "must be a list, not a string"),
    ("gliner", {"tokenized_text": [], "ner": []}, "'tokenized_text' is empty"),
    ("gliner", {"tokenized_text": ["a", 1], "ner": []}, "token 1 must be a string"),
    ("gliner", {"tokenized_text": ["a"]}, "no 'ner' among the keys"),
    ("gliner", {"tokenized_text": ["a"], "ner": None}, "'ner' must be a list, not null"),
    ("gliner", {"tokenized_text": ["a"], "ner": [[0, 0]]}, "not a list of 2"),
    ("gliner", {"tokenized_text": ["a"], "ner": [{"start": 0}]}, "[start, end, label], not an"),
    ("gliner", {"tokenized_text": ["a"], "ner": [[0, "0", "X"]]}, "an integer"),
    ("gliner", {"tokenized_text": ["a"], "ner": [[0, 0, ""]]}, "non-empty string"),
    ("gliner", {"tokenized_text": ["a"], "ner": [[0, 1, "X"]]}, "X [0, 2) lies outside"),
    ("gliner", {"tokenized_text": ["a"], "ner": [[0, -1, "X"]]}, "X [0, 0) lies outside"),
    ("doccano", 3, "expected an object, found a number"),
    ("doccano", {"text": ["a"], "label": []}, "'text' must be a string, not a list"),
    ("doccano", {"data": "a", "label": []}, "no 'text' among the keys"),
    ("doccano", {"text": "a"}, "no 'label' among the keys"),
    ("doccano", {"text": "a", "label": "X"}, "'label' must be a list, not a string"),
    ("doccano", doccano("positive"), "[start, end, label], not a string"),
    ("doccano", doccano([0, 3]), "not a list of 2"),
    ("doccano", doccano([0, 3.0, "X"]), "integer, not 3.0"),
    ("doccano", doccano([0, 3, 5]), "non-empty string, not 5"),
    ("doccano", doccano([0, 12, "X"]), "X [0, 12) lies outside its text of 11 characters"),
    ("doccano", doccano([-1, 2, "X"]), "X [-1, 2) lies outside"),
    ("doccano", doccano([3, 3, "X"]), "X [3, 3) is empty"),
    ("doccano", doccano(doc=["d"]), "'doc' must be a string or a number"),
    ("doccano", {"text": "  ", "label": [[0, 1, "X"]]}, "entities in a text without words"),
    ("doccano", {"text": "a", "entities": [{"start": 0}]}, "no 'start_offset' among"),
    (
        "doccano",
        {"text": "a", "annotations": [{"start_offset": 0, "end_offset": 1, "label": 5}]},
        "non-empty string, not 5",
    ),
    ("prodigy", ["a"], "expected an object, found a list"),
    ("prodigy", {"image": "a.png", "spans": []}, "no 'text' among the keys"),
    ("prodigy", prodigy(answer="yes"), "one of accept, reject, ignore, not 'yes'"),
    ("prodigy", prodigy(answer=None), "one of accept, reject, ignore, not None"),
    ("prodigy", prodigy(meta=["d"]), "expected an object, found a list"),
    ("prodigy", prodigy(meta={"doc": {}}), "'doc' must be a string or a number"),
    ("prodigy", prodigy(spans={}), "'spans' must be a list, not an object"),
    ("prodigy", prodigy(spans=["X"]), "expected an object, found a string"),
    ("prodigy", span(end=None), "'end' must be an integer"),
    ("prodigy", span(label=None), "non-empty string, not None"),
    ("prodigy", span(end=5), "X [2, 5) lies outside"),
    ("prodigy", span(start=4), "X [4, 4) is empty"),
    ("prodigy", span(token_start=0), "token_start 0, but it is at [0, 1]"),
    ("prodigy", span(token_start=1, token_end=2), "token_end 2, but there is none"),
    ("prodigy", span(token_end="1"), "'token_end' must be an integer"),
    ("prodigy", {"text": "a", "spans": [{"start": 0, "end": 1}]}, "no 'label' among"),
    ("prodigy", prodigy(tokens={}), "'tokens' must be a list, not an object"),
    ("prodigy", prodigy(tokens=["a", "bc"]), "expected an object, found a string"),
    ("prodigy", token(text="b"), "token 1 at [2, 4) is 'b', but the text has 'bc'"),
    ("prodigy", token(text="", end=2), "token 1 at [2, 2) is empty"),
    ("prodigy", token(end=9), "outside its text of 4 characters"),
    ("prodigy", token(text="a bc", start=0), "overlaps the previous one"),
    ("prodigy", token(start="2"), "'start' must be an integer"),
    ("labelstudio", "a", "expected an object, found a string"),
    ("labelstudio", {"data": "a"}, "'data' must be an object, not a string"),
    ("labelstudio", {"data": {"t": "a"}}, "no 'text' among the keys ('t'); write"),
    ("labelstudio", {"data": {"text": 3}}, "'text' must be a string, not a number"),
    ("labelstudio", task(annotations={}) | {"annotations": 5}, "'annotations' must be a list"),
    ("labelstudio", task() | {"annotations": [12]}, "expected an object, found a number"),
    ("labelstudio", task() | {"annotations": [{}]}, "no 'result' among"),
    ("labelstudio", task("X"), "'value' must be an object, not a string"),
    ("labelstudio", task({"start": 0, "end": 3}), "no 'labels' among"),
    ("labelstudio", task({"start": 0, "end": 3, "labels": []}), "[0, 3) has no label"),
    ("labelstudio", task({"start": 0, "end": 3, "labels": [None]}), "non-empty string"),
    ("labelstudio", task({"start": 0.5, "end": 3, "labels": ["X"]}), "integer, not 0.5"),
    ("labelstudio", task({"start": 0, "end": 12, "labels": ["X"]}), "X [0, 12) lies outside"),
    (
        "labelstudio",
        task({"start": 0, "end": 3, "text": "Tom", "labels": ["X"]}),
        "has the text 'Tom', but its offsets point to 'Tim'",
    ),
    ("labelstudio", task({"start": "/p[1]"}, "hypertextlabels"), "'hypertextlabels' is not on"),
    ("labelstudio", {"text": "a", "ner": [{"start": 0, "end": 1}]}, "no 'labels' among"),
]  # fmt: skip

GOOD = {
    "gliner": {"tokenized_text": ["a"], "ner": [[0, 0, "X"]]},
    "doccano": {"text": "a", "label": [[0, 1, "X"]]},
    "prodigy": {"text": "a", "spans": [{"start": 0, "end": 1, "label": "X"}]},
    "labelstudio": task({"start": 0, "end": 3, "labels": ["X"]}),
}


@pytest.mark.parametrize(("format", "record", "message"), MALFORMED)
def test_errors_name_file_and_line(make, format, record, message):
    lines = [json.dumps(GOOD[format]), "", json.dumps(record), json.dumps(GOOD[format])]
    path = make("\n".join(lines), "bad.jsonl")
    with pytest.raises(DataError) as caught:
        formats.read(path, format)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert message in str(caught.value)
    # In an array too; and when checking, the records around it are still read.
    path = make("[\n" + ",\n".join(lines[:1] + lines[2:]) + "\n]", "bad.json")
    with pytest.raises(DataError) as caught:
        formats.read(path, format)
    assert str(caught.value).startswith(f"{path}:3: ")
    refused: list[DataError] = []
    sentences = list(formats.iterate_with_errors(path, format, refused))
    if "tokenized_text" in str(record) and "lies outside" in message:
        assert (len(sentences), refused) == (3, [])  # left for whoever checks
    else:
        assert len(refused) == 1
        assert len(sentences) == 2


@pytest.mark.parametrize("format", FORMATS)
def test_cut_short(make, format):
    content = json.dumps([GOOD[format]] * 2, indent=1)
    for end in (len(content) - 1, len(content) // 2 + 10):
        with pytest.raises(DataError, match=r"corpus\.json:\d+: "):
            formats.read(make(content[:end]), format)


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_in_it(make, format):
    for content in ("[]", "\n"):
        with pytest.raises(DataError, match="has no sentences"):
            formats.read(make(content), format)
