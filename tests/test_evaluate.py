"""`evaluate`: a model's report on a corpus, as an object and as printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from corpora import EXCERPT

from diffusionner import DiffusionNER, formats
from diffusionner.corpus import Sentence
from diffusionner.errors import DataError
from diffusionner.evaluation import Report, evaluate, score, score_sentences


@pytest.fixture
def gold(folder: Path) -> list[Sentence]:
    """Sentences in which every second entity that the model predicts is correct."""
    sentences = [Sentence(s.words) for s in formats.read(EXCERPT) if len(s.words) < 20][:12]
    predicted = DiffusionNER.from_pretrained(folder).predict_sentences(sentences, threshold=0)
    for sentence, spans in zip(sentences, predicted, strict=True):
        sentence.entities = spans[::2]
    return sentences


def test_a_model_and_sentences_by_object_or_by_path(folder, gold, tmp_path):
    ner = DiffusionNER.from_pretrained(folder)
    formats.write(tmp_path / "test.jsonl", gold)
    calls = []
    report = evaluate(ner, gold, threshold=0, progress=lambda *counts: calls.append(counts))
    assert isinstance(report, Report)
    assert report == score_sentences(gold, ner.predict_sentences(gold, threshold=0))
    assert 0 < report.micro.f1 < 1 and report.micro.recall == 1
    assert calls[-1][0] == calls[-1][1] > 0
    assert evaluate(str(folder), str(tmp_path / "test.jsonl"), threshold=0) == report
    assert evaluate(folder, tmp_path / "test.jsonl", format="jsonl", threshold=0) == report
    assert evaluate(ner, gold, threshold=1).micro.predicted < report.micro.predicted


def test_the_scores_of_predictions_are_judged_too(folder, gold):
    report = evaluate(folder, gold, threshold=0)
    assert report.prediction_scores is not None
    assert report.prediction_scores.correct.sum() == report.micro.correct
    assert len(report.prediction_scores.scores) == report.micro.predicted
    written = json.loads(json.dumps(report.to_dict()))
    assert 0 <= written["calibration_error"] <= 1
    assert written["micro"]["f1"] == pytest.approx(report.micro.f1, abs=1e-6)


def test_labels_unknown_to_the_model_are_refused(folder):
    with pytest.raises(DataError, match="unknown label"):
        evaluate(folder, EXCERPT)


def test_a_printed_report_is_a_table():
    gold = [[(0, 2, "LOC"), (0, 1, "LONGER")], [(0, 1, "LOC")]]
    report = score(gold, [[(0, 2, "LOC"), (0, 1, "LONGER")], []])
    lines = str(report).splitlines()
    assert lines[0].split() == ["precision", "recall", "F1", "support"]
    assert "strict, micro       100.00   66.67   80.00        3" in lines
    assert lines[-2:] == [
        "LOC                 100.00   50.00   66.67        2",
        "LONGER              100.00  100.00  100.00        1",
    ]
