"""`python -m benchmarks`: the commands beside `speed`, with tiny models."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from corpus_files import EXCERPT

from benchmarks import shapes
from benchmarks.cli import main
from benchmarks.refine import jittered
from diffusionner.corpus import Sentence, Span
from models import lively_model


@pytest.fixture
def run(cli):
    return partial(cli, main=main)


@pytest.fixture(scope="module")
def model(encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lively") / "model"
    start = "inference.start=candidates"
    changes = ("encoder.max_subwords=128", "decoder.initializer=types", start)
    lively_model(encoder_folder, *changes).save_pretrained(folder)
    return folder


def test_help_lists_the_commands(run):
    names = "speed profile host threads spacy serve convert card screenshots".split()
    result = run("--help")
    assert result.status == 0 and all(f" {name} " in result.out for name in names)


def test_host_time(run, model):
    result = run("host", "--model", model, "--data", EXCERPT, "--sentences", 9, "--turns", 2)
    assert result.status == 0, result.err
    rows = [line for line in result.out.splitlines() if "candidates" in line or "noise" in line]
    assert len(rows) == 4


def test_messy(run, model):
    result = run("messy", "--model", model, "--data", EXCERPT, "--sentences", 30)
    assert result.status == 0, result.err
    rows = {line[:32].strip(): line.split() for line in result.out.splitlines()[2:]}
    for shape in ("stretch", "stretch, lower case", "one a line", "prose", "wrapped at 72", "CSV"):
        gold, alone, found = map(int, rows[shape][-6:-3])
        assert gold > 5 and alone > 5 and found > 5
    assert rows["stretch"][-6] == rows["one a line"][-6], "the same gold entities"


def test_threads(run, model):
    given = ("--data", EXCERPT, "--sentences", 9, "--turns", 1, "--counts", 1, "--busy", 1)
    result = run("threads", "--model", model, *given)
    assert result.status == 0, result.err
    assert "active" in result.out and "passive" in result.out


@pytest.mark.parametrize("shape", [False, True])
def test_profile(run, model, monkeypatch, shape):
    monkeypatch.setitem(shapes.SHAPES, "tiny", (2, 32, 4, 64, 5000))
    subject = ("--shape", "tiny") if shape else ("--model", model)
    given = ("--data", EXCERPT, "--sentences", 9, "--batch-size", 8, "--repeats", 1, "--top", 1)
    result = run("profile", *subject, *given)
    assert result.status == 0, result.err
    assert "transformer" in result.out and "a step" in result.out


def test_profile_needs_one_subject(refused):
    assert "either --model or --shape" in refused("profile", "--data", EXCERPT, main=main)


def test_convert(run):
    result = run("convert", "--sentences", 300, "--to", "conll")
    assert result.status == 0, result.err
    assert "300 sentences" in result.out and "peak" in result.out


def test_refine(run, model):
    arguments = ("--data", EXCERPT, "--dictionary", EXCERPT, "--sentences", 9, "--steps", 1)
    result = run("refine", "--model", model, *arguments, "--steps", 2)
    assert result.status == 0, result.err
    rows = [line.split(" | ") for line in result.out.splitlines() if "| jittered" in line]
    assert [row[2] for row in rows] == ["1", "2"] and all("moved" in row[5] for row in rows)
    assert sum("| dictionary" in line for line in result.out.splitlines()) == 2


def test_jitter():
    words = "Ada Lovelace met Charles Babbage in London today .".split()
    gold = [Sentence(words, [Span(0, 2, "PER"), Span(6, 7, "LOC")])] * 50 + [Sentence(["Rome"])]
    moved = jittered(gold, ["LOC", "PER"], seed=1)
    assert moved == jittered(gold, ["LOC", "PER"], seed=1) != jittered(gold, ["LOC", "PER"], 2)
    pairs = [
        p for s, own in zip(gold, moved, strict=True) for p in zip(s.entities, own, strict=True)
    ]
    for before, after in pairs:
        assert before[:2] != after[:2] and before.start < after.end and after.start < before.end
        assert max(abs(before.start - after.start), abs(before.end - after.end)) <= 3
    assert 5 < sum(before.label != after.label for before, after in pairs) < 40
    assert moved[-1] == []


def test_spacy_pipeline_is_missing(refused, model):
    given = ("--spacy", "./nowhere", "--sentences", 2, "--cores", 999)
    assert "cannot load spaCy's pipeline" in refused("spacy", model, EXCERPT, *given, main=main)
