"""Matching against brute force, the objective against a loop, and the learning rate."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batches import TYPES, make_batch
from plain import plain_settings
from torch import nn

from diffusionner.batching import Batch
from diffusionner.diffusion import Coordinates, Schedule, mix_keys
from diffusionner.model.decoder import Prediction
from diffusionner.model.tensors import batch_to_device
from diffusionner.settings import Settings
from diffusionner.training.matching import (
    finite,
    match,
    matched_count,
    matching_cost,
    span_iou,
)
from diffusionner.training.objective import DenoisingObjective, NoisySpans, NotFinite, StepOutput
from diffusionner.training.optimisation import Phases

# (spans K, entities N, matches) → number of spans for each entity
SHARES = {
    (5, 1, 1): [1],
    (5, 1, 3): [3],
    (5, 1, 0): [5],
    (5, 2, 1): [1, 1],
    (5, 2, 2): [2, 2],
    (5, 2, 3): [2, 2],  # three each do not fit
    (5, 2, 0): [3, 2],
    (6, 4, 0): [2, 2, 1, 1],
    (6, 3, 9): [2, 2, 2],
    (4, 3, 2): [1, 1, 1],
    (3, 3, 0): [1, 1, 1],
    (3, 3, 2): [1, 1, 1],
}


def least_cost(cost: np.ndarray, columns: list[int]) -> tuple[float, list[int]]:
    """Return the lowest cost of giving each column its own row, and the column of each row."""
    best: tuple[float, list[int]] = (math.inf, [])
    for rows in itertools.permutations(range(len(cost)), len(columns)):
        total = sum(cost[row, column] for row, column in zip(rows, columns, strict=True))
        if total < best[0] - 1e-12:
            assigned = [-1] * len(cost)
            for row, column in zip(rows, columns, strict=True):
                assigned[row] = column
            best = (total, assigned)
    return best


@pytest.mark.parametrize(("spans", "entities", "matches"), SHARES)
def test_matching_is_optimal(spans, entities, matches):
    shares = SHARES[spans, entities, matches]
    columns = [entity for entity, share in enumerate(shares) for _ in range(share)]
    random = np.random.default_rng(0)
    for _ in range(5):
        cost = -random.uniform(0, 3, (1, 1, spans, entities))
        assigned = match(cost, np.array([entities]), matches)
        assert assigned.shape == (1, 1, spans)
        assert [int((assigned == entity).sum()) for entity in range(entities)] == shares
        assert assigned[0, 0].tolist() == least_cost(cost[0, 0], columns)[1]


@pytest.mark.parametrize("matches", [0, 1, 4])
def test_more_entities_than_spans(matches):
    random = np.random.default_rng(1)
    for _ in range(5):
        cost = -random.uniform(0, 3, (1, 1, 3, 5))
        assigned = match(cost, np.array([5]), matches)[0, 0]
        # Every span takes its own entity: the same problem with the sides swapped.
        _, spans_of = least_cost(cost[0, 0].T, [0, 1, 2])
        assert [spans_of[entity] for entity in assigned] == [0, 1, 2]


def test_without_entities_nothing_is_matched():
    cost = np.random.default_rng(0).normal(size=(2, 3, 4, 1))
    assert (match(cost, np.array([0, 0]), 1) == -1).all()


@pytest.mark.parametrize("matches", [0, 1, 2])
def test_a_batch_is_matched_like_its_parts(matches):
    random = np.random.default_rng(2)
    counts = np.array([2, 0, 4, 7])
    cost = random.normal(size=(4, 3, 6, 7))
    for i, count in enumerate(counts):
        cost[i, :, :, count:] = -100.0  # padding that would be cheap
    together = match(cost, counts, matches)
    for i, count in enumerate(counts):
        for d in range(3):
            part = cost[i : i + 1, d : d + 1, :, : max(1, count)]
            alone = match(part, counts[i : i + 1], matches)
            assert np.array_equal(together[i, d], alone[0, 0])


def test_the_number_of_matched_spans_is_known_in_advance():
    random = np.random.default_rng(3)
    for spans, entities, matches in itertools.product(range(1, 8), range(10), range(5)):
        cost = random.normal(size=(1, 1, spans, max(1, entities)))
        assigned = match(cost, np.array([entities]), matches)
        expected = int((assigned >= 0).sum())
        assert matched_count(entities, spans, matches) == expected, (spans, entities, matches)


def random_prediction(batch: int, draws: int, spans: int, words: int, types: int) -> Prediction:
    generator = torch.Generator().manual_seed(batch + 10 * draws + 100 * spans)

    def normal(*shape: int) -> torch.Tensor:
        return 2 * torch.randn(*shape, generator=generator)

    return Prediction(
        left=normal(batch, draws, spans, words),
        right=normal(batch, draws, spans, words),
        types=normal(batch, draws, spans, types + 1),
        spans=torch.zeros(batch, draws, spans, 2, dtype=torch.int64),
    )


def test_matching_cost_is_the_sum_of_three_probabilities():
    prediction = random_prediction(2, 3, 4, 6, 2)
    gold = torch.tensor([[[0, 3], [1, 1], [2, 5]], [[4, 5], [0, 0], [0, 0]]])
    types = torch.tensor([[0, 1, 1], [1, 0, 0]])
    cost = matching_cost(prediction, gold, types)
    # The cost of padding does not matter, but it must be computed without failing.
    padded = matching_cost(prediction, gold, torch.tensor([[0, 1, 1], [1, -1, -1]]))
    assert torch.equal(padded[0], cost[0]) and torch.equal(padded[1, ..., 0], cost[1, ..., 0])
    assert cost.shape == (2, 3, 4, 3)
    for b, d, k, n in itertools.product(range(2), range(3), range(4), range(3)):
        left = 1 / (1 + math.exp(-prediction.left[b, d, k, gold[b, n, 0]]))
        right = 1 / (1 + math.exp(-prediction.right[b, d, k, gold[b, n, 1]]))
        exponentials = [math.exp(v) for v in prediction.types[b, d, k]]
        kind = exponentials[types[b, n]] / sum(exponentials)
        assert cost[b, d, k, n].item() == pytest.approx(-(left + right + kind), abs=1e-5)


def test_iou_is_the_share_of_words_in_both():
    random = np.random.default_rng(0)
    spans = np.sort(random.integers(0, 9, (2, 3, 20, 2)), -1)
    gold = np.sort(random.integers(0, 9, (2, 5, 2)), -1)
    present = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]) > 0
    found = span_iou(torch.from_numpy(spans), torch.from_numpy(gold))
    masked = span_iou(*map(torch.from_numpy, (spans, gold, present)))
    assert found.shape == masked.shape == (2, 3, 20, 5)
    for b, d, k, n in np.ndindex(*found.shape):
        one, other = (set(range(left, right + 1)) for left, right in (spans[b, d, k], gold[b, n]))
        expected = len(one & other) / len(one | other)
        assert found[b, d, k, n].item() == pytest.approx(expected)
        assert masked[b, d, k, n].item() == pytest.approx(expected if present[b, n] else 0.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_only_costs_of_entities_must_be_finite(bad):
    counts = np.array([2, 0])
    cost = np.zeros((2, 3, 4, 3))
    assert finite(cost, counts)
    cost[0, :, :, 2] = bad  # padding
    cost[1] = bad  # a sentence without entities
    assert finite(cost, counts)
    cost[0, 2, 3, 1] = bad
    assert not finite(cost, counts)


# The objective


class FixedNetwork(nn.Module):
    """Returns the same prediction for every sentence."""

    def __init__(self, prediction: Prediction, settings: Settings) -> None:
        super().__init__()
        self.prediction = prediction
        self.coordinates = Coordinates(settings.diffusion.coordinates, settings.diffusion.scale)
        self.schedule = Schedule(settings.diffusion.schedule, settings.diffusion.timesteps)

    def prepare(self, batch: Batch[torch.Tensor], freeze_encoder: bool) -> SimpleNamespace:
        return SimpleNamespace(initial=None, fragments=None)

    def decoder(
        self, sentence: SimpleNamespace, spans: torch.Tensor, t: torch.Tensor
    ) -> Prediction:
        return self.prediction


LENGTHS = [6, 3, 4]
GOLD = [[(0, 3, 0), (1, 1, 1)], [], [(2, 3, 1)]]
SPANS = 5


def objective_of(prediction: Prediction, *overrides: str) -> DenoisingObjective:
    settings = plain_settings().override([f"diffusion.spans={SPANS}", *overrides])
    return DenoisingObjective(FixedNetwork(prediction, settings), settings)


def forward(
    objective: DenoisingObjective, batch: Batch[np.ndarray], denominator: float = 1.0
) -> torch.Tensor:
    noisy = objective.noise(batch, np.arange(len(batch.lengths)))
    return objective(batch_to_device(batch, torch.device("cpu")), noisy, denominator)


def loss_of(prediction: Prediction, batch: Batch[np.ndarray], *overrides: str) -> float:
    return forward(objective_of(prediction, *overrides), batch).item()


def loop_loss(prediction: Prediction, batch: Batch[np.ndarray], matches: int) -> float:
    gold, types = torch.from_numpy(batch.gold), torch.from_numpy(batch.gold_types)
    cost = matching_cost(prediction, gold, types).numpy()
    assigned = match(cost, batch.gold_counts, matches)
    loss = 0.0
    for b, d, k in np.ndindex(assigned.shape):
        entity = assigned[b, d, k]
        kind = TYPES if entity < 0 else int(batch.gold_types[b, entity])
        loss -= prediction.types[b, d, k].double().log_softmax(-1)[kind].item()
        if entity < 0:
            continue
        for side, scores in enumerate((prediction.left, prediction.right)):
            for word in range(int(batch.lengths[b])):
                p = 1 / (1 + math.exp(-scores[b, d, k, word].item()))
                loss -= math.log(p if word == batch.gold[b, entity, side] else 1 - p)
    return loss


@pytest.mark.parametrize("matches", [0, 1, 2])
@pytest.mark.parametrize("draws", [1, 3])
def test_loss_equals_the_loop(matches, draws):
    prediction = random_prediction(3, draws, SPANS, 6, TYPES)
    batch = make_batch(LENGTHS, GOLD)
    expected = loop_loss(prediction, batch, matches)
    found = loss_of(prediction, batch, f"training.matches_per_entity={matches}")
    assert found == pytest.approx(expected, rel=1e-5)


def test_no_entity_may_be_a_type_that_was_not_annotated():
    """If only the first type was annotated, a span without an entity may be any other type."""
    prediction = random_prediction(len(LENGTHS), 1, 7, max(LENGTHS), TYPES)
    batch = make_batch(LENGTHS, [[], [], []])
    whole = loss_of(prediction, batch)
    batch.annotated_types[1, 1:] = False
    log_p = prediction.types.log_softmax(-1)
    expected = -log_p[[0, 2], ..., -1].sum() - log_p[1, ..., 1:].logsumexp(-1).sum()
    assert loss_of(prediction, batch) == pytest.approx(expected.item(), rel=1e-5)
    assert loss_of(prediction, batch) < whole


def test_loss_is_divided_by_the_denominator():
    prediction = random_prediction(3, 1, SPANS, 6, TYPES)
    batch = make_batch(LENGTHS, GOLD)
    objective = objective_of(prediction)
    whole, part = (forward(objective, batch, number).item() for number in (1.0, 8.0))
    assert part == pytest.approx(whole / 8)


def test_loss_ignores_padding():
    prediction = random_prediction(3, 2, SPANS, 6, TYPES)
    batch = make_batch(LENGTHS, GOLD)
    before = loss_of(prediction, batch)
    for i, length in enumerate(LENGTHS):
        prediction.left[i, ..., length:] = 50.0
        prediction.right[i, ..., length:] = 50.0
    assert loss_of(prediction, batch) == pytest.approx(before)
    assert loss_of(prediction, make_batch(LENGTHS, GOLD, padding=3)) == pytest.approx(before)


def perfect(draws: int, certainty: float) -> Prediction:
    """Return scores of the gold entities, one span each, and of no entity elsewhere."""
    shape = (3, draws, SPANS)
    left, right = torch.full((*shape, 6), -certainty), torch.full((*shape, 6), -certainty)
    types = torch.zeros(*shape, TYPES + 1)
    types[..., TYPES] = certainty
    for b, entities in enumerate(GOLD):
        for slot, (first, last, kind) in enumerate(entities, start=1):
            left[b, :, slot, first] = right[b, :, slot, last] = certainty
            types[b, :, slot, kind] = certainty
            types[b, :, slot, TYPES] = 0.0
    return Prediction(left, right, types, torch.zeros(*shape, 2, dtype=torch.int64))


def test_better_predictions_have_smaller_losses():
    batch = make_batch(LENGTHS, GOLD)
    losses = [loss_of(perfect(2, certainty), batch) for certainty in (-3.0, 0.0, 1.0, 4.0, 30.0)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == pytest.approx(0, abs=1e-6)
    assert loss_of(random_prediction(3, 2, SPANS, 6, TYPES), batch) > losses[3]


def test_pointing_everywhere_has_a_larger_loss():
    batch = make_batch(LENGTHS, GOLD)
    right, everywhere = perfect(1, 10.0), perfect(1, 10.0)
    everywhere.left.fill_(10.0)
    assert loss_of(everywhere, batch) > loss_of(right, batch) + 50


def test_the_gradient_reaches_every_relevant_score():
    prediction = random_prediction(3, 1, SPANS, 6, TYPES)
    batch = make_batch(LENGTHS, GOLD)
    for scores in (prediction.left, prediction.right, prediction.types):
        scores.requires_grad_()
    forward(objective_of(prediction), batch).backward()
    assert (prediction.types.grad != 0).all()
    words_with_gradient = (prediction.left.grad != 0).sum((1, 2, 3)).tolist()
    assert words_with_gradient == [2 * 6, 0, 1 * 4]  # matched spans × words


def test_matched_spans_count_over_draws():
    prediction = random_prediction(3, 3, SPANS, 6, TYPES)
    changes = ("training.matches_per_entity=2", "decoder.initializer=spans")
    objective = objective_of(prediction, *changes)
    assert objective.denominator(np.array([2, 0, 1])) == 3 * (4 + 0 + 2)


# Six words with an entity of three words and one of a single word, and noisy spans.
NEAR_GOLD = [[(0, 2, 1), (4, 4, 0)]]
NEAR_SPANS = torch.tensor([[[[1, 2], [5, 5], [0, 2], [3, 4], [0, 5]]]])
# Their IoU with the first entity is 2/3, 0, 1, 0 and 1/2, with the second 0, 0, 0, 1/2 and 1/6.


def near_step() -> StepOutput:
    """Return a prediction whose second span is a little closer to the first entity."""
    prediction = Prediction(
        torch.zeros(1, 1, SPANS, 6),
        torch.zeros(1, 1, SPANS, 6),
        torch.zeros(1, 1, SPANS, TYPES + 1),
        NEAR_SPANS,
    )
    prediction.left[0, 0, 1, 0] = 0.1
    return StepOutput(prediction, None)


def random_near_step(sentences: int = 1) -> StepOutput:
    """Return a random prediction from the spans near the entities."""
    prediction = random_prediction(sentences, 1, SPANS, 6, TYPES)
    spans = NEAR_SPANS.expand(sentences, 1, SPANS, 2)
    return StepOutput(replace(prediction, spans=spans), None)


@pytest.mark.parametrize("weight", [0.0, 0.5, 2.0])
def test_spans_that_overlap_an_entity_cost_less(weight):
    step, tensors = near_step(), batch_to_device(make_batch([6], NEAR_GOLD), torch.device("cpu"))
    plain = matching_cost(step.prediction, tensors.gold, tensors.gold_types)
    objective = objective_of(step.prediction, f"training.overlap_cost={weight}")
    costs = objective.costs(step, tensors)
    shares = torch.tensor([[2 / 3, 0], [0, 0], [1, 0], [0, 1 / 2], [1 / 2, 1 / 6]])
    assert torch.allclose(costs, plain - weight * shares, atol=1e-6)
    assigned = objective.assign(costs.numpy(), np.array([2]))[0, 0].tolist()
    # Without the overlap cost only the prediction counts, with it also the position of spans.
    if weight:
        assert assigned == [-1, -1, 0, 1, -1]
    else:
        assert assigned[1] == 0


@pytest.mark.parametrize(
    ("iou", "expected"),
    [
        (0.0, [-1, -1, 0, -1, -1]),
        (1.0, [-1, -1, 0, -1, -1]),
        (0.6, [0, -1, 0, -1, -1]),
        (0.5, [0, -1, 0, 1, 0]),
        (0.1, [0, -1, 0, 1, 0]),  # the last overlaps the first entity more
    ],
)
def test_spans_near_an_entity_are_matched_softly(iou, expected):
    batch = make_batch([6], NEAR_GOLD, padding=2)  # padding must not count as an entity at word 0
    tensors = batch_to_device(batch, torch.device("cpu"))
    step = random_near_step()
    matched = torch.tensor([[[-1, -1, 0, -1, -1]]])
    objective = objective_of(step.prediction, f"training.soft_match_iou={iou}")
    found = objective.loss(step, tensors, matched)
    plain = objective_of(step.prediction).loss(step, tensors, torch.tensor([[expected]]))
    assert found.item() == pytest.approx(plain.item(), rel=1e-6)


def test_soft_matching_does_not_change_matched_spans():
    tensors = batch_to_device(make_batch([6], NEAR_GOLD), torch.device("cpu"))
    step = random_near_step()
    matched = torch.tensor([[[1, 0, 1, 0, 1]]])
    losses = [
        objective_of(step.prediction, *changes).loss(step, tensors, matched).item()
        for changes in ((), ("training.soft_match_iou=0.1",))
    ]
    assert losses[0] == losses[1]


def test_soft_matching_without_entities_changes_nothing():
    tensors = batch_to_device(make_batch([6, 6], [[], []]), torch.device("cpu"))
    step = random_near_step(2)
    nothing = torch.full((2, 1, SPANS), -1)
    losses = [
        objective_of(step.prediction, *changes).loss(step, tensors, nothing).item()
        for changes in ((), ("training.soft_match_iou=0.1", "training.overlap_cost=1"))
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("field", ["left", "right", "types"])
def test_predictions_that_are_not_finite_raise(field):
    prediction = random_prediction(3, 1, SPANS, 6, TYPES)
    getattr(prediction, field)[0, 0, 2] = math.nan
    with pytest.raises(NotFinite):
        loss_of(prediction, make_batch(LENGTHS, GOLD))


# The forward process in training


def noised(batch: Batch[np.ndarray], keys: np.ndarray, draws: int, *overrides: str) -> NoisySpans:
    """Noise the batch several times, each time with other keys."""
    prediction = random_prediction(len(batch.lengths), 1, SPANS, 6, TYPES)
    objective = objective_of(prediction, *overrides)
    drawn = [objective.noise(batch, mix_keys(keys, draw)) for draw in range(draws)]
    spans, t = (np.concatenate([getattr(one, name) for one in drawn], 1) for name in ("spans", "t"))
    return drawn[0]._replace(spans=spans, t=t)


def test_noisy_spans_lie_within_their_sentences():
    noisy = noised(make_batch(LENGTHS, GOLD), np.arange(3), 200)
    assert noisy.spans.shape == (3, 200, SPANS, 2)
    assert noisy.t.shape == (3, 200)
    assert noisy.spans.dtype == noisy.t.dtype == np.int64  # moved to a device in one copy
    left, right = np.moveaxis(noisy.spans, -1, 0)
    assert (left >= 0).all() and (left <= right).all()
    assert right.max((1, 2)).tolist() == [length - 1 for length in LENGTHS]


def test_timesteps_are_uniform_over_the_process():
    overrides = ("diffusion.timesteps=10",)
    noisy = noised(make_batch(LENGTHS, GOLD), np.arange(3), 2000, *overrides)
    shares = np.bincount(noisy.t.ravel(), minlength=12) / noisy.t.size
    assert shares[0] == 0 and shares[11] == 0
    assert shares[1:11].tolist() == pytest.approx([0.1] * 10, abs=0.02)


def test_little_noise_keeps_the_gold_and_much_noise_hides_it():
    batch = make_batch(LENGTHS, GOLD)
    noisy = noised(batch, np.arange(3), 2000, "diffusion.expansion=repetition")
    gold = batch.gold[0, :2]
    is_gold = (noisy.spans[0, :, :, None] == gold).all(-1).any(-1).mean(-1)  # [D]
    assert is_gold[noisy.t[0] <= 5].mean() == 1
    assert is_gold[noisy.t[0] >= 900].mean() < 0.3


def test_noise_depends_on_the_key_alone():
    batch = make_batch(LENGTHS, GOLD)
    keys = mix_keys(np.arange(3), 7)
    together = noised(batch, keys, 4)
    last = noised(make_batch(LENGTHS[2:], GOLD[2:]), keys[2:], 4)
    assert np.array_equal(together.spans[2:], last.spans)
    assert np.array_equal(together.t[2:], last.t)
    assert len(np.unique(together.t)) == 12, "every sentence and draw has its own timestep"


# The learning rate


def test_the_rate_rises_and_falls_in_each_phase():
    phases = Phases(frozen=10, full=20, warmup=0.2)
    factors = [phases.factor(step) for step in range(phases.frozen + phases.full)]
    assert factors[:2] == [0.5, 1.0]
    assert factors[2:10] == pytest.approx([(10 - step) / 8 for step in range(2, 10)])
    assert factors[10:14] == [0.25, 0.5, 0.75, 1.0]
    assert factors[14:] == pytest.approx([(20 - step) / 16 for step in range(4, 20)])
    assert phases.factor(phases.frozen + phases.full) == 0


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("frozen", [0, 1, 7])
@pytest.mark.parametrize("full", [1, 2, 30])
def test_rates_stay_between_zero_and_the_peak(frozen, full, warmup):
    phases = Phases(frozen, full, warmup)
    factors = [phases.factor(step) for step in range(phases.frozen + phases.full)]
    assert all(0 < factor <= 1 for factor in factors)
    assert max(factors[frozen:]) == 1
    assert not frozen or max(factors[:frozen]) == 1
