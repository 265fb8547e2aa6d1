"""From the sum of the three probabilities to a probability that an entity is right.

Fitted on dev after training and kept in config.json: what people see as a score then means what it
says, and 0.5 is the same demand of every model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diffusionner.corpus import Sentence, Span, is_annotated
from diffusionner.errors import CheckpointError
from diffusionner.inference.decoding import DecodedEntity
from diffusionner.settings import InferenceSettings
from diffusionner.storage.config import read_config

PHI = 2.5  # of the paper, for a model that nothing was fitted for
DEFAULT_SCORE = 0.5
FEWEST_PER_KNOT = 25  # entities, right or wrong, that a knot stands for
FEWEST_GOLD = 50  # of a type that has a threshold of its own
AS_GOOD = 0.003  # differences of F1 that mean nothing
GRID = np.round(np.arange(0.25, 0.76, 0.05), 2)


class ScoreRule:
    """Which entities are found, and how sure that is, as the settings say."""

    def __init__(
        self, settings: InferenceSettings, labels: Sequence[str], calibration: Calibration | None
    ) -> None:
        self.calibration = calibration
        count = len(labels)
        self.least: np.ndarray  # [C] total that an entity of each type needs
        if settings.phi is not None:
            self.least = np.full(count, settings.phi)
        elif settings.threshold is not None:
            score = settings.threshold
            total = 3 * score if calibration is None else calibration.least_total(score)
            self.least = np.full(count, total)
        elif calibration is not None:
            thresholds = calibration.thresholds
            self.least = np.array([calibration.least_total(thresholds[x]) for x in labels])
        else:
            self.least = np.full(count, PHI)

    def scores(self, totals: np.ndarray) -> np.ndarray:
        """[N] → [N] in [0, 1]"""
        if self.calibration is None:
            return np.minimum(1.0, totals / 3)
        return self.calibration.scores(totals)


@dataclass(frozen=True)
class Calibration:
    """A rising line through knots, and the least score of each type that served dev best."""

    totals: tuple[float, ...]  # rising
    probabilities: tuple[float, ...]  # never falling
    thresholds: Mapping[str, float]

    def scores(self, totals: Sequence[float] | np.ndarray) -> np.ndarray:
        """Probabilities that entities of these totals are right."""
        return np.asarray(np.interp(totals, self.totals, self.probabilities))

    def least_total(self, score: float) -> float:
        """The smallest total that has at least this score."""
        if score <= self.probabilities[0]:
            return 0.0
        if score > self.probabilities[-1]:
            return np.inf
        after = int(np.searchsorted(self.probabilities, score))  # the first knot that reaches it
        low, high = self.probabilities[after - 1], self.probabilities[after]
        share = (score - low) / (high - low)
        return float(self.totals[after - 1] + share * (self.totals[after] - self.totals[after - 1]))

    def to_dict(self) -> dict[str, Any]:
        return {
            "totals": list(self.totals),
            "probabilities": list(self.probabilities),
            "thresholds": dict(self.thresholds),
        }

    @classmethod
    def from_dict(cls, values: Any, labels: Sequence[str], origin: str) -> Calibration:
        """What config.json says, checked."""
        try:
            totals = tuple(float(x) for x in values["totals"])
            probabilities = tuple(float(x) for x in values["probabilities"])
            thresholds = {str(k): float(v) for k, v in values["thresholds"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"{origin}: 'calibration' needs lists of numbers 'totals' and 'probabilities' and "
                "a table 'thresholds'; run `diffusionner calibrate` again"
            ) from error
        rising = len(totals) == len(probabilities) > 0 and bool(
            (np.diff(totals) > 0).all() and (np.diff(probabilities) >= 0).all()
        )
        within = all(0 <= p <= 1 for p in (*probabilities, *thresholds.values()))
        if not (rising and within and set(thresholds) == set(labels)):
            raise CheckpointError(
                f"{origin}: 'calibration' must rise, lie between 0 and 1, and have a threshold for "
                "each label; run `diffusionner calibrate` again"
            )
        return cls(totals, probabilities, thresholds)


def load_calibration(folder: Path) -> Calibration | None:
    """What the model's folder has of it."""
    config = read_config(folder)
    found = config.get("calibration")
    if found is None:
        return None
    return Calibration.from_dict(found, config["labels"], str(folder / "config.json"))


