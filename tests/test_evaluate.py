"""`evaluate`: a model's report on a corpus, as an object and as printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from corpus_files import EXCERPT

from diffusionner import DiffusionNER, formats
from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError, SettingsError
from diffusionner.evaluation import Report, evaluate, score, score_sentences
from diffusionner.evaluation.model import fit_scores


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


# Corpora with other labels


def test_types_are_mapped_to_the_labels_of_a_corpus(folder, gold, cli, refused, tmp_path):
    ner = DiffusionNER.from_pretrained(folder)
    kept, other = ner.labels[:2]  # it predicts entities of the first type only
    renamed = [
        Sentence(
            s.words, [e._replace(label="X") for e in s.entities if e.label == kept], types=("X",)
        )
        for s in gold
    ]
    expected = [
        [e._replace(label="X") for e in found if e.label == kept]
        for found in ner.predict_sentences(gold, threshold=0)
    ]
    report = evaluate(ner, renamed, mapping={kept: "X"}, threshold=0)
    assert report == score_sentences(renamed, expected)
    assert report.micro.gold == report.micro.correct > 0
    assert evaluate(ner, renamed, mapping={other: "X"}, threshold=0).micro.predicted == 0
    both = evaluate(ner, renamed, mapping={kept: "X", other: "X"}, threshold=0)
    assert both == report
    compared = evaluate(ner, renamed, mapping={kept: "X"}, threshold=0, compare={"spans": 3})
    assert compared.other is not None
    formats.write(tmp_path / "x.jsonl", renamed)
    command = ("evaluate", "--model", folder, "--data", tmp_path / "x.jsonl", "--threshold", 0)
    cli(*command, "--map", f"{kept}=X", "--json", tmp_path / "scores.json")
    written = json.loads((tmp_path / "scores.json").read_text())
    assert written["micro"]["correct"] == report.micro.correct
    assert "write for example --map person=PER" in refused(*command, "--map", kept)
    assert "no type 'nothing'" in refused(*command, "--map", "nothing=X")


# Two settings of one model


def test_two_settings_are_compared_as_score_compares_two_files(folder, gold, cli, tmp_path):
    ner, other = DiffusionNER.from_pretrained(folder), {"spans": 3, "seed": 1}
    report = evaluate(ner, gold, compare=other, threshold=0, resamples=200)
    assert report == evaluate(ner, gold, threshold=0)
    second = evaluate(ner, gold, threshold=0, **other)
    assert report.other.report == second != report
    assert report.other.name == "spans=3, seed=1"
    found = report.other.differences["micro"]
    assert found.f1 == report.micro.f1 - second.micro.f1
    assert found.interval[0] <= found.f1 <= found.interval[1] and 0 < found.p <= 1
    shown = str(report)
    for number in (report.micro.f1, second.micro.f1):
        assert f"{100 * number:.2f}" in shown.rpartition("Comparison")[2]
    # The same from files, with `score`.
    predicted = {
        name: ner.predict_sentences(gold, threshold=0, **more)
        for name, more in (("ours", {}), ("theirs", other))
    }
    for name, entities in {"gold": [s.entities for s in gold], **predicted}.items():
        sentences = [Sentence(s.words, e) for s, e in zip(gold, entities, strict=True)]
        formats.write(tmp_path / f"{name}.jsonl", sentences)
    files = [tmp_path / f"{name}.jsonl" for name in ("gold", "ours", "theirs")]
    scores, mine = tmp_path / "scores.json", tmp_path / "mine.json"
    many = ("--resamples", 200, "--json")
    assert cli("score", *files[:2], "--other", files[2], *many, scores).status == 0
    arguments = ("--data", files[0], "--model", folder, "--threshold", 0)
    result = cli("evaluate", *arguments, "--compare", "spans=3", "--compare", "seed=1", *many, mine)
    assert result.status == 0 and "other: spans=3, seed=1" in result.out
    expected, written = (json.loads(path.read_text())["other"] for path in (scores, mine))
    assert written["differences"] == expected["differences"]
    assert written["micro"] == expected["micro"]
    assert expected["differences"]["micro"]["p"] == pytest.approx(found.p, abs=1e-6)


def test_each_setting_gets_thresholds_of_its_own(folder, gold):
    """Fitted on another corpus; those of the model stay."""
    ner = DiffusionNER.from_pretrained(folder)
    dev = [Sentence(s.words, s.entities) for s in gold] * 10
    report = evaluate(ner, gold, calibrate_on=dev, compare={"spans": 3})
    for more, found in (({}, report), ({"spans": 3}, report.other.report)):
        fitted, _ = fit_scores(ner, dev, "dev", **more)
        assert found == evaluate(fitted, gold, **more) and fitted.calibration != ner.calibration
    assert report.prediction_scores.calibration_error < 0.2
    assert ner.calibration is None
    with pytest.raises(DataError, match="calibrate_on: the model predicts too few entities"):
        evaluate(ner, gold, calibrate_on=gold[:1])


def test_wrong_comparisons_are_refused_at_once(folder, gold, refused, tmp_path):
    def fail(*_: int) -> None:
        raise AssertionError("predicted first")

    with pytest.raises(SettingsError, match=r"did you mean 'inference\.steps'"):
        evaluate(folder, gold, compare={"step": 0}, progress=fail)
    formats.write(tmp_path / "gold.jsonl", gold)
    arguments = ("evaluate", "--model", folder, "--data", tmp_path / "gold.jsonl", "--compare")
    assert "write for example --compare steps=0" in refused(*arguments, "steps")
    assert "inference.steps='many' is not valid" in refused(*arguments, "steps=many")


def test_labels_unknown_to_the_model_are_refused(folder):
    with pytest.raises(DataError, match="unknown label"):
        evaluate(folder, EXCERPT)


def test_a_printed_report_is_a_table():
    gold = [[Span(0, 2, "LOC"), Span(0, 1, "LONGER")], [Span(0, 1, "LOC")]]
    report = score(gold, [gold[0], []])
    lines = str(report).splitlines()
    assert lines[0].split() == ["precision", "recall", "F1", "support"]
    assert "strict, micro       100.00   66.67   80.00        3" in lines
    assert lines[-2:] == [
        "LOC                 100.00   50.00   66.67        2",
        "LONGER              100.00  100.00  100.00        1",
    ]
