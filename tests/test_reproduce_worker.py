"""The worker that measures points of one model, called in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from corpus_files import EXCERPT
from reproduction import CONFIGS

from benchmarks import shapes
from benchmarks.subjects import Subject
from diffusionner import formats
from diffusionner.corpus import Sentence
from diffusionner.evaluation import evaluate
from models import LABELS, lively_model
from reproduce import worker
from reproduce.records import decode_counts
from reproduce.tables import BELIEF_POINTS, DEV, SPEED, TEST, UNRECORDED_POINTS, point, shape_point


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(worker, "SECONDS", 0.01)


def measured(tmp_path: Path, model: Path, points: list, **changes: Any) -> tuple[dict, dict]:
    """Return the description of the model and the results by name."""
    kinds = [
        {"name": p.name, "kind": p.kind, "split": p.split, "options": dict(p.options)}
        for p in points
    ]
    job = {
        "model": str(model),
        "shape": None,
        "preset": str(CONFIGS / "demo.yaml"),
        "overrides": [],
        "files": {"dev": [str(EXCERPT), None]},
        "points": kinds,
        "out": str(tmp_path / "out.jsonl"),
        **changes,
    }
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job))
    assert worker.main(path) == 0
    about, *results = [json.loads(line) for line in (tmp_path / "out.jsonl").open()]
    return about["about"], {one["point"]: one["result"] for one in results}


def test_a_trained_model(encoder_folder, tmp_path):
    folder = tmp_path / "model"
    lively_model(encoder_folder, "encoder.max_subwords=128").save_pretrained(folder)
    known = [s for s in formats.read(EXCERPT) if {e[2] for e in s.entities} <= set(LABELS)]
    data = tmp_path / "dev.jsonl"
    formats.write(data, known)
    files = {"dev": [str(data), None]}
    points = [DEV, SPEED, *(point("speed", spans=k, steps=s) for s in (1, 2) for k in (5, 9))]
    about, results = measured(tmp_path, folder, points, files=files)
    assert about["parameters"] > 1000
    assert results[DEV.name]["sentences"] == len(known)
    assert 0 <= results[DEV.name]["micro"]["f1"] < 1
    assert results[SPEED.name]["sentences_per_second"]["median"] > 0
    assert results[SPEED.name]["turns"] == worker.TURNS_ALONE, "the only one of its group"
    assert len(results) == len(points)
    for one in points[2:]:
        assert results[one.name]["turns"] == worker.TURNS
        assert results[one.name]["sentences_per_second"]["median"] > 0


def test_the_initializer_alone_gets_thresholds_of_its_own(encoder_folder, tmp_path):
    ner = lively_model(
        encoder_folder, "decoder.initializer=types", "inference.start=candidates",
        "inference.phi=2.9",
    )  # fmt: skip
    with torch.no_grad():
        ner.network.decoder.initializer.project.bias[-1] += 5
    ner.save_pretrained(tmp_path / "model")
    words = [s.words for s in formats.read(EXCERPT)[:90]]
    # Everything that the initializer finds is right, so no score is too low.
    found = ner.predict_sentences([Sentence(own) for own in words], steps=0, phi=0)
    known = [Sentence(own, entities) for own, entities in zip(words, found, strict=True)]
    parts = {"dev": known[:60], "test": known[60:]}
    for name, sentences in parts.items():
        formats.write(tmp_path / f"{name}.jsonl", sentences)
    files = {name: [str(tmp_path / f"{name}.jsonl"), None] for name in parts}
    points = [TEST, point("score", "test", steps=0), BELIEF_POINTS[1]]
    _, results = measured(tmp_path, tmp_path / "model", points, files=files)
    believing = worker.with_beliefs(Subject("trained", tmp_path / "model", "cpu"))
    assert believing.engine.beliefs is not None and ner.engine.beliefs is None
    expected = [
        evaluate(ner, parts["test"]),
        evaluate(ner, parts["test"], steps=0, calibrate_on=parts["dev"]),
        evaluate(believing, parts["test"], calibrate_on=parts["dev"]),
    ]
    assert expected[1].micro.predicted > evaluate(ner, parts["test"], steps=0).micro.predicted
    for one, report in zip(points, expected, strict=True):
        result = results[one.name]
        assert result["micro"]["predicted"] == report.micro.predicted
        counts = decode_counts(result["counts"])
        assert counts.tolist() == report.measure_counts["micro"].tolist()
        assert len(counts) == result["sentences"] == 30


def test_speeds_that_differ_in_steps_are_grouped():
    kinds = [("score", 5, 1), ("speed", 5, 1), ("speed", 9, 1), ("speed", 5, 2), ("score", 5, 2)]
    points = [
        {
            "name": f"{kind} {k} {s}",
            "kind": kind,
            "split": "dev",
            "options": {"spans": k, "steps": s},
        }
        for kind, k, s in kinds
    ]
    together = [[one["name"] for one in group] for group in worker.groups(points)]
    assert together == [["score 5 1"], ["speed 5 1", "speed 5 2"], ["speed 9 1"], ["score 5 2"]]


def test_speed_without_cuda_graphs(encoder_folder, monkeypatch, tmp_path):
    folder, loaded = tmp_path / "model", []
    lively_model(encoder_folder, "encoder.max_subwords=128").save_pretrained(folder)
    load = worker.Subject.load
    monkeypatch.setattr(worker.Subject, "load", lambda one: loaded.append(one) or load(one))
    points = [point("speed", steps=5), *UNRECORDED_POINTS]
    _, results = measured(tmp_path, folder, points)
    assert set(results) == {one.name for one in points}
    assert [one.cuda_graphs for one in loaded] == [True, False, False]


@pytest.mark.parametrize(("method", "steps"), [("diffusion", 5), ("autoregressive", None)])
def test_a_shape_with_random_weights(monkeypatch, tmp_path, method, steps):
    monkeypatch.setitem(shapes.SHAPES, "tiny", (2, 32, 4, 64, 5000))
    speed = shape_point(steps)
    nowhere = tmp_path / "nowhere"
    told = [f"method={method}", "decoder.heads=4"]
    _, results = measured(tmp_path, nowhere, [speed], shape="tiny", overrides=told)
    assert results[speed.name]["sentences_per_second"]["median"] > 0
    assert not nowhere.exists()
