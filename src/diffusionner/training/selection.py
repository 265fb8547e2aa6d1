"""Model selection on dev: F1, thresholds and calibration of one epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from diffusionner.corpus import Sentence
from diffusionner.evaluation import score_sentences
from diffusionner.evaluation.significance import Difference, difference
from diffusionner.inference.calibration import fit_calibration, outcomes
from diffusionner.inference.decoding import DecodedEntity, ScoreRule, resolve_overlaps, to_spans
from diffusionner.settings import InferenceSettings
from diffusionner.storage.calibration import Calibration

GRID = np.round(np.arange(1.0, 3.0, 0.05), 2)
RESAMPLES = 2_000

Predictions = Sequence[Sequence[DecodedEntity]]
Predict = Callable[[InferenceSettings, ScoreRule], list[list[DecodedEntity]]]


@dataclass(frozen=True)
class DevResult:
    """F1 on dev with the inference settings and calibration tuned for it."""

    f1: float
    inference: InferenceSettings
    entities: Predictions
    calibration: Calibration | None = None
    phi: float | None = None  # the best one on dev, even if a calibration replaces it


def evaluate_on_dev(
    predict: Predict,
    sentences: Sequence[Sentence],
    labels: Sequence[str],
    inference: InferenceSettings,
    tune: bool,
    one_threshold: bool = False,
) -> DevResult:
    """Score the predictions on dev. tune: fit the thresholds and the calibration first."""
    if tune:
        inference = replace(inference, threshold=None, phi=0.0)  # keep every prediction
    found = predict(replace(inference, overlap="all"), ScoreRule(inference, labels, None))
    resolved = [resolve_overlaps(one, inference.overlap) for one in found]
    if not tune:
        report = score_sentences(sentences, [to_spans(one, labels) for one in resolved])
        return DevResult(report.micro.f1, inference, resolved)
    phi, f1 = best_phi(sentences, resolved, labels)
    calibration = fit_calibration(sentences, resolved, labels, one_threshold)
    if calibration is None:
        passing = [[e for e in one if e.summed_probability >= phi] for one in resolved]
        return DevResult(f1, replace(inference, phi=phi), passing, None, phi)
    inference = replace(inference, phi=None)
    rule = ScoreRule(inference, labels, calibration)
    minimum, of_gapped = rule.min_sums.tolist(), rule.of_gapped.min_sums.tolist()
    # An entity below the threshold of its type must not exclude another.
    passed = (
        [
            entity
            for entity in one
            if entity.summed_probability >= (of_gapped if entity.gaps else minimum)[entity.type_id]
        ]
        for one in found
    )
    resolved = [resolve_overlaps(one, inference.overlap) for one in passed]
    correct = outcomes(sentences, resolved, labels).right
    f1 = float(_f1(sentences, np.ones_like(correct), correct))
    return DevResult(f1, inference, resolved, calibration, phi)


def compare_on_dev(
    first: DevResult, second: DevResult, sentences: Sequence[Sentence], labels: Sequence[str]
) -> Difference:
    """Compare the F1 of two results, first minus second, with a paired test over the sentences."""
    counts = [
        score_sentences(
            sentences, [to_spans(entities, labels) for entities in result.entities]
        ).measure_counts["micro"]
        for result in (first, second)
    ]
    return difference(counts[0], counts[1], RESAMPLES, seed=0)


def best_phi(
    sentences: Sequence[Sentence], found: Predictions, labels: Sequence[str]
) -> tuple[float, float]:
    """Return the φ of a grid with the best micro F1, and that F1; the middle one of a tie."""
    outcome = outcomes(sentences, found, labels)
    f1 = _f1(sentences, outcome.sums >= GRID[:, None], outcome.right)
    best = np.flatnonzero(f1 == f1.max())
    return float(GRID[best[len(best) // 2]]), float(f1.max())


def _f1(sentences: Sequence[Sentence], passed: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """Return micro F1 of the predictions that passed, [..., N] → [...]; correct: [N]"""
    gold = sum(
        len(set(s.entities)) + len(set(s.discontinuous)) + len(s.irregular) for s in sentences
    )
    f1: np.ndarray = 2 * (passed & correct).sum(-1) / np.maximum(1, passed.sum(-1) + gold)
    return f1
