"""Refining given spans on the command line, in spaCy and over HTTP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diffusionner import DiffusionNER
from models import lively_model, written

TEXT = "Ada Lovelace met Charles Babbage in London.  They talked about engines."
WORDS = "Ada Lovelace met Charles Babbage in London .".split()
INITIALIZER = (
    "decoder.initializer=types",
    "decoder.offset_window=3",
    "inference.start=candidates",
    "inference.spans=auto",
)


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return lively_model(encoder_folder, "encoder.context=1", *INITIALIZER)


@pytest.fixture(scope="module")
def model(ner: DiffusionNER, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refine") / "model"
    ner.save_pretrained(folder)
    return folder


# --- The command line ---------------------------------------------------------------------------


def lines(*records: dict) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


@pytest.mark.parametrize("only", [True, False])
def test_predict_refines_spans(cli, model, ner, only):
    given = [{"start": 0, "end": 12, "label": "PERSON"}, [36, 42], [17, 70, "DATE", 0.5]]
    source = lines(
        {"text": TEXT, "mine": given, "id": 1},
        {"tokens": WORDS, "mine": [[0, 8, "PER"]]},
        {"text": TEXT, "mine": []},
    )
    arguments = ["--model", model, "--input", "-", "--refine", "mine", "--label-map", "PERSON=PER"]
    result = cli("predict", *arguments, "--label-map", "DATE=", *["--only"] * only, stdin=source)
    assert result.status == 0, result.err
    first, second, third = result.records
    assert first["id"] == 1 and first["mine"] == given, "other fields are kept"
    mapping = {"PERSON": "PER", "DATE": None}
    for record, content, spans in (
        (first, TEXT, given),
        (second, WORDS, [(0, 8, "PER")]),
        (third, TEXT, []),
    ):
        expected = ner.refine(content, spans, only, label_map=mapping)
        assert record["entities"] == [written(e) for e in expected.entities]
        assert record["outcomes"] == [outcome.to_dict() for outcome in expected.outcomes]
        assert [o["change"] for o in record["outcomes"]] == [o.change for o in expected.outcomes]
    assert first["outcomes"][1]["given"] == {"start": 36, "end": 42}, "no label, no score"
    assert first["outcomes"][0]["given"] == given[0]


def test_neighbouring_lines_are_context(cli, model, ner):
    records = [{"tokens": WORDS, "entities": [[0, 8]], "doc": doc} for doc in "aab"]
    arguments = ("--model", model, "--input", "-", "--refine", "entities")
    result = cli("predict", *arguments, stdin=lines(*records))
    expected = ner.refine_pipe([(WORDS, [(0, 8)], doc) for doc in "aab"])
    assert [r["entities"] for r in result.records] == [
        [written(e) for e in one.entities] for one in expected
    ]


def test_lines_with_bad_spans_are_skipped(cli, model):
    bad = [
        ({"text": TEXT}, 'in:2: expected a list of spans in "spans"'),
        ({"text": TEXT, "spans": [[0, 900]]}, "in:3: span 0: [0, 900) is empty or outside"),
        ({"text": TEXT, "spans": [[0, 3], [0, 3, "X"]]}, "in:4: span 1: unknown label 'X'"),
        ({"text": TEXT, "spans": [[True]]}, "in:5: span 0: expected (start, end)"),
    ]
    good = {"text": TEXT, "spans": [[0, 3]]}
    source = lines(good, *(record for record, _ in bad), good)
    result = cli("predict", "--model", model, "--input", "-", "--refine", "spans", stdin=source)
    assert result.status == 1 and len(result.records) == 2
    for _, message in bad:
        assert message.replace("in:", "standard input:") in result.err
    assert "bad records skipped: 4" in result.err


def test_options_of_refine(refused, model):
    assert "leave out the texts" in refused("predict", "--model", model, "--refine", "spans", TEXT)
    assert "--refine FIELD" in refused("predict", "--model", model, "--only", TEXT)
    pair = ("--input", "-", "--refine", "x", "--label-map", "GPE")
    assert "expected THEIRS=OURS" in refused("predict", "--model", model, *pair)
