"""Batches of gold entities without sentences."""

from __future__ import annotations

import numpy as np

from diffusionner.batching import Batch

TYPES = 2


def make_batch(
    lengths: list[int], gold: list[list[tuple[int, int, int]]], padding: int = 0
) -> Batch[np.ndarray]:
    """Return a batch of (left, right, type) entities with blank subwords."""
    most, entities = max(lengths), max(1, *(len(g) for g in gold)) + padding
    table = np.zeros((len(gold), entities, 3), dtype=np.int64)
    table[..., 2] = -1
    for row, found in zip(table, gold, strict=True):
        row[: len(found)] = np.array(found, dtype=np.int64).reshape(-1, 3)
    blank = np.zeros((len(gold), most), dtype=np.int64)
    return Batch(
        subwords=blank,
        attention=blank,
        word_of=blank,
        first=blank,
        row=np.arange(len(gold)),
        lengths=np.array(lengths),
        characters=blank[..., None],
        keys=blank[:, 0],
        gold=table[..., :2],
        gold_types=table[..., 2],
        annotated_types=np.ones((len(lengths), TYPES), dtype=bool),
        gold_counts=np.array([len(g) for g in gold]),
    )
