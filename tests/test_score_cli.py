"""`diffusionner score`, and the output that `evaluate` shares with it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from corpus_files import EXCERPT
from typer.testing import CliRunner, Result

from diffusionner import DiffusionNER, formats
from diffusionner.cli import app
from diffusionner.corpus import Sentence, Span
from diffusionner.data.fingerprint import fingerprint
from diffusionner.evaluation.scorer import score, score_sentences


@pytest.fixture
def run(monkeypatch) -> Callable[..., Result]:
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*arguments: object) -> Result:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, (result.output, result.exception)
        return result

    return invoke


def shifted(sentences: list[Sentence], every: int) -> list[list[Span]]:
    """Predictions in which every n-th entity is one word too short or missing."""
    number = 0
    result = []
    for sentence in sentences:
        found = []
        for start, end, label in sentence.entities:
            number += 1
            if number % every:
                found.append(Span(start, end, label))
            elif end - start > 1:
                found.append(Span(start, end - 1, label))
        result.append(found)
    return result


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Gold, a prediction and a worse one."""
    gold = formats.read(EXCERPT)[:120]
    paths = tuple(tmp_path / name for name in ("gold.jsonl", "a.jsonl", "b.jsonl"))
    formats.write(paths[0], gold)
    for path, every in ((paths[1], 7), (paths[2], 3)):
        found = shifted(gold, every)
        formats.write(path, [Sentence(s.words, e) for s, e in zip(gold, found, strict=True)])
    return paths


def test_score(run, files, tmp_path):
    gold, predicted, other = files
    result = run(
        "score", gold, predicted, "--other", other,
        "--json", tmp_path / "s.json", "--html", tmp_path / "new" / "s.html",
    )  # fmt: skip
    sentences = formats.read(gold)
    mark = fingerprint(sentences)
    report = score_sentences(sentences, shifted(sentences, 7))
    second = score_sentences(sentences, shifted(sentences, 3))
    assert report.micro.f1 > second.micro.f1

    written = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert written["data"] == {"file": str(gold), **mark.to_dict()}
    assert written["predicted"] == str(predicted)
    assert written["compared_by"] == "words"
    expected = json.loads(json.dumps(report.to_dict()))
    assert {key: written[key] for key in expected} == expected
    low, high = written["intervals"]["micro"]["f1"]
    assert low < written["micro"]["f1"] < high
    assert written["intervals"]["resamples"] == 1000
    assert written["intervals"]["per_type"].keys() == written["per_type"].keys()
    assert written["other"]["micro"] == json.loads(json.dumps(second.to_dict()))["micro"]
    between = written["other"]["differences"]["micro"]
    assert between["f1"] == pytest.approx(report.micro.f1 - second.micro.f1, abs=1e-6)
    assert between["p"] < 0.01

    for text in (
        str(mark), f"{100 * report.micro.f1:.2f}", "strict, micro", "wrong boundary", "depth 1",
        f"{100 * low:.2f} to {100 * high:.2f}", "Types of entities", f"{between['p']:.4f}",
    ):  # fmt: skip
        assert text in result.output
    page = (tmp_path / "new" / "s.html").read_text(encoding="utf-8")
    assert str(mark) in page
    assert f"{100 * report.micro.f1:.2f}" in page
    assert page.count("<article") == 120


def test_a_perfect_prediction(run, files, tmp_path):
    gold, _, _ = files
    run("score", gold, gold, "--json", tmp_path / "s.json")
    written = json.loads((tmp_path / "s.json").read_text())
    for name in ("micro", "overlap", "boundaries", "types", "nested"):
        assert written[name]["f1"] == 1.0
    assert written["intervals"]["micro"] == {
        fraction: [1.0, 1.0] for fraction in ("precision", "recall", "f1")
    }
    wrong = {key: n for key, n in written["errors"].items() if key != "correct"}
    assert set(wrong.values()) == {0}


