"""Choosing on dev: strict F1 of predictions, and the threshold φ that maximises it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diffusionner.corpus import Sentence, Span
from diffusionner.inference.decoding import Found

GRID = np.round(np.arange(1.0, 3.0, 0.05), 2)


def best_threshold(
    sentences: Sequence[Sentence], found: Sequence[Sequence[Found]], labels: Sequence[str]
) -> tuple[float, float]:
    """(φ, micro F1) over a grid; the middle one where several do equally well."""
    gold = sum(len(set(s.entities)) + len(s.irregular) for s in sentences)
    totals, right = [], []
    for sentence, entities in zip(sentences, found, strict=True):
        known = set(sentence.entities)
        for f in entities:
            totals.append(f.total)
            right.append(Span(f.left, f.right + 1, labels[f.kind]) in known)
    passed = np.array(totals)[None, :] >= GRID[:, None] if totals else np.zeros((len(GRID), 0))
    correct = (passed * np.array(right)).sum(1) if totals else np.zeros(len(GRID))
    f1 = 2 * correct / np.maximum(1, passed.sum(1) + gold)
    best = np.flatnonzero(f1 == f1.max())
    return float(GRID[best[len(best) // 2]]), float(f1.max())
