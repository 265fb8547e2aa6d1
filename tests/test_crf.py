"""The rival that tags: sums and best sequences against enumeration, and tags of nested entities."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from batches import make_batch

from diffusionner.corpus import Sentence, Span
from diffusionner.model.tensors import batch_to_device
from reproduce.rivals.chains import Chains
from reproduce.rivals.crf import Tagged, TaggingObjective
from reproduce.rivals.tags import deepest, followers, nesting, tags_of

NAMES = ("O", "S-0", "B-0", "I-0", "E-0", "S-1", "B-1", "I-1", "E-1")
LEVELS = 2
WORDS = torch.tensor([4, 2, 1])
MASK = torch.arange(4) < WORDS[:, None]


def follows(a: str, b: str) -> bool:
    """The rule in words."""
    if a[0] in "BI":
        return b[0] in "IE" and a[2:] == b[2:]
    return b[0] in "OSB"


@pytest.fixture
def chains() -> Chains:
    torch.manual_seed(0)
    chains = Chains(LEVELS, 2)
    for parameter in chains.parameters():
        torch.nn.init.normal_(parameter)
    return chains


@pytest.fixture
def emissions() -> torch.Tensor:
    return torch.randn(3, LEVELS, 4, len(NAMES), generator=torch.Generator().manual_seed(1))


def sequences(words: int) -> Iterator[tuple[int, ...]]:
    for tags in itertools.product(range(len(NAMES)), repeat=words):
        names = ["O", *(NAMES[tag] for tag in tags), "O"]
        if all(follows(a, b) for a, b in itertools.pairwise(names)):
            yield tags


def score(chains: Chains, emissions: torch.Tensor, level: int, tags: tuple[int, ...]) -> float:
    """emissions: [M, T]"""
    moves = sum(chains.transitions[level, a, b] for a, b in itertools.pairwise(tags))
    ends = chains.first[level, tags[0]] + chains.last[level, tags[-1]]
    return float(sum(emissions[i, tag] for i, tag in enumerate(tags)) + moves + ends)


def every_chain() -> list[tuple[int, int, int]]:
    """Sentence, level and number of words."""
    return [(b, level, int(WORDS[b])) for b in range(3) for level in range(LEVELS)]


def test_which_tags_follow_each_other():
    allowed = followers(2)
    for (i, a), (j, b) in itertools.product(enumerate(NAMES), repeat=2):
        assert allowed[i, j] == follows(a, b), (a, b)


@torch.no_grad()
def test_sums_are_over_all_sequences(chains, emissions):
    found = chains.log_sums(emissions, MASK)
    for b, level, words in every_chain():
        scores = [score(chains, emissions[b, level], level, tags) for tags in sequences(words)]
        assert found[b, level].item() == pytest.approx(np.logaddexp.reduce(scores), abs=1e-4)


@torch.no_grad()
def test_the_best_sequence(chains, emissions):
    found = chains.best(emissions, MASK)
    assert found.shape == (3, LEVELS, 4)
    for b, level, words in every_chain():
        best = max(sequences(words), key=lambda t: score(chains, emissions[b, level], level, t))
        assert tuple(found[b, level, :words].tolist()) == best


@torch.no_grad()
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("left", "right"), [(0, 0), (0, 1), (1, 3), (0, 3), (2, 3)])
def test_the_probability_of_an_entity(chains, emissions, left, right, kind):
    place = [torch.full((3, LEVELS, 1), value) for value in (left, right, kind)]
    found = chains.probability(emissions, MASK, *place)
    parts = [0] if left == right else [1, *[2] * (right - left - 1), 3]
    entity = tuple(1 + 4 * kind + part for part in parts)
    for b, level, words in every_chain():
        if right >= words:
            continue
        weights = {
            t: math.exp(score(chains, emissions[b, level], level, t)) for t in sequences(words)
        }
        having = sum(w for tags, w in weights.items() if tags[left : right + 1] == entity)
        assert found[b, level, 0].item() == pytest.approx(having / sum(weights.values()), rel=1e-4)


@torch.no_grad()
def test_the_loss_is_the_likelihood_of_all_that_may_be_right(chains, emissions):
    """If the second type was not annotated, a word outside may be part of such an entity."""
    gold = [[(1, 2, 0), (1, 1, 0)], [], [(0, 0, 0)]]
    batch = make_batch(WORDS.tolist(), gold)
    batch.annotated_types[1] = [True, False]
    objective = TaggingObjective.__new__(TaggingObjective)
    torch.nn.Module.__init__(objective)
    objective.network = type("Network", (), {"chains": chains, "levels": LEVELS})()
    tags = tags_of(batch, LEVELS)
    tagged = Tagged(emissions, MASK, torch.from_numpy(tags))
    found = objective.loss(tagged, batch_to_device(batch, torch.device("cpu")), torch.zeros(3, 0))
    expected = 0.0
    for b, level, words in every_chain():
        scores, right = [], []
        for sequence in sequences(words):
            scores.append(score(chains, emissions[b, level], level, sequence))
            pairs = zip(sequence, tags[b, level], strict=False)
            if all(t == g or (b == 1 and g == 0 and t > 4) for t, g in pairs):
                right.append(scores[-1])
        expected += np.logaddexp.reduce(scores) - np.logaddexp.reduce(right)
    assert found.item() == pytest.approx(expected, rel=1e-4)


# Nesting


@pytest.mark.parametrize(
    ("spans", "levels"),
    [
        ([(0, 5), (1, 3), (2, 2), (5, 5), (7, 9)], [0, 1, 2, 1, 0]),
        ([(2, 2), (1, 3), (0, 5)], [2, 1, 0]),  # in any order
        ([(1, 3), (1, 3)], [0, 1]),  # the same with two types
        ([(0, 3), (2, 4)], [0, 1]),  # crossing
        ([(0, 1), (2, 3), (0, 3), (3, 3)], [1, 1, 0, 2]),
    ],
)
def test_levels(spans, levels):
    gold = np.zeros((2, 6, 2), dtype=np.int64)
    gold[0, : len(spans)] = spans
    known = np.zeros((2, 6), dtype=bool)
    known[0, : len(spans)] = True
    assert nesting(gold, known)[0, : len(spans)].tolist() == levels


def test_tags_of_levels():
    batch = make_batch([5, 2], [[(0, 3, 1), (0, 0, 0), (2, 3, 0), (3, 3, 1)], []])
    names = [[[NAMES[t] for t in level] for level in sentence] for sentence in tags_of(batch, 2)]
    assert names[0] == [["B-1", "I-1", "I-1", "E-1", "O"], ["S-0", "O", "B-0", "E-0", "O"]]
    assert names[1] == [["O"] * 5] * 2
    assert tags_of(batch, 3)[0, 2].tolist() == [0, 0, 0, NAMES.index("S-1"), 0]


def test_levels_of_a_corpus():
    nested = [Span(0, 3, "A"), Span(0, 1, "A"), Span(2, 3, "B")]
    words = ["a", "b", "c", "d"]
    assert deepest([Sentence(words, nested[1:])]) == 1
    assert deepest([Sentence(words), Sentence(words, nested)]) == 2
    assert deepest([Sentence(words)]) == deepest([]) == 1