def test_the_seed_and_the_number_of_resamples(run, files, tmp_path):
    gold, predicted, other = files

    def intervals(*options: object) -> dict:
        path = tmp_path / "s.json"
        run("score", gold, predicted, "--other", other, "--json", path, *options)
        return json.loads(path.read_text())["intervals"]

    first = intervals("--seed", 5, "--resamples", 200)
    assert first == intervals("--seed", 5, "--resamples", 200)
    assert first != intervals("--seed", 6, "--resamples", 200)
    assert (first["seed"], first["resamples"]) == (5, 200)


def test_formats(run, tmp_path):
    (tmp_path / "gold.jsonl").write_text(
        '{"tokens": ["Ada", "met", "Zoë"], "entities": [{"start": 0, "end": 1, "label": "PER"}]}'
    )
    (tmp_path / "pred.txt").write_text("Ada B-PER\nmet O\nZoë B-PER\n", encoding="utf-8")
    arguments = ("score", tmp_path / "gold.jsonl", tmp_path / "pred.txt")
    plain = run(*arguments).output
    assert plain == run(*arguments, "--gold-format", "jsonl", "--pred-format", "conll").output
    assert re.search(r"PER\s+50\.00\s+100\.00\s", plain)


def test_another_tokeniser(run, tmp_path):
    text = "Ada met Bob. He left."
    entities = [{"start": 0, "end": 3, "label": "PER"}, {"start": 8, "end": 11, "label": "PER"}]
    path = tmp_path / "gold.jsonl"
    path.write_text(json.dumps({"text": text, "entities": entities}))
    result = run(
        "score", path, path, "--pred-format", "jsonl:words=spaces", "--json", tmp_path / "s.json"
    )
    assert "compared by characters" in result.output
    written = json.loads((tmp_path / "s.json").read_text())
    assert written["compared_by"] == "characters"
    assert written["micro"]["f1"] == 1.0
    assert written["data"]["sentences"] == 2


def test_a_table_that_does_not_fit_is_not_squeezed(run, tmp_path, monkeypatch):
    labels = [f"A_LONG_LABEL_{i:02}" for i in range(30)]
    gold = [Sentence(["w"], [Span(0, 1, label)]) for label in labels]
    formats.write(tmp_path / "g.jsonl", gold)
    monkeypatch.setenv("COLUMNS", "80")
    output = run("score", tmp_path / "g.jsonl", tmp_path / "g.jsonl").output
    assert "Types of entities with the same boundaries: too wide" in output
    *tables, caption = output.splitlines()
    assert all(len(line) <= 80 for line in tables)
    assert str(fingerprint(gold)) in caption


