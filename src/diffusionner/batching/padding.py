"""Where to cut sorted sentences into batches, so that little of a batch is padding."""

from __future__ import annotations

import itertools

import numpy as np

# What a batch costs besides its subwords, as a share of the largest one: what is done word by word
# (the BiLSTM) and launched kernel by kernel takes as long for a small batch as for a large one.
FIXED_COST = 1 / 8
PARTS = 8  # that sentences of one length are cut into at most, for each full batch of them


def cheapest_cuts(sizes: np.ndarray, budget: float) -> np.ndarray:
    """[N] rising sizes → [batches + 1] where the batches begin, and N.

    A batch is as wide as its last sentence; none has more than `budget` subwords, padding included,
    unless a single sentence does.
    """
    ends = _possible_cuts(sizes, budget)  # [P + 1], the first is 0
    least = np.zeros(len(ends))  # cost of the best way to cut what comes before each
    before = np.zeros(len(ends), dtype=np.int64)  # its last batch's beginning, as an index of ends
    first = 0
    for i in range(1, len(ends)):
        width = sizes[ends[i] - 1]
        while first < i - 1 and (ends[i] - ends[first]) * width > budget:
            first += 1
        costs = least[first:i] + (ends[i] - ends[first:i]) * width
        best = int(costs.argmin())
        least[i] = costs[best] + FIXED_COST * budget
        before[i] = first + best
    cuts = [len(ends) - 1]
    while cuts[-1]:
        cuts.append(int(before[cuts[-1]]))
    return ends[cuts[::-1]]


def _possible_cuts(sizes: np.ndarray, budget: float) -> np.ndarray:
    """Where the size changes; within one size only so often that the search stays short."""
    changes = np.flatnonzero(np.diff(sizes)) + 1
    groups = np.concatenate([[0], changes, [len(sizes)]])
    pieces = [
        np.arange(start, end, max(1, int(budget / max(1, sizes[start]) / PARTS)))
        for start, end in itertools.pairwise(groups)
    ]
    return np.concatenate([*pieces, [len(sizes)]]).astype(np.int64)
