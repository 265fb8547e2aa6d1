"""Choosing on dev: strict F1 of predictions, and the φ that maximises it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diffusionner.corpus import Sentence
from diffusionner.inference.calibration import outcomes
from diffusionner.inference.decoding import DecodedEntity, resolve_overlaps

GRID = np.round(np.arange(1.0, 3.0, 0.05), 2)


def best_phi(
    sentences: Sequence[Sentence], found: Sequence[Sequence[DecodedEntity]], labels: Sequence[str]
) -> tuple[float, float]:
    """(φ, micro F1) over a grid; the middle one where several do equally well."""
    totals, right, _ = outcomes(sentences, found, labels)
    f1 = _f1(sentences, totals >= GRID[:, None], right)
    best = np.flatnonzero(f1 == f1.max())
    return float(GRID[best[len(best) // 2]]), float(f1.max())


def f1_of(
    sentences: Sequence[Sentence],
    found: Sequence[Sequence[DecodedEntity]],
    labels: Sequence[str],
    least: np.ndarray,
    overlap: str,
) -> float:
    """Micro F1 where an entity needs the least total of its type, [C]; found: unresolved."""
    limits = least.tolist()
    passing = [
        [one for one in several if one.summed_probability >= limits[one.type_id]]
        for several in found
    ]
    entities = [resolve_overlaps(several, overlap) for several in passing]
    _, right, _ = outcomes(sentences, entities, labels)
    return float(_f1(sentences, np.ones_like(right), right))


def _f1(sentences: Sequence[Sentence], passed: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Micro F1 of what passed, [..., N] → [...]; right: [N]"""
    gold = sum(len(set(s.entities)) + len(s.irregular) for s in sentences)
    f1: np.ndarray = 2 * (passed & right).sum(-1) / np.maximum(1, passed.sum(-1) + gold)
    return f1
