"""Model cards: the YAML file, the measurements and the text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.card import measuring, startup
from benchmarks.card.about import read_about
from benchmarks.cli import main
from diffusionner import DiffusionNER, formats
from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError
from diffusionner.evaluation import evaluate
from diffusionner.evaluation.report import PredictionScores
from diffusionner.storage import registry
from diffusionner.storage.config import CARD
from models import lively_model

MODELS = Path(__file__).parents[1] / "models"
ABOUT = {
    "description": "Names",
    "language": "en",
    "license": "mit",
    "tags": ["ner"],
    "datasets": ["mine"],
    "use": "Finding names.",
    "limits": "English only.",
    "training": "My own sentences, CC BY 4.0.",
    "dev": {"file": "dev.jsonl"},
    "tests": {},
}


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return lively_model(encoder_folder, "decoder.initializer=spans", "inference.start=candidates")


def about_file(folder: Path, **changes: object) -> Path:
    path = folder / "about.yaml"
    kept = {key: value for key, value in {**ABOUT, **changes}.items() if value is not None}
    path.write_text(yaml.safe_dump(kept))
    return path


def labelled(ner: DiffusionNER, count: int) -> list[Sentence]:
    """Return sentences in which half of what the model finds is correct."""
    names = ("Ada", "Charles", "London")
    sentences = [Sentence([names[i % 3], "met", "Mary", str(i), "."]) for i in range(count)]
    for sentence, found in zip(sentences, ner.predict_sentences(sentences), strict=True):
        sentence.entities = found[::2]
    return sentences


# --- The file about a model -------------------------------------------------------------------


def test_corpora_of_the_yaml_file(tmp_path):
    sentence = Sentence(["Ada", "Acme", "Rex"], [Span(0, 1, "person"), Span(2, 3, "dog")])
    formats.write(tmp_path / "a.jsonl", [Sentence(["x"]), sentence, Sentence(["y"])])
    (tmp_path / "r.yaml").write_text("sources: [{file: a.jsonl, labels: {dog: ANIMAL}}]")
    mapped = {"file": "a.jsonl", "labels": {"person": "PER", "group": "ORG"}, "last": 2}
    about = read_about(about_file(tmp_path, dev={"recipe": "r.yaml"}, tests={"t": mapped}))
    dev, mapped_corpus = about.corpora
    assert [s.entities for s in dev.read()] == [[], [Span(2, 3, "ANIMAL")], []]
    first, second = mapped_corpus.read()
    assert (first.entities, first.types) == ([Span(0, 1, "PER")], ("ORG", "PER"))
    assert second.words == ["y"]


def test_corpora_are_relative_to_the_folder_and_recipes_to_the_file(tmp_path):
    (tmp_path / "data").mkdir()
    formats.write(tmp_path / "data" / "a.jsonl", [Sentence(["x"])])
    (tmp_path / "r.yaml").write_text("sources: [{file: a.jsonl, labels: {dog: ANIMAL}}]")
    path = about_file(tmp_path, dev={"recipe": "r.yaml"}, tests={"t": {"file": "a.jsonl"}})
    about = read_about(path, tmp_path / "data")
    plain = about_file(tmp_path, dev={"recipe": "r.yaml"}, tests={"t": "a.jsonl"})
    assert read_about(plain, tmp_path / "data") == about
    assert [len(one.read()) for one in about.corpora] == [1, 1]
    dotted = about_file(tmp_path, tests={"t": {"file": "./data/a.jsonl", "map": {"dog": "X"}}})
    (*_, corpus) = read_about(dotted, tmp_path / "elsewhere").corpora
    assert corpus.mapping == {"dog": "X"} and len(corpus.read()) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"more": 1}, "missing or unknown: more"),
        ({"use": 3}, "'use' must be text"),
        ({"tags": "ner"}, "'tags' must be a list"),
        ({"tests": []}, "'tests' must name corpora"),
        ({"tests": {}, "dev": None}, "nothing to measure on"),
        ({"tests": {"dev": {"file": "a"}}}, "none of them dev"),
        ({"dev": ["dev.jsonl"]}, "expected a file, or 'file' or 'recipe'"),
        ({"dev": {"file": "a", "recipe": "b"}}, "expected a file, or 'file' or 'recipe'"),
        ({"dev": {"file": "a", "first": 3}}, "expected a file, or 'file' or 'recipe'"),
        ({"dev": {"file": "a", "labels": []}}, "'labels' must map"),
        ({"dev": {"file": "a", "map": {}}}, "'map' must map"),
        ({"dev": {"file": "a", "last": 0}}, "'last' must be a number"),
    ],
)
def test_invalid_files(tmp_path, changes, words):
    with pytest.raises(DataError, match=words):
        read_about(about_file(tmp_path, **changes))


def test_unreadable_files(tmp_path, make):
    with pytest.raises(DataError, match="cannot read"):
        read_about(tmp_path / "none.yaml")
    with pytest.raises(DataError, match="is not YAML"):
        read_about(make("bad.yaml", "a: ["))
    with pytest.raises(DataError, match="all of them"):
        read_about(make("list.yaml", "[]"))


@pytest.mark.parametrize("name", ["en", "bio"])
def test_the_recipes_of_the_provided_models(name):
    about = read_about(MODELS / name / "recipe" / "card.yaml")
    assert all(about.texts.values())
    tests = [one for one in about.corpora if one.name != "dev"]
    assert tests and all("test" in one.given for one in tests)
    assert all(one.path.exists() for one in about.corpora if one.is_recipe)


# --- Figures ----------------------------------------------------------------------------------


def test_types_without_annotation_do_not_count(ner):
    """Predictions of types that are not annotated are not counted as errors."""
    sentences = labelled(ner, 12)
    for sentence in sentences:
        sentence.entities = [e for e in sentence.entities if e.label == "PER"]
    without = evaluate(ner, sentences)
    for sentence in sentences:
        sentence.types = ("PER",)
    report = evaluate(ner, sentences)
    assert set(report.per_type) == {"PER"}
    assert report.micro.correct == without.micro.correct
    assert report.micro.predicted < without.micro.predicted


def test_reliability_adds_up_to_the_calibration_error():
    random = np.random.default_rng(0)
    scores = np.append(random.uniform(0.3, 1, 200), 1.0)
    right = random.random(201) < scores**2
    predictions = PredictionScores(scores, right)
    bins = measuring.reliability(predictions)
    assert bins[:3] == [None] * 3 and all(bins[3:])
    assert sum(one.count for one in bins if one) == 201
    gap = sum(one.count * abs(one.score - one.right) for one in bins if one) / 201
    assert gap == pytest.approx(predictions.calibration_error)


def test_spread():
    assert measuring.spread([1.0, 2.0, 3.0]) == (2.0, 1.0)


# --- The command ------------------------------------------------------------------------------


@pytest.fixture
def quick_start(monkeypatch):
    """Replace the startup measurement, which takes seconds."""
    monkeypatch.setattr(startup, "measure", lambda *_: startup.Startup(1.5, 0.25, 321.0))


def test_a_card_is_written(ner, cli, tmp_path):
    """The whole card, with the scores that `evaluate` reports for the same corpus."""
    folder = tmp_path / "little"
    ner.save_pretrained(folder, precision="int8")
    formats.write(tmp_path / "dev.jsonl", labelled(ner, 30))
    test = {"file": "dev.jsonl", "labels": {"PER": "PER"}, "last": 20}
    about = about_file(tmp_path, tests={"few": test})
    given = ("--about", about, "--data", tmp_path, "--device", "cpu", "--sentences", 8)
    result = cli("card", folder, *given, main=main)
    assert result.status == 0, result.err
    text = (folder / CARD).read_text(encoding="utf-8")
    scores = tmp_path / "scores.json"
    options = ("--data", tmp_path / "dev.jsonl", "--json", scores)
    assert cli("evaluate", "--model", folder, *options).status == 0
    expected = json.loads(scores.read_text())

    head = registry.front_matter(folder / CARD)
    assert head["f1"]["dev"] == pytest.approx(100 * expected["micro"]["f1"], abs=0.01)
    assert 0 < head["f1"]["dev"] < 100 and list(head["f1"]) == ["dev", "few"]
    assert (head["language"], head["license"], head["tags"]) == ("en", "mit", ["ner"])
    assert expected["data"]["hash"] in text
    for label, row in expected["per_type"].items():
        assert f"| {label} | {100 * row['precision']:.2f} | {100 * row['recall']:.2f} |" in text
    assert f"| expected error | {expected['calibration_error']:.3f} |" in text
    assert "on 8 sentences" in text and "only PER (20 sentences" in text
    for said in (ABOUT["use"], ABOUT["limits"], ABOUT["training"]):
        assert said in text
    assert text.count("\n| candidates | ") == text.count("\n| noise | ") == 2
    assert (
        "python -m benchmarks card little --about about.yaml --data $DATA --sentences 8\n" in text
    )
    assert str(tmp_path) not in text
    resident = next(line for line in text.splitlines() if "resident memory" in line)
    assert float(resident.split("|")[2]) > 50


def test_a_model_without_initializer_starts_from_noise(
    encoder_folder, cli, tmp_path, quick_start, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    ner = lively_model(encoder_folder)
    ner.save_pretrained(tmp_path / "runs" / "plain")
    formats.write(tmp_path / "dev.jsonl", labelled(ner, 8))
    result = cli(
        "card", "runs/plain", "--about", about_file(tmp_path), "--device", "cpu", main=main
    )
    assert result.status == 0, result.err
    text = (tmp_path / "runs" / "plain" / CARD).read_text(encoding="utf-8")
    assert "\n# plain\n" in text and 'from_pretrained("runs/plain")' in text
    assert "python -m benchmarks card runs/plain --about about.yaml\n" in text
    assert "| candidates |" not in text and text.count("\n| noise | ") == 2
    assert "| MB of resident memory after that | 321 |" in text
    assert "on 8 sentences" in text and "--data" not in text


def test_a_model_trained_on_dev(ner, cli, tmp_path, quick_start):
    """Curves then use the first test corpus."""
    ner.save_pretrained(tmp_path / "full")
    formats.write(tmp_path / "test.jsonl", labelled(ner, 8))
    about = about_file(tmp_path, dev=None, tests={"web": {"file": "test.jsonl"}})
    result = cli("card", tmp_path / "full", "--about", about, "--device", "cpu", main=main)
    assert result.status == 0, result.err
    text = (tmp_path / "full" / CARD).read_text(encoding="utf-8")
    assert "on 8 sentences of web" in text
    assert "### dev" not in text and "sentences of dev" not in text
    assert list(registry.front_matter(tmp_path / "full" / CARD)["f1"]) == ["web"]


def test_curves_and_seeds(ner, tmp_path, quick_start, cli):
    sentences = labelled(ner, 10)
    formats.write(tmp_path / "dev.jsonl", sentences)
    about = read_about(about_file(tmp_path))
    figures = measuring.measure(tmp_path, ner, about, "cpu", None, lambda *_: None)

    def f1(**options: object) -> float:
        return 100 * evaluate(ner, sentences, **options).micro.f1

    assert figures.steps["noise"][2] == f1(start="noise", steps=5)
    assert figures.spans["candidates"] == [f1(spans=k) for k in ("auto", 10, 20, 60)]
    assert figures.seeds == [f1(start="noise", seed=seed) for seed in range(5)]
    assert len(set(figures.seeds)) > 1
    assert figures.speed.words == pytest.approx(5 * figures.speed.sentences)


def test_help_describes_the_yaml_file(cli):
    text = " ".join(cli("card", "--help", main=main).out.replace("│", " ").split())
    assert "Only dev is optional" in text and "models/en/recipe/card.yaml is an example" in text
    assert "described above" in text


def test_an_unknown_label_is_refused(ner, refused, tmp_path):
    ner.save_pretrained(tmp_path / "model")
    formats.write(tmp_path / "dev.jsonl", [Sentence(["Rex"], [Span(0, 1, "DOG")])])
    err = refused(
        "card", tmp_path / "model", "--about", about_file(tmp_path), "--device", "cpu", main=main
    )
    assert "unknown label 'DOG'" in err
    assert not (tmp_path / "model" / CARD).exists()
