"""BIOES tags of nested entities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diffusionner.batching import Batch
from diffusionner.corpus import Sentence

OUTSIDE = 0
SINGLE, BEGIN, INSIDE, END = range(4)  # parts of an entity
PARTS = 4  # a tag is 1 + PARTS · type + part


def followers(types: int) -> np.ndarray:
    """Return [T, T], true where a tag may follow another.

    Tags that may follow OUTSIDE may also begin a sentence.
    """
    index = np.arange(PARTS * types + 1)
    type_id, part = np.divmod(index - 1, PARTS)
    open_after = (index != OUTSIDE) & ((part == BEGIN) | (part == INSIDE))
    goes_on = (index != OUTSIDE) & ((part == INSIDE) | (part == END))
    same = type_id[:, None] == type_id
    allowed: np.ndarray = np.where(open_after[:, None], goes_on & same, ~goes_on)
    return allowed


def nesting(gold: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the level of each entity [B, N]: one below the deepest wider one that it overlaps.

    gold: [B, N, 2] first and last word; known: [B, N] false for padding. Entities of a level are
    disjoint. If none cross, the level of an entity is the number of entities around it.
    """
    width = np.where(known, gold[..., 1] - gold[..., 0], -1)
    order = np.argsort(-width, axis=1, kind="stable")  # [B, N] widest first, padding last
    left, right = np.moveaxis(np.take_along_axis(gold, order[..., None], 1), -1, 0)
    levels = np.zeros(known.shape, dtype=np.int64)
    for n in range(1, known.shape[1]):
        touched = (left[:, :n] <= right[:, n, None]) & (left[:, n, None] <= right[:, :n])
        levels[:, n] = np.where(touched, levels[:, :n] + 1, 0).max(1)
    result = np.empty_like(levels)
    np.put_along_axis(result, order, levels, 1)
    return result


def tags_of(batch: Batch[np.ndarray], levels: int) -> np.ndarray:
    """Return the tags [B, L, M]; entities nested deeper are left out."""
    known = batch.gold_types >= 0
    level = nesting(batch.gold, known)
    word = np.arange(batch.first.shape[1])
    left, right = batch.gold[..., :1], batch.gold[..., 1:]  # [B, N, 1]
    inside = (word >= left) & (word <= right) & (known & (level < levels))[..., None]
    part = np.where(word == left, BEGIN, np.where(word == right, END, INSIDE))
    part = np.where(left == right, SINGLE, part)  # [B, N, M]
    tags = np.zeros((len(known), levels, len(word)), dtype=np.int64)
    row, entity, place = np.nonzero(inside)
    tags[row, level[row, entity], place] = (
        1 + PARTS * batch.gold_types[row, entity] + part[row, entity, place]
    )
    return tags


def deepest(sentences: Sequence[Sentence]) -> int:
    """Return the number of levels that hold all entities of the sentences, at least 1."""
    count = max((len(s.entities) for s in sentences), default=0)
    gold = np.zeros((len(sentences), max(1, count), 2), dtype=np.int64)
    known = np.zeros(gold.shape[:2], dtype=bool)
    for number, sentence in enumerate(sentences):
        for place, (start, end, _) in enumerate(sentence.entities):
            gold[number, place] = start, end - 1
            known[number, place] = True
    return int(nesting(gold, known)[known].max(initial=0)) + 1