def fit(
    sentences: Sequence[Sentence], found: Sequence[Sequence[DecodedEntity]], labels: Sequence[str]
) -> Calibration | None:
    """Isotonic regression of right or wrong on the totals; None where next to nothing was found.

    found: entities of the sentences whatever their total, overlaps resolved.
    """
    totals, right, kinds = outcomes(sentences, found, labels)
    if len(totals) < 2 * FEWEST_PER_KNOT:
        return None
    centres, rates = _knots(totals, right)
    calibration = Calibration(tuple(centres), tuple(rates), {})
    scores = calibration.scores(totals)
    gold = Counter(entity.label for s in sentences for entity in set(s.entities))
    thresholds = {
        label: _best(scores[kinds == kind], right[kinds == kind], gold[label])
        for kind, label in enumerate(labels)
    }
    return Calibration(calibration.totals, calibration.probabilities, thresholds)


def _knots(totals: np.ndarray, right: np.ndarray) -> tuple[list[float], list[float]]:
    """Totals, rising, and the share that is right there, never falling."""
    from scipy.optimize import isotonic_regression  # slow to import, for this alone

    values, place, counts = np.unique(totals, return_inverse=True, return_counts=True)
    hits = np.bincount(place, right.astype(float))
    level = isotonic_regression(hits / counts, weights=counts).x
    # What the regression makes equal is one knot; those of too few join the one before.
    starts, reached, seen = [0], 0, np.concatenate([[0], np.cumsum(counts)])
    for start in (np.flatnonzero(np.diff(level) > 1e-12) + 1).tolist():
        if min(seen[start] - reached, seen[-1] - seen[start]) >= FEWEST_PER_KNOT:
            starts.append(start)
            reached = seen[start]
    size = np.add.reduceat(counts, starts)
    centres = np.add.reduceat(values * counts, starts) / size
    # As if each had one more, half right: a few in a row that are all right are no certainty.
    rates = (np.add.reduceat(hits, starts) + 0.5) / (size + 1)
    rising = isotonic_regression(rates, weights=size).x
    return np.round(centres, 6).tolist(), np.round(rising, 6).tolist()


def outcomes(
    sentences: Sequence[Sentence], found: Sequence[Sequence[DecodedEntity]], labels: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Total, right or wrong, and type of all that was found and had been looked for."""
    totals, right, kinds = [], [], []
    for sentence, entities in zip(sentences, found, strict=True):
        known = set(sentence.entities)
        for one in entities:
            label = labels[one.kind]
            if is_annotated(sentence, label):
                totals.append(one.total)
                right.append(Span(one.left, one.right + 1, label) in known)
                kinds.append(one.kind)
    return np.array(totals), np.array(right, dtype=bool), np.array(kinds, dtype=np.int64)


def _best(scores: np.ndarray, right: np.ndarray, gold: int) -> float:
    """The score from which on F1 of a type is best; 0.5 for a rare one.

    With true probabilities that is half of the best F1 (Lipton et al., 2014): of what does as well
    on these sentences, the nearest to it is the likeliest to do so on others.
    """
    if gold < FEWEST_GOLD:
        return DEFAULT_SCORE
    passed = scores[None, :] >= GRID[:, None]
    f1 = 2 * (passed & right).sum(1) / np.maximum(1, passed.sum(1) + gold)
    best = GRID[f1 >= f1.max() - AS_GOOD]
    return float(best[np.abs(best - f1.max() / 2).argmin()])


def expected_calibration_error(
    scores: Sequence[float] | np.ndarray, right: Sequence[bool] | np.ndarray, bins: int = 10
) -> float:
    """How far scores are from the share that is right, on average over ten equal intervals."""
    scores, hits = np.asarray(scores, dtype=float), np.asarray(right, dtype=float)
    if not len(scores):
        return 0.0
    bin_of = np.minimum((scores * bins).astype(int), bins - 1)
    counts = np.bincount(bin_of, minlength=bins)
    gaps = np.bincount(bin_of, scores - hits, minlength=bins)
    return float(np.abs(gaps).sum() / counts.sum())