BROKEN = {
    "other words": (
        '{"tokens": ["Eve"], "entities": []}',
        " differ from word 0 on: 'Ada met' against 'Eve'",
    ),
    "too short": ('{"tokens": ["Ada", "met"]}', "ends after 1 sentences"),
    "not JSON": ('{"tokens": ["Ada"', "pred.jsonl:1: not valid JSON"),
    "out of range": (
        '{"tokens": ["Ada"], "entities": [{"start": 0, "end": 4, "label": "A"}]}',
        "lies outside its sentence",
    ),
    "empty": ("", "has no sentences"),
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("second", [False, True])
def test_bad_predictions(refused, tmp_path, broken, second):
    content, message = BROKEN[broken]
    gold, predicted, good = (tmp_path / f"{n}.jsonl" for n in ("gold", "pred", "good"))
    gold.write_text('{"tokens": ["Ada", "met"]}\n{"tokens": ["Bob"]}\n')
    good.write_text(gold.read_text())
    predicted.write_text(content)
    paths = (gold, good, "--other", predicted) if second else (gold, predicted)
    assert message in refused(
        "score", *paths, "--json", tmp_path / "s.json", "--html", tmp_path / "s.html"
    )
    assert len(list(tmp_path.iterdir())) == 3


def test_bad_options(refused, files, tmp_path):
    gold, predicted, _ = files
    assert "no such file" in refused("score", gold, tmp_path / "none")
    assert "unknown format 'conl'" in refused("score", gold, predicted, "--pred-format", "conl")
    (tmp_path / "file").write_text("")
    message = refused("score", gold, predicted, "--html", tmp_path / "file" / "s.html")
    assert "cannot be written" in message


@pytest.mark.parametrize("options", [("--resamples", "0"), ("--html-sentences", "-1")])
def test_numbers_out_of_range(files, options):
    result = CliRunner().invoke(app, ["score", *map(str, files[:2]), *options])
    assert result.exit_code == 2
    assert options[0] in result.output


def test_scores_of_discontinuous_entities(cli, tmp_path):
    """Predictions as `annotate` writes them."""
    words = "Muscle pain and stiffness".split()
    pain = {"start": 0, "end": 2, "label": "S"}
    stiffness = {"start": 0, "end": 4, "label": "S", "fragments": [[0, 1], [3, 4]]}
    cut = {"start": 0, "end": 4, "label": "S", "fragments": [[0, 2], [3, 4]]}
    for name, entities in {"gold": [pain, stiffness], "a": [pain, cut], "b": [stiffness]}.items():
        line = json.dumps({"tokens": words, "entities": entities})
        (tmp_path / f"{name}.jsonl").write_text(line + "\n")
    files = [tmp_path / f"{name}.jsonl" for name in ("gold", "a")]
    options = ("--other", tmp_path / "b.jsonl", "--json", tmp_path / "s.json")
    page = tmp_path / "s.html"
    result = cli("score", *files, *options, "--html", page, "--resamples", 20)
    assert result.status == 0, result.err
    scores = json.loads((tmp_path / "s.json").read_text())
    assert (scores["micro"]["correct"], scores["words"]["correct"]) == (1, 3)
    assert scores["discontinuous"]["f1"] == 0 and "irregular" not in scores
    assert scores["other"]["discontinuous"]["f1"] == 1
    assert scores["other"]["differences"]["discontinuous"]["f1"] == -1
    assert scores["intervals"]["discontinuous"]["f1"] == [0, 0]
    summary = result.out.split("\n\n")[0]
    assert re.search(r"^words +100.00 +100.00 +100.00 .* 3$", summary, re.MULTILINE)
    assert re.search(r"^discontinuous +0.00 +0.00 +0.00 .* 1$", summary, re.MULTILINE)
    assert "misaligned" not in summary
    assert "Muscle … stiffness" in page.read_text(encoding="utf-8")


def test_evaluate_is_the_same_code(run, folder, tmp_path):
    """With an annotation that the model cannot find: it counts as gold all the same."""
    sentences = [s for s in formats.read(EXCERPT) if len(s.words) < 20][:12]
    lines = []
    for sentence in sentences:
        entities = [e._asdict() for e in sentence.entities if e.label in ("LOC", "PER")]
        lines.append({"tokens": sentence.words, "entities": entities})
    lines[0]["tokens"][0] = "Anti-Ada"
    lines[0]["irregular"] = [{"parts": [[5, 8]], "label": "PER"}]
    path = tmp_path / "gold.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    result = run(
        "evaluate", "--model", folder, "--data", path, "--format", "jsonl", "--threshold", 0,
        "--json", tmp_path / "s.json", "--html", tmp_path / "s.html", "--resamples", 100,
    )  # fmt: skip
    gold = formats.read(path)
    found = DiffusionNER.from_pretrained(folder).predict_sentences(gold, threshold=0)
    expected = score_sentences(gold, found).to_dict()
    assert expected["micro"]["gold"] == score([s.entities for s in gold], found).micro.gold + 1
    written = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert {key: written[key] for key in expected} == json.loads(json.dumps(expected))
    assert written["micro"]["predicted"] > 0
    assert written["irregular"]["gold"] == 1
    assert written["data"] == {"file": str(path), **fingerprint(gold).to_dict()}
    assert written["model"] == str(folder)
    assert written["intervals"]["resamples"] == 100
    assert str(fingerprint(gold)) in result.output
    assert (tmp_path / "s.html").read_text(encoding="utf-8").count("<article") == 12
