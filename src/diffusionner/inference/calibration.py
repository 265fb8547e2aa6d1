"""Fit the calibration of a model: summed probabilities to probabilities of being right.

It is fitted on dev after training. A score is then a probability, and a threshold of 0.5 means the
same for every model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from diffusionner.corpus import Sentence, is_annotated
from diffusionner.inference.decoding import DecodedEntity, ScoreRule, to_spans
from diffusionner.storage.calibration import Calibration

DEFAULT_THRESHOLD = 0.5
MIN_PER_KNOT = 25  # minimum number of predicted entities per knot
MIN_GOLD = 50  # gold entities that a type needs to get its own threshold
EQUIVALENT_F1 = 0.003  # smaller differences are ignored
GRID = np.round(np.arange(0.25, 0.76, 0.05), 2)


class Outcomes(NamedTuple):
    """Predicted entities, [N] each."""

    sums: np.ndarray  # summed probabilities
    scores: np.ndarray
    right: np.ndarray  # true if the entity is correct
    types: np.ndarray
    gapped: np.ndarray  # true if it is discontinuous

    def scored_by(self, rule: ScoreRule) -> np.ndarray:
        """Return the scores that a rule gives them."""
        return np.where(self.gapped, rule.of_gapped.scores(self.sums), rule.scores(self.sums))


def fit_calibration(
    sentences: Sequence[Sentence],
    predicted: Sequence[Sequence[DecodedEntity]],
    labels: Sequence[str],
    one_threshold: bool = False,
) -> Calibration | None:
    """Fit an isotonic regression of right or wrong on the sums; None if there are too few entities.

    predicted: entities of the sentences with any sum, overlaps resolved; one_threshold: for all
    types, because a model with open labels will be asked for others.
    """
    found = outcomes(sentences, predicted, labels)
    sums, right, types = (part[~found.gapped] for part in (found.sums, found.right, found.types))
    if len(sums) < 2 * MIN_PER_KNOT:
        return None
    calibration = _fit(sums, right)
    scores = calibration.scores(sums)
    gold = Counter(entity.label for s in sentences for entity in set(s.entities))
    gapped = _fit_gapped(sentences, found)
    if one_threshold:
        threshold = _best_threshold(scores, right, gold.total())
        return replace(calibration, threshold=threshold, gapped=gapped)
    thresholds = {
        label: _best_threshold(scores[types == type_id], right[types == type_id], gold[label])
        for type_id, label in enumerate(labels)
    }
    return replace(calibration, thresholds=thresholds, gapped=gapped)


def _fit_gapped(sentences: Sequence[Sentence], found: Outcomes) -> Calibration | None:
    """Fit a calibration of discontinuous entities, which are rare: all types share a threshold."""
    sums, right = found.sums[found.gapped], found.right[found.gapped]
    if len(sums) < 2 * MIN_PER_KNOT:
        return None
    calibration = _fit(sums, right)
    gold = sum(len(set(sentence.discontinuous)) for sentence in sentences)
    threshold = _best_threshold(calibration.scores(sums), right, gold)
    return replace(calibration, threshold=threshold)


def _fit(sums: np.ndarray, right: np.ndarray) -> Calibration:
    """Fit the map from sums to probabilities, without thresholds."""
    centres, rates = _knots(sums, right)
    return Calibration(tuple(centres), tuple(rates), {})


def _knots(sums: np.ndarray, right: np.ndarray) -> tuple[list[float], list[float]]:
    """Return ascending sums and the share of right entities at each, non-decreasing."""
    from scipy.optimize import isotonic_regression  # the extra `evaluate`; slow to import

    # Rounded before they are grouped: knots that only rounding makes equal would not ascend.
    values, place, counts = np.unique(np.round(sums, 6), return_inverse=True, return_counts=True)
    hits = np.bincount(place, right.astype(float))
    level = isotonic_regression(hits / counts, weights=counts).x
    # Values that the regression makes equal are one knot; too small a knot joins the one before.
    starts, reached, seen = [0], 0, np.concatenate([[0], np.cumsum(counts)])
    for start in (np.flatnonzero(np.diff(level) > 1e-12) + 1).tolist():
        if min(seen[start] - reached, seen[-1] - seen[start]) >= MIN_PER_KNOT:
            starts.append(start)
            reached = seen[start]
    size = np.add.reduceat(counts, starts)
    centres = np.add.reduceat(values * counts, starts) / size
    # Add one half-right entity to each knot: a few right entities are no proof of certainty.
    rates = (np.add.reduceat(hits, starts) + 0.5) / (size + 1)
    rising = isotonic_regression(rates, weights=size).x
    return np.round(centres, 6).tolist(), np.round(rising, 6).tolist()


def outcomes(
    sentences: Sequence[Sentence],
    predicted: Sequence[Sequence[DecodedEntity]],
    labels: Sequence[str],
) -> Outcomes:
    """Return what became of all predicted entities of annotated types."""
    sums, scores, right, types, gapped = [], [], [], [], []
    for sentence, entities in zip(sentences, predicted, strict=True):
        gold = {*sentence.entities, *sentence.discontinuous}
        for entity, span in zip(entities, to_spans(entities, labels), strict=True):
            if is_annotated(sentence, span.label):
                sums.append(entity.summed_probability)
                scores.append(entity.score)
                right.append(span in gold)
                types.append(entity.type_id)
                gapped.append(bool(entity.gaps))
    return Outcomes(
        np.array(sums),
        np.array(scores),
        np.array(right, dtype=bool),
        np.array(types, dtype=np.int64),
        np.array(gapped, dtype=bool),
    )


def _best_threshold(scores: np.ndarray, right: np.ndarray, gold: int) -> float:
    """Return the threshold with the best F1 of a type; 0.5 for a rare type.

    With true probabilities, the best threshold is half of the best F1 (Lipton et al., 2014). Among
    thresholds that do equally well on these sentences, the one nearest to that generalises best.
    """
    if gold < MIN_GOLD:
        return DEFAULT_THRESHOLD
    passed = scores[None, :] >= GRID[:, None]
    f1 = 2 * (passed & right).sum(1) / np.maximum(1, passed.sum(1) + gold)
    best = GRID[f1 >= f1.max() - EQUIVALENT_F1]
    return float(best[np.abs(best - f1.max() / 2).argmin()])


def expected_calibration_error(
    scores: Sequence[float] | np.ndarray, right: Sequence[bool] | np.ndarray, bins: int = 10
) -> float:
    """Return the mean gap between score and share of right entities over equal-width bins."""
    scores, hits = np.asarray(scores, dtype=float), np.asarray(right, dtype=float)
    if not len(scores):
        return 0.0
    bin_of = np.minimum((scores * bins).astype(int), bins - 1)
    counts = np.bincount(bin_of, minlength=bins)
    gaps = np.bincount(bin_of, scores - hits, minlength=bins)
    return float(np.abs(gaps).sum() / counts.sum())
