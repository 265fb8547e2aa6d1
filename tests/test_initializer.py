"""The initializer: scores of spans, candidates and loss."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch

from diffusionner.diffusion import likely_candidates, span_slots
from diffusionner.diffusion.sampler import MIN_CANDIDATE_SCORE
from diffusionner.inference import onnx_engine
from diffusionner.model.initializer import (
    IMPOSSIBLE,
    SPAN_SIZE,
    Initializer,
    best_spans,
    rotate,
    span_loss,
)

WORDS = [7, 1, 4, 2]  # lengths of the sentences of a batch
HIDDEN = 16


def mask_of(lengths: list[int], most: int | None = None) -> torch.Tensor:
    return torch.arange(most or max(lengths)) < torch.tensor(lengths)[:, None]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def spans_of(words: int) -> list[tuple[int, int]]:
    """Return all spans of a sentence."""
    return list(combinations_with_replacement(range(words), 2))


@pytest.fixture
def initializer() -> Initializer:
    torch.manual_seed(0)
    return Initializer(HIDDEN, types=0, dropout=0).requires_grad_(False)


@pytest.fixture
def typed() -> Initializer:
    torch.manual_seed(0)
    layer = Initializer(HIDDEN, types=3, dropout=0).requires_grad_(False)
    layer.types.width.normal_()
    return layer


def random_scores(lengths: list[int], seed: int = 0) -> torch.Tensor:
    """Return the scores of a random initializer."""
    torch.manual_seed(seed)
    layer = Initializer(HIDDEN, types=0, dropout=0).requires_grad_(False)
    layer.project.weight *= 5
    return layer(normal(len(lengths), max(lengths), HIDDEN, seed=seed), mask_of(lengths)).spans


# Scores


def test_only_spans_of_the_sentence_are_scored(initializer):
    scores = initializer(normal(4, 7, HIDDEN), mask_of(WORDS)).spans
    assert scores.shape == (4, 7, 7) and scores.dtype == torch.float32
    for row, words in enumerate(WORDS):
        own = set(spans_of(words))
        for left, right in np.ndindex(7, 7):
            value = scores[row, left, right].item()
            assert (value == IMPOSSIBLE) == ((left, right) not in own)
            assert value == IMPOSSIBLE or abs(value) < 100
    assert IMPOSSIBLE < MIN_CANDIDATE_SCORE


def test_scores_do_not_depend_on_padding(initializer):
    states = normal(4, 7, HIDDEN)
    together = initializer(states, mask_of(WORDS)).spans
    wider = torch.cat([states, 100 * normal(4, 5, HIDDEN, seed=1)], 1)
    wider[~mask_of(WORDS, 12)] += 1000  # arbitrary values
    padded = initializer(wider, mask_of(WORDS, 12)).spans
    assert torch.allclose(padded[:, :7, :7], together, atol=1e-4)
    assert (padded[:, 7:] == IMPOSSIBLE).all() and (padded[:, :, 7:] == IMPOSSIBLE).all()
    for row, words in enumerate(WORDS):
        alone = initializer(states[row : row + 1, :words], mask_of([words])).spans
        assert torch.allclose(together[row, :words, :words], alone[0], atol=1e-4)


def test_scores_equal_the_loop(initializer):
    """The product of two rotated vectors plus a score of each of the two words."""
    states = normal(1, 5, HIDDEN)
    scores = initializer(states, mask_of([5])).spans
    projected = initializer.project(states)[0].double()

    def rotated(vector: torch.Tensor, place: int) -> list[complex]:
        pairs = vector.view(-1, 2).tolist()
        rates = [10_000 ** (-i / len(pairs)) for i in range(len(pairs))]
        return [
            complex(*pair) * complex(math.cos(place * rate), math.sin(place * rate))
            for pair, rate in zip(pairs, rates, strict=True)
        ]

    for left, right in spans_of(5):
        first = rotated(projected[left, :SPAN_SIZE], left)
        last = rotated(projected[right, SPAN_SIZE : 2 * SPAN_SIZE], right)
        product = sum((a * b.conjugate()).real for a, b in zip(first, last, strict=True))
        alone = projected[left, -2] + projected[right, -1]
        expected = product / math.sqrt(SPAN_SIZE) + alone.item()
        assert scores[0, left, right].item() == pytest.approx(expected, abs=1e-4)


def test_products_depend_only_on_the_distance():
    """The same two vectors give the same product wherever they are, but not at other distances."""
    one, other = normal(2, 1, 1, SPAN_SIZE)
    first, last = rotate(one.expand(1, 40, SPAN_SIZE)), rotate(other.expand(1, 40, SPAN_SIZE))
    products = (first @ last.transpose(1, 2))[0]
    for distance in range(-20, 21):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal), atol=1e-3)
    widths = torch.stack([products.diagonal(distance)[0] for distance in range(10)])
    assert (widths.diff().abs() > 0.01).all()
    assert torch.allclose(first.norm(dim=-1), one.norm(), atol=1e-4), "a rotation"


# Types


def test_typed_scores_combine_span_and_types(typed):
    states = normal(4, 7, HIDDEN)
    initial = typed(states, mask_of(WORDS))
    assert initial.types.shape == (4, 7, 7, 3) and initial.types.dtype == torch.float32
    untyped = Initializer(HIDDEN, types=0, dropout=0).requires_grad_(False)
    untyped.project = typed.project
    of_span = untyped(states, mask_of(WORDS)).spans
    expected = of_span[..., None] + typed.types(states)
    inside = of_span > IMPOSSIBLE
    assert torch.allclose(initial.types[inside], expected[inside], atol=1e-5)
    for row, words in enumerate(WORDS):
        for left, right in spans_of(words):
            odds = initial.types[row, left, right].double().exp().sum().log().item()
            assert initial.spans[row, left, right].item() == pytest.approx(odds, abs=1e-4)
    assert (initial.spans[0, 1:, 0] == IMPOSSIBLE).all()


def test_probabilities_of_types_and_of_no_entity(typed):
    """They sum to one; no-entity has one minus the probability of the span."""
    initial = typed(normal(2, 7, HIDDEN), mask_of([7, 4]))
    left, right = torch.tensor([[0, 2, 6], [0, 1, 0]]), torch.tensor([[3, 2, 6], [0, 3, 3]])
    found = initial.type_probabilities(left[:, None], right[:, None])  # [B, D, K, C + 1]
    assert found.shape == (2, 1, 3, 4)
    assert torch.allclose(found.sum(-1), torch.ones(2, 1, 3))
    of_spans = initial.span_probabilities(left[:, None], right[:, None])
    scores = torch.stack([initial.spans[row, left[row], right[row]] for row in (0, 1)])
    assert torch.allclose(of_spans[:, 0], scores.sigmoid())
    assert torch.allclose(found[..., -1], 1 - of_spans, atol=1e-5)
    scores = initial.types[0, 2, 2]
    expected = scores.exp() / (1 + scores.exp().sum())
    assert torch.allclose(found[0, 0, 1, :-1], expected, atol=1e-5)


# Candidates


def ranked_spans(scores: torch.Tensor, words: int) -> list[tuple[int, int]]:
    """Return all spans of a sentence, the likeliest first."""
    return sorted(spans_of(words), key=lambda span: -scores[span].item())


@pytest.mark.parametrize("count", [1, 3, 6, 12, 49, 60])
def test_candidates_are_the_likeliest(count):
    scores = random_scores(WORDS)
    spans, own = best_spans(scores, count)
    assert spans.shape == (4, count, 2) and own.shape == (4, count)
    for row, words in enumerate(WORDS):
        ranked = ranked_spans(scores[row], words)
        # They repeat in a sentence that has fewer spans.
        expected = [ranked[slot % len(ranked)] for slot in range(count)]
        assert [tuple(span) for span in spans[row].tolist()] == expected
        assert own[row].tolist() == [scores[row][span].item() for span in expected]


@pytest.mark.parametrize("count", [1, 5, 40])
def test_candidates_of_a_single_word(count):
    scores = random_scores([1])
    spans, own = best_spans(scores, count)
    assert (spans == 0).all() and spans.shape == (1, count, 2)
    assert (own == scores[0, 0, 0]).all()


@pytest.mark.parametrize("count", [1, 5, 12, 60])
def test_candidates_do_not_depend_on_the_batch(count):
    scores = random_scores(WORDS)
    together = best_spans(scores, count)
    for row, words in enumerate(WORDS):
        alone = best_spans(scores[row : row + 1, :words, :words], count)
        assert torch.equal(alone[0][0], together[0][row])
        assert torch.equal(alone[1][0], together[1][row])


@pytest.mark.parametrize("lengths", [WORDS, [1], [1, 1], [30, 2, 9], [3, 3]])
@pytest.mark.parametrize("count", [1, 4, 12, 60])
def test_candidates_agree_between_torch_and_onnx(lengths, count):
    scores = random_scores(lengths, seed=count)
    expected, best = best_spans(scores, count)
    found, own = onnx_engine.best_spans(scores.numpy(), count)
    assert found.dtype == np.int64 and own.dtype == np.float32
    assert np.array_equal(found, expected.numpy())
    assert np.array_equal(own, best.numpy())


# Candidates that are denoised with spans=auto


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_likely_candidates_include_the_best_one(kind):
    above, below = MIN_CANDIDATE_SCORE + 1, MIN_CANDIDATE_SCORE - 1
    cases = [
        ([above + 3, above, MIN_CANDIDATE_SCORE, below], [1, 1, 1, 1], [1, 1, 1, 0]),
        ([above + 3, above, above, above], [1, 1, 0, 0], [1, 1, 0, 0]),  # a short sentence
        ([below, below - 1, below - 2, below - 3], [1, 1, 1, 1], [1, 0, 0, 0]),
        ([below, below, below - 1, below], [1, 1, 1, 1], [1, 1, 0, 0]),  # equally good
        ([above, below, above, below], [1, 1, 1, 1], [1, 0, 0, 0]),  # they repeat
    ]
    scores, slots, expected = (list(column) for column in zip(*cases, strict=True))
    found = likely_candidates(kind(slots) > 0, kind(scores))
    assert (found == (kind(expected) > 0)).all()
    assert found.dtype in (torch.bool, np.bool_)


def test_likely_candidates_are_the_first_slots():
    """Otherwise a batch of short sentences, where they repeat, would select others."""
    lengths = [3, 2, 3, 1, 9, 3, 4]
    slots = torch.from_numpy(span_slots(np.array(lengths), "auto", "candidates"))
    for shift in range(8):
        scores = random_scores(lengths, seed=shift)
        scores = torch.where(scores > IMPOSSIBLE, scores - shift, scores)
        _, own = best_spans(scores, slots.shape[1])
        found = likely_candidates(slots, own)
        assert (found.int().diff(dim=1) <= 0).all() and found[:, 0].all()
        assert np.array_equal(found.numpy(), likely_candidates(slots.numpy(), own.numpy()))
        for row, words in enumerate(lengths):
            count = int(found[row].sum())
            good = sum(scores[row][span].item() >= MIN_CANDIDATE_SCORE for span in spans_of(words))
            if 0 < good < len(spans_of(words)):
                assert count == min(good, int(slots[row].sum()))


# The loss


def loss_by_loop(scores: torch.Tensor, words: int, gold: set[tuple[int, int]]) -> float:
    positive = negative = 1.0
    for span in spans_of(words):
        value = scores[span].item()
        if span in gold:
            positive += math.exp(-value)
        else:
            negative += math.exp(value)
    return math.log(positive) + math.log(negative)


GOLD = [[(0, 3), (1, 1), (2, 6)], [], [(0, 3)], [(1, 1), (0, 1)]]


def gold_of(
    gold: list[list[tuple[int, int]]], padding: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    most = max(1, *(len(own) for own in gold)) + padding
    table = torch.zeros(len(gold), most, 2, dtype=torch.int64)
    present = torch.zeros(len(gold), most, dtype=torch.bool)
    for row, own in enumerate(gold):
        for number, span in enumerate(own):
            table[row, number] = torch.tensor(span)
            present[row, number] = True
    return table, present


@pytest.mark.parametrize("scale", [1.0, 0.1])  # a few spans dominate, or none
def test_loss_equals_the_loop(scale):
    scores = random_scores(WORDS)
    scores = torch.where(scores > IMPOSSIBLE, scores * scale, IMPOSSIBLE)
    loss = span_loss(scores, *gold_of(GOLD))
    assert loss.shape == (4,)
    for row, words in enumerate(WORDS):
        expected = loss_by_loop(scores[row], words, set(GOLD[row]))
        assert loss[row].item() == pytest.approx(expected, rel=1e-5)


def test_loss_ignores_padding():
    scores = random_scores(WORDS)
    expected = span_loss(scores, *gold_of(GOLD))
    gold, present = gold_of(GOLD, padding=4)
    assert torch.allclose(span_loss(scores, gold, present), expected)
    gold[~present] = torch.tensor([0, 1])  # arbitrary values
    assert torch.allclose(span_loss(scores, gold, present), expected)
    wider = torch.full((4, 9, 9), IMPOSSIBLE)
    wider[:, :7, :7] = scores
    assert torch.allclose(span_loss(wider, *gold_of(GOLD)), expected)


def test_loss_without_entities():
    scores = random_scores(WORDS)
    loss = span_loss(scores, *gold_of([[], [], [], []]))
    for row, words in enumerate(WORDS):
        expected = loss_by_loop(scores[row], words, set())
        assert loss[row].item() == pytest.approx(expected, rel=1e-5)
    nothing = torch.where(scores > IMPOSSIBLE, -50.0, IMPOSSIBLE)
    assert span_loss(nothing, *gold_of([[], [], [], []])).max() < 1e-5


def test_loss_falls_when_gold_rises_and_the_rest_falls():
    scores = random_scores(WORDS)
    gold, present = gold_of(GOLD)
    is_gold = torch.zeros(4, 7, 7, dtype=torch.bool)
    for row, own in enumerate(GOLD):
        for span in own:
            is_gold[row][span] = True
    inside = scores > IMPOSSIBLE
    has_gold = present.any(1)

    def loss(up: float, down: float) -> torch.Tensor:
        moved = torch.where(is_gold, scores + up, scores - down)
        return span_loss(torch.where(inside, moved, IMPOSSIBLE), gold, present)

    assert (loss(1, 0) < loss(0, 0))[has_gold].all()
    assert (loss(0, 1) < loss(0, 0))[torch.tensor(WORDS) > 1].all()
    assert loss(100, 100).max() < 1e-5
    assert (loss(-100, -100) > 50).all()


def test_gradient_of_the_loss_reaches_exactly_the_spans():
    scores = random_scores(WORDS).requires_grad_()
    span_loss(scores, *gold_of(GOLD)).sum().backward()
    assert torch.equal(scores.grad != 0, scores.detach() > IMPOSSIBLE)
    assert scores.grad[0, 0, 3] < 0 < scores.grad[0, 0, 2], "gold rises, the rest falls"
