"""Division of sentences, sorted by length, into batches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

# Fixed cost of a batch as a share of the largest batch's: sequential work (the BiLSTM) and kernel
# launches take as long for a small batch as for a large one.
FIXED_COST = 1 / 8
PARTS = 8  # maximum number of cuts within sentences of one length, per full batch of them


def cheapest_cuts(sizes: np.ndarray, budget: float) -> np.ndarray:
    """Return where the batches start, and N: [N] ascending sizes → [batches + 1].

    A batch is as wide as its last sentence. None has more than `budget` subwords, padding included,
    unless a single sentence does.
    """
    ends = _possible_cuts(sizes, budget)  # [P + 1], the first is 0
    cheapest = np.zeros(len(ends))  # cost of the best way to cut everything before each
    before = np.zeros(len(ends), dtype=np.int64)  # start of its last batch, as an index of ends
    first = 0
    for i in range(1, len(ends)):
        width = sizes[ends[i] - 1]
        while first < i - 1 and (ends[i] - ends[first]) * width > budget:
            first += 1
        costs = cheapest[first:i] + (ends[i] - ends[first:i]) * width
        best = int(costs.argmin())
        cheapest[i] = costs[best] + FIXED_COST * budget
        before[i] = first + best
    cuts = [len(ends) - 1]
    while cuts[-1]:
        cuts.append(int(before[cuts[-1]]))
    return ends[cuts[::-1]]


def _possible_cuts(sizes: np.ndarray, budget: float) -> np.ndarray:
    """Return the places to consider: where the size changes, and a few within each size."""
    changes = np.flatnonzero(np.diff(sizes)) + 1
    groups = np.concatenate([[0], changes, [len(sizes)]])
    parts = [
        np.arange(start, end, max(1, int(budget / max(1, sizes[start]) / PARTS)))
        for start, end in pairwise(groups)
    ]
    return np.concatenate([*parts, [len(sizes)]]).astype(np.int64)
