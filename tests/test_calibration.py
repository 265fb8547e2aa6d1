"""Calibration: fitting, thresholds by type, precedence of settings, the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from folders import edit_config
from plain import plain_inference

from diffusionner import DiffusionNER, formats
from diffusionner.corpus import Sentence, Span
from diffusionner.errors import CheckpointError, SettingsError
from diffusionner.inference.calibration import (
    MIN_PER_KNOT,
    expected_calibration_error,
    fit_calibration,
    outcomes,
)
from diffusionner.inference.decoding import DEFAULT_PHI, DecodedEntity, ScoreRule
from diffusionner.settings import Settings
from diffusionner.storage.calibration import Calibration, load_calibration
from models import lively_model

LABELS = ["A", "B"]


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return lively_model(encoder_folder)


def square(summed: float) -> float:
    return (summed / 3) ** 2


def late(summed: float) -> float:
    return 0.9 * (summed > 2.6)


def corpus(
    count: int, chances: Sequence[Callable[[float], float]] = (square, square), seed: int = 0
) -> tuple[list[Sentence], list[list[DecodedEntity]]]:
    """Return sentences of two words and one predicted entity for each, with a random sum.

    chances: for each type, the probability of being right, given the sum.
    """
    random = np.random.default_rng(seed)
    sentences, found = [], []
    for _ in range(count):
        type_id, summed = int(random.integers(2)), float(random.uniform(0, 3))
        right = random.random() < chances[type_id](summed)
        span = Span(0, 1, LABELS[type_id]) if right else Span(1, 2, LABELS[type_id])
        sentences.append(Sentence(["a", "b"], [span]))
        found.append([DecodedEntity(0, 0, type_id, summed, summed / 3, 1)])
    return sentences, found


def test_scores_are_the_share_of_right_entities():
    calibration = fit_calibration(*corpus(20_000), LABELS)
    assert calibration is not None
    sums = np.linspace(0.3, 2.8, 20)
    assert np.abs(calibration.scores(sums) - square(sums)).max() < 0.05
    sums, _, right, *_ = outcomes(*corpus(20_000, seed=1), LABELS)  # other sentences
    assert expected_calibration_error(calibration.scores(sums), right) < 0.02
    assert expected_calibration_error(sums / 3, right) > 0.1


def test_scores_do_not_decrease_and_knots_have_enough_entities():
    calibration = fit_calibration(*corpus(500), LABELS)
    assert calibration is not None
    assert (np.diff(calibration.sums) > 0).all()
    assert (np.diff(calibration.probabilities) >= 0).all()
    assert 2 <= len(calibration.sums) <= 500 // MIN_PER_KNOT
    assert calibration.probabilities[0] > 0 and calibration.probabilities[-1] < 1


def test_many_equal_sums():
    sentences, found = corpus(400)
    found = [
        [one._replace(summed_probability=1.0 if one.summed_probability < 1.5 else 2.0)]
        for (one,) in found
    ]
    calibration = fit_calibration(sentences, found, LABELS)
    assert calibration is not None
    assert list(calibration.sums) == [1.0, 2.0]
    assert calibration.probabilities[0] < calibration.probabilities[1]


def test_too_few_entities_give_no_calibration():
    assert fit_calibration(*corpus(2 * MIN_PER_KNOT - 1), LABELS) is None
    assert fit_calibration([Sentence(["a"])], [[]], LABELS) is None


def test_min_sum_inverts_scores():
    calibration = Calibration((1.0, 2.0, 2.5), (0.2, 0.2, 0.9), {})
    for score in (0.21, 0.5, 0.9):
        assert calibration.scores([calibration.min_sum(score)])[0] == pytest.approx(score)
    assert calibration.min_sum(0.1) == calibration.min_sum(0.2) == 0.0
    assert calibration.min_sum(0.91) == np.inf


def test_frequent_types_have_their_own_thresholds():
    calibration = fit_calibration(*corpus(20_000, (square, late)), LABELS)
    assert calibration is not None
    assert calibration.thresholds["A"] < calibration.thresholds["B"]
    few = fit_calibration(*corpus(80, (square, late)), LABELS)
    assert few is not None
    assert few.thresholds == {"A": 0.5, "B": 0.5}


def rule(calibration: Calibration | None, **options: float) -> ScoreRule:
    return ScoreRule(dataclasses.replace(plain_inference(), **options), LABELS, calibration)


def test_precedence_of_phi_threshold_and_calibration():
    fitted = Calibration((1.0, 2.0), (0.0, 1.0), {"A": 0.5, "B": 0.75})
    assert rule(fitted).min_sums.tolist() == [1.5, 1.75]
    assert rule(fitted, threshold=0.25).min_sums.tolist() == [1.25, 1.25]
    assert rule(fitted, phi=2.2).min_sums.tolist() == [2.2, 2.2]
    assert rule(None).min_sums.tolist() == [DEFAULT_PHI, DEFAULT_PHI]
    assert rule(None, threshold=0.5).min_sums.tolist() == [1.5, 1.5]
    assert rule(fitted).scores(np.array([1.25])) == 0.25
    assert rule(None).scores(np.array([1.5])) == 0.5


@pytest.mark.parametrize(("missed", "expected"), [(0, 0.5), (25, 0.45), (150, 0.3), (400, 0.25)])
def test_among_equally_good_thresholds_half_of_the_best_f1_is_chosen(missed, expected):
    """No score lies between right and wrong entities, so every threshold has the same F1."""
    sure = [Sentence(["a"], [Span(0, 1, "A")])] * 100
    wrong, rest = [Sentence(["a"])] * 30, [Sentence(["a"], [Span(0, 1, "A")])] * missed
    found = [[DecodedEntity(0, 0, 0, 2.9, 0.0, 1)]] * 100 + [
        [DecodedEntity(0, 0, 0, 0.1, 0.0, 1)]
    ] * 30
    calibration = fit_calibration([*sure, *wrong, *rest], [*found, *([[]] * missed)], ["A"])
    assert calibration is not None and calibration.thresholds == {"A": expected}


def test_threshold_and_phi_replace_each_other():
    settings = Settings().with_inference({"phi": 2.0})
    assert settings.with_inference({"threshold": 0.3}).inference.phi is None
    assert settings.with_inference({"threshold": 0.3}).inference.threshold == 0.3
    assert settings.with_inference({"steps": 2}).inference.phi == 2.0
    with pytest.raises(SettingsError, match=r"inference\.threshold and inference\.phi exclude"):
        Settings().override(["inference.threshold=0.5", "inference.phi=2"])


def test_expected_calibration_error_by_hand():
    # Two in [0.9, 1], on average 0.95, half of them right. One in [0.2, 0.3], wrong.
    error = expected_calibration_error([0.9, 1.0, 0.25], [True, False, False])
    assert error == pytest.approx((abs(1.9 - 1) + 0.25) / 3)
    assert expected_calibration_error([], []) == 0.0


def test_the_calibration_is_saved_with_the_model(ner: DiffusionNER, tmp_path: Path):
    fitted = Calibration((1.0, 2.0), (0.1, 0.8), dict.fromkeys(ner.labels, 0.4))
    calibrated = DiffusionNER(ner.engine, ner.subwords, ner.settings, fitted)
    calibrated.save_pretrained(tmp_path / "model")
    loaded = DiffusionNER.from_pretrained(tmp_path / "model")
    assert loaded.calibration == fitted
    text = "Ada met Charles in London ."
    options = {"phi": 0.0, "overlap": "all"}
    plain, found = ner(text, **options), loaded(text, **options)
    assert plain and [e[:3] for e in plain] == [e[:3] for e in found]
    expected = fitted.scores([3 * entity.score for entity in plain])
    assert np.allclose([entity.score for entity in found], expected, atol=1e-5)


@pytest.mark.parametrize(
    "broken",
    [
        {"sums": [1, 2]},
        {"sums": [2, 1], "probabilities": [0.1, 0.2], "thresholds": {}},
        {"sums": [1, 2], "probabilities": [0.3, 0.2], "thresholds": {}},
        {"sums": [1, 2], "probabilities": [0.1, 1.2], "thresholds": {}},
        {"sums": [], "probabilities": [], "thresholds": {}},
        {"sums": ["x"], "probabilities": [0.5], "thresholds": {}},
        {"sums": [1], "probabilities": [0.5], "thresholds": {"other": 0.5}},
        [1],
    ],
)
def test_an_invalid_calibration_is_an_error(ner: DiffusionNER, tmp_path: Path, broken):
    ner.save_pretrained(tmp_path)
    if isinstance(broken, dict) and broken.get("thresholds") == {}:
        broken = {**broken, "thresholds": dict.fromkeys(ner.labels, 0.5)}
    edit_config(tmp_path, lambda config: config.update(calibration=broken))
    with pytest.raises(CheckpointError, match=r"config\.json: 'calibration'"):
        load_calibration(tmp_path)


def test_votes_are_the_number_of_spans_of_an_entity(ner: DiffusionNER):
    found = ner.predict_tokens([["Ada", "met", "Charles", "."]], spans=30, phi=0.0, overlap="all")
    votes = [entity.votes for entity in found[0]]
    assert all(vote >= 1 for vote in votes)
    assert sum(votes) <= 30 and max(votes) > 1


def test_calibrate_on_the_command_line(ner: DiffusionNER, tmp_path: Path, cli):
    """Half of the predicted entities are gold, so the scores become one half."""
    sentences = [Sentence(["Ada", "met", "Charles", f"{i}", "."]) for i in range(60)]
    for sentence, found in zip(sentences, ner.predict_sentences(sentences), strict=True):
        sentence.entities = found[::2]
    ner.save_pretrained(tmp_path / "before", precision="int8")
    stale = ("README.md", "state.safetensors", "test.json")  # not true of the calibrated model
    for name in stale:
        (tmp_path / "before" / name).write_text("of this one")
    formats.write(tmp_path / "dev.jsonl", sentences)
    given = ("--model", tmp_path / "before", "--data", tmp_path / "dev.jsonl")
    result = cli("calibrate", tmp_path / "after", *given)
    assert result.status == 0, result.err
    assert "before" in result.out and all(
        f"{label}: threshold" in result.out for label in ner.labels
    )
    fitted = load_calibration(tmp_path / "after")
    assert fitted is not None and load_calibration(tmp_path / "before") is None
    weights = [tmp_path / name / "model.safetensors" for name in ("before", "after")]
    assert weights[0].read_bytes() == weights[1].read_bytes(), "int8 stays int8"
    assert {file.name for file in (tmp_path / "after").iterdir()} == {
        file.name for file in (tmp_path / "before").iterdir()
    } - set(stale)
    found = DiffusionNER.from_pretrained(tmp_path / "after").decode_sentences(sentences, phi=0.0)
    sums, _, right, *_ = outcomes(sentences, found, ner.labels)
    assert expected_calibration_error(fitted.scores(sums), right) < 0.05
    report = cli("evaluate", *given, "--resamples", 20)
    assert "expected calibration error" in report.out
    formats.write(tmp_path / "dev.jsonl", sentences[:1])
    refused = cli("calibrate", tmp_path / "none", *given)
    assert refused.status == 2 and "too few entities" in refused.err
    assert not (tmp_path / "none").exists()


def test_calibrate_does_not_overwrite_its_inputs(ner, tmp_path: Path, refused):
    for name in ("one", "other"):
        ner.save_pretrained(tmp_path / name)
    before = (tmp_path / "one" / "config.json").read_bytes()
    (tmp_path / "link").symlink_to(tmp_path / "one")
    given = ("--model", tmp_path / "one", "--scores-of", tmp_path / "other")
    for output in ("one", "link", "other"):
        assert "is the same folder as the input" in refused("calibrate", tmp_path / output, *given)
    assert (tmp_path / "one" / "config.json").read_bytes() == before


def test_calibrate_with_the_scores_of_another_model(ner: DiffusionNER, tmp_path: Path, cli):
    """Needed for a model trained on dev too, which has no data left to fit them on."""
    scores = Calibration((0.5, 2.5), (0.1, 0.9), dict.fromkeys(ner.labels, 0.4))
    DiffusionNER(ner.engine, ner.subwords, ner.settings, scores).save_pretrained(tmp_path / "one")
    ner.save_pretrained(tmp_path / "all")
    given = ("--model", tmp_path / "all", "--scores-of")
    result = cli("calibrate", tmp_path / "both", *given, tmp_path / "one")
    assert result.status == 0, result.err
    assert load_calibration(tmp_path / "both") == scores
    weights = [tmp_path / name / "model.safetensors" for name in ("all", "both")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    refused = cli("calibrate", tmp_path / "none", *given, tmp_path / "all")
    assert refused.status == 2 and "not calibrated" in refused.err
    refused = cli("calibrate", tmp_path / "none", *given[:2])
    assert refused.status == 2 and "--scores-of" in refused.err
    edit_config(tmp_path / "one", lambda config: config["labels"].reverse())
    refused = cli("calibrate", tmp_path / "none", *given, tmp_path / "one")
    assert refused.status == 2 and "different labels" in refused.err
    assert not (tmp_path / "none").exists()
