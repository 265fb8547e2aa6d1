"""Partition into batches, against all other partitions."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from diffusionner.batching.batch_cuts import FIXED_COST, cheapest_cuts


def cost(sizes, cuts, budget):
    """Return the cost of a partition; None if a batch of several sentences exceeds the budget."""
    total = 0.0
    for start, end in pairwise(cuts):
        taken = (end - start) * sizes[end - 1]
        if taken > budget and end - start > 1:
            return None
        total += taken + FIXED_COST * budget
    return total


@pytest.mark.parametrize("seed", range(20))
def test_no_other_partition_is_cheaper(seed):
    random = np.random.default_rng(seed)
    sizes = np.sort(random.integers(1, 30, 9))
    budget = float(random.integers(20, 120))
    cuts = cheapest_cuts(sizes, budget)
    assert cuts[0] == 0 and cuts[-1] == 9 and (np.diff(cuts) > 0).all()
    inner = range(1, 9)
    ways = [(0, *some, 9) for count in range(9) for some in combinations(inner, count)]
    costs = [one for way in ways if (one := cost(sizes, way, budget)) is not None]
    assert cost(sizes, cuts, budget) == pytest.approx(min(costs))


def test_sentences_of_one_length_fill_their_batches():
    sizes = np.full(1000, 16)
    counts = np.diff(cheapest_cuts(sizes, 16 * 64))
    assert counts.sum() == 1000 and counts.max() == 64 and len(counts) == 16


def test_less_padding_than_with_batches_of_equal_size():
    sizes = np.sort(np.random.default_rng(0).gamma(4, 20, 4096).astype(np.int64) + 3)
    budget = 256 * sizes.mean()
    cuts = cheapest_cuts(sizes, budget)
    ours = sum((b - a) * sizes[b - 1] for a, b in pairwise(cuts))
    theirs = sum(256 * sizes[min(i + 255, 4095)] for i in range(0, 4096, 256))
    assert ours < 1.07 * sizes.sum() < theirs


def test_a_sentence_larger_than_the_budget_has_its_own_batch():
    assert cheapest_cuts(np.array([3, 4, 100]), 10.0).tolist() == [0, 2, 3]
