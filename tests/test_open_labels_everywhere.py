"""Open labels in the service and on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from services import Client, running
from typer.testing import CliRunner

from diffusionner import DiffusionNER
from diffusionner.cli import app
from diffusionner.service.worker import Predictor
from models import open_model

TEXT = "Ada Lovelace met Charles Babbage in London."
LABELS = ["dish", "spice"]


@pytest.fixture(scope="module")
def folder(encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("open") / "model"
    open_model(encoder_folder).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def ner(folder: Path) -> DiffusionNER:
    return DiffusionNER.from_pretrained(folder)


@pytest.fixture(scope="module")
def client(ner: DiffusionNER) -> Iterator[Client]:
    with running(Predictor(ner)) as client:
        yield client


@pytest.mark.parametrize("labels", [LABELS, {"dish": "something to eat", "spice": ""}])
def test_requests_have_labels(client: Client, ner: DiffusionNER, labels):
    (result,) = client.entities(TEXT, labels=labels).json()["results"]
    expected = ner(TEXT, labels=labels)
    assert [(e["start"], e["end"], e["label"]) for e in result["entities"]] == [
        (e.start, e.end, e.label) for e in expected
    ]


def test_requests_without_labels_get_those_of_the_model(client: Client, ner: DiffusionNER):
    (result,) = client.entities(TEXT).json()["results"]
    assert [e["label"] for e in result["entities"]] == [e.label for e in ner(TEXT)]
    (model,) = client.get("/v1/models").json()["models"]
    assert model["open_labels"] and model["labels"] == ner.labels


def test_spans_are_refined_with_labels(client: Client):
    texts = [{"text": TEXT, "spans": [{"start": 0, "end": 3, "label": "dish"}]}]
    refined = client.post("/v1/refine", json={"texts": texts, "labels": LABELS}).json()
    (result,) = refined["results"]
    assert {e["label"] for e in result["entities"]} <= set(LABELS)
    wrong = client.post("/v1/refine", json={"texts": texts, "labels": ["spice"]})
    assert wrong.status_code == 422 and "dish" in wrong.text


def test_steps_with_labels(client: Client):
    answer = client.post("/v1/steps", json={"text": TEXT, "labels": LABELS}).json()
    labels = {span["label"] for step in answer["steps"] for span in step["spans"]}
    assert labels <= {*LABELS, None}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "there are no labels"),
        (["Dish", "dish"], "are the same label"),
        (["x" * 301], "labels"),
        ({"dish " * 40: "word " * 40}, "is too long"),
        ([f"kind {i}" for i in range(1001)], "labels"),
    ],
)
def test_labels_that_cannot_be_used(client: Client, labels, message: str):
    response = client.entities(TEXT, labels=labels)
    assert response.status_code == 422
    assert message in response.json()["error"]["message"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_predict_labels(folder: Path, ner: DiffusionNER, tmp_path: Path):
    descriptions = tmp_path / "labels.json"
    descriptions.write_text(json.dumps({"dish": "something to eat"}))
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps({"text": TEXT}) + "\n")
    for given, labels in (
        ("dish, spice", LABELS),
        (str(descriptions), {"dish": "something to eat"}),
    ):
        run("predict", "--model", str(folder), "--labels", given, "--input", str(source),
            "--output", str(target))  # fmt: skip
        (record,) = map(json.loads, target.read_text().splitlines())
        assert [e["label"] for e in record["entities"]] == [
            e.label for e in ner(TEXT, labels=labels)
        ]
        target.unlink()


def test_annotate_labels(folder: Path, ner: DiffusionNER, tmp_path: Path):
    source, target = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text(TEXT + "\n")
    run("annotate", str(source), str(target), "--model", str(folder), "--labels", "dish, spice")
    (record,) = map(json.loads, target.read_text().splitlines())
    assert len(record["entities"]) == len(ner(TEXT, labels=LABELS))


@pytest.mark.parametrize(
    ("content", "message"), [("{", "cannot be read as JSON"), ("3", "expected a list of types")]
)
def test_files_of_labels_that_cannot_be_read(folder: Path, tmp_path: Path, content, message):
    labels = tmp_path / "labels.json"
    labels.write_text(content)
    result = CliRunner().invoke(app, ["predict", "--labels", str(labels), TEXT])
    assert result.exit_code == 1 and message in str(result.exception)
