"""The diffusion process against closed forms, reference arithmetic and statistics."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from diffusionner.diffusion import (
    Coordinates,
    Schedule,
    expand,
    gaussian_noise,
    mix_keys,
    reverse_process,
    timestep_sequence,
)
from diffusionner.diffusion.sampler import ddim_step

KINDS = ["left-right", "left-width"]
SCHEDULES = ["cosine", "linear"]


# Schedule


@pytest.mark.parametrize("timesteps", [1, 10, 1000])
def test_cosine_schedule_equals_the_closed_form(timesteps):
    def curve(t: int) -> float:
        return math.cos((t / timesteps + 0.008) / 1.008 * math.pi / 2) ** 2

    alpha_bar = Schedule("cosine", timesteps).alpha_bar
    assert alpha_bar.dtype == np.float32
    expected = [curve(t) / curve(0) for t in range(timesteps)]
    assert alpha_bar[:-1].tolist() == pytest.approx(expected, rel=1e-6)
    # The curve ends at zero; beta is limited to 0.999, so that the last step stays finite.
    assert alpha_bar[-1].item() == pytest.approx(expected[-1] * 0.001, rel=1e-6)


@pytest.mark.parametrize("timesteps", [100, 1000, 2500])
def test_linear_schedule_equals_the_product_of_betas(timesteps):
    alpha_bar = Schedule("linear", timesteps).alpha_bar
    product = 1.0
    for t in range(1, timesteps + 1):
        share = (t - 1) / (timesteps - 1)
        product *= 1 - (1e-4 + share * (0.02 - 1e-4)) * 1000 / timesteps
        assert alpha_bar[t].item() == pytest.approx(product, rel=1e-5)


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("timesteps", [2, 5, 50, 100, 1000, 4000])
def test_schedules_go_from_clean_to_noise(kind, timesteps):
    alpha_bar = Schedule(kind, timesteps).alpha_bar
    assert len(alpha_bar) == timesteps + 1
    assert alpha_bar[0] == 1
    assert (np.diff(alpha_bar) < 0).all()
    assert 0 < alpha_bar[-1] < 1e-3


def test_linear_schedule_of_one_step_ends_in_noise():
    assert Schedule("linear", 1).alpha_bar[-1] < 1e-2


def test_unknown_schedule():
    with pytest.raises(ValueError, match="'quadratic'"):
        Schedule("quadratic", 10)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_noised_spans_have_the_expected_mean_and_variance(kind):
    schedule = Schedule(kind, 1000)
    times = np.array([1, 100, 400, 900, 1000])
    x0 = np.float32([[0.7, -0.4]])  # [K, 2]
    draws = 40_000
    noise = gaussian_noise(np.arange(draws), 5, 1, 2)  # [draws, times, K, 2]
    x = schedule.add_noise(x0, np.broadcast_to(times, (draws, 5)), noise)
    assert x.dtype == np.float32
    for i, t in enumerate(times.tolist()):
        alpha_bar = schedule.alpha_bar[t].item()
        error = 5 * math.sqrt((1 - alpha_bar) / draws)
        for side in (0, 1):
            values = x[:, i, 0, side].astype(np.float64)
            expected = math.sqrt(alpha_bar) * x0[0, side].item()
            assert values.mean() == pytest.approx(expected, abs=error)
            assert values.var() == pytest.approx(1 - alpha_bar, rel=0.04)


def test_no_noise_is_added_at_timestep_zero():
    x0, noise = np.random.default_rng(0).normal(size=(2, 3, 4, 2)).astype(np.float32)
    x = Schedule("cosine", 10).add_noise(x0, np.zeros(3, dtype=np.int64), noise)
    assert np.array_equal(x, x0)


# Coordinates


def spans_of(length: int) -> np.ndarray:
    """Return all spans of a sentence; for long ones each left boundary with a few right ones."""
    if length <= 40:
        pairs = [(i, j) for i in range(length) for j in range(i, length)]
    else:
        pairs = [(i, j) for i in range(length) for j in {i, (i + length) // 2, length - 1}]
    return np.array(pairs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [0.01, 0.5, 1.0, 2.0, 7.3])
def test_coordinates_round_trip(kind, scale):
    coordinates = Coordinates(kind, scale)
    for length in [*range(1, 41), 97, 128, 511, 3001]:
        spans = spans_of(length)
        x = coordinates.encode(spans, np.array(length))
        assert (np.abs(x) < scale).all()
        assert np.array_equal(coordinates.decode(x, np.array(length)), spans), length


def test_coordinates_are_cell_centres():
    spans = np.array([[0, 3], [2, 2]])
    length = np.array(4)
    x = Coordinates("left-right", 2.0).encode(spans, length)
    assert x.tolist() == [[-1.5, 1.5], [0.5, 0.5]]
    x = Coordinates("left-width", 2.0).encode(spans, length)
    assert x.tolist() == [[-1.5, 1.5], [0.5, -1.5]]


@pytest.mark.parametrize("kind", KINDS)
def test_every_point_of_a_cell_decodes_to_its_word(kind):
    coordinates = Coordinates(kind, 1.0)
    length = 11
    spans = spans_of(length)
    x = coordinates.encode(spans, np.array(length))
    for shift in (-0.99, -0.5, 0.5, 0.99):  # in half cells, which are 1 / length wide
        assert np.array_equal(coordinates.decode(x + shift / length, np.array(length)), spans)


def test_coordinates_of_sentences_with_different_lengths():
    lengths = np.array([[3], [9]])  # [B, 1], against spans [B, D, K, 2]
    spans = np.array([[[[0, 2], [1, 1]]], [[[0, 8], [4, 7]]]])
    for kind in KINDS:
        coordinates = Coordinates(kind, 1.0)
        x = coordinates.encode(spans, lengths)
        assert np.array_equal(x[1, 0], coordinates.encode(spans[1, 0], np.array(9)))
        assert np.array_equal(coordinates.decode(x, lengths), spans)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [0.01, 1.0, 3.0])
def test_any_real_numbers_decode_to_a_span(kind, scale):
    coordinates = Coordinates(kind, scale)
    extremes = [0.0, -0.0, 1e-30, 1.0, -1.0, 1e8, -1e8, 3e38, -3e38]
    pairs = np.float32(list(itertools.product(extremes, extremes)))
    random = np.random.default_rng(0).normal(size=(3000, 2)).astype(np.float32)
    with np.errstate(over="ignore"):  # infinity is one of the numbers
        x = np.concatenate([pairs, scale * pairs, random, 1e3 * random, 1e25 * random])
    for length in (1, 2, 7, 200):
        with np.errstate(over="ignore"):
            left, right = np.moveaxis(coordinates.decode(x, np.array(length)), -1, 0)
        assert ((left >= 0) & (left <= right) & (right < length)).all()


def test_noise_may_swap_the_boundaries():
    x = np.float32([[0.9, -0.9]])
    assert Coordinates("left-right", 1.0).decode(x, np.array(10)).tolist() == [[0, 9]]


def test_a_span_that_is_too_wide_ends_with_the_sentence():
    x = np.float32([[0.5, 0.9]])
    assert Coordinates("left-width", 1.0).decode(x, np.array(10)).tolist() == [[7, 9]]


@pytest.mark.parametrize("size", [1e3, 1e12])
def test_values_out_of_range_decode_to_the_outer_words(size):
    x = np.float32([[-size, -size], [-size, size], [size, size]])
    for kind in KINDS:
        decoded = Coordinates(kind, 1.0).decode(x, np.array(10)).tolist()
        assert decoded == [[0, 0], [0, 9], [9, 9]]


def test_huge_values_decode_to_the_outer_words():
    x = np.float32([[1e30, 1e30]])
    assert Coordinates("left-right", 1.0).decode(x, np.array(10)).tolist() == [[9, 9]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [0.3, 1.0, 2.0])
def test_coordinates_agree_between_numpy_and_torch(kind, scale):
    coordinates = Coordinates(kind, scale)
    random = np.random.default_rng(0)
    lengths = random.integers(1, 200, (50, 1))  # [B, 1], against spans [B, D, K, 2]
    left = random.integers(0, lengths[..., None], (50, 3, 20))
    spans = np.stack([left, random.integers(left, lengths[..., None])], -1)
    x = coordinates.encode(spans, lengths)
    on_torch = coordinates.encode(torch.from_numpy(spans), torch.from_numpy(lengths))
    assert on_torch.dtype == torch.float32 and x.dtype == np.float32
    assert np.array_equal(on_torch.numpy(), x)
    for noisy in (x, gaussian_noise(np.arange(150).reshape(50, 3), 20, 2) * np.float32(scale)):
        words = coordinates.decode(noisy, lengths)
        on_torch = coordinates.decode(torch.from_numpy(noisy), torch.from_numpy(lengths))
        assert on_torch.dtype == torch.int64 and words.dtype == np.int64
        assert np.array_equal(on_torch.numpy(), words)


# Expansion


LENGTHS = np.array([12, 5, 30])
COUNTS = np.array([3, 0, 7])


@pytest.fixture
def gold() -> np.ndarray:
    """[3, 7, 2]: three, zero and seven distinct entities; the rest is padding."""
    table = np.zeros((3, 7, 2), dtype=np.int64)
    table[0, :3] = [[0, 3], [1, 2], [11, 11]]
    table[2] = [[i, 2 * i + 3] for i in range(1, 8)]
    return table


def expanded(gold, strategy, spans, draws=4, kind="left-right", scale=1.0, first_key=0):
    """Return x_0 and the same as word spans."""
    coordinates = Coordinates(kind, scale)
    keys = mix_keys(np.arange(3 * draws).reshape(3, draws), first_key)
    x = expand(gold, COUNTS, LENGTHS, keys, spans, strategy, coordinates)
    assert x.shape == (3, draws, spans, 2) and x.dtype == np.float32
    return x, coordinates.decode(x, LENGTHS[:, None])


def as_set(spans: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(span) for span in spans.tolist()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["random", "repetition"])
def test_all_entities_are_kept_if_they_fit(gold, strategy, kind):
    _, spans = expanded(gold, strategy, spans=9, kind=kind, scale=2.0)
    for draw in range(4):
        assert as_set(gold[0, :3]) <= as_set(spans[0, draw])
        assert as_set(gold[2]) <= as_set(spans[2, draw])


def test_repetition_repeats_evenly(gold):
    _, spans = expanded(gold, "repetition", spans=8)
    for draw in range(4):
        repeated = [tuple(span) for span in spans[0, draw].tolist()]
        assert sorted(repeated.count(span) for span in as_set(gold[0, :3])) == [2, 3, 3]


def test_random_expansion_adds_gaussian_spans(gold):
    scale = 2.0
    x, spans = expanded(gold, "random", spans=400, draws=8, scale=scale)
    for draw in range(8):
        assert as_set(spans[0, draw, :3]) == as_set(gold[0, :3])
        assert as_set(spans[2, draw, :7]) == as_set(gold[2])
    filled = np.concatenate([x[0, :, 3:].ravel(), x[1].ravel(), x[2, :, 7:].ravel()])
    # The ends of (-scale, scale) are three standard deviations from the middle.
    assert stats.kstest(filled, "norm", args=(0, scale / 3)).pvalue > 0.01


@pytest.mark.parametrize("strategy", ["random", "repetition"])
def test_without_entities_all_spans_are_random(gold, strategy):
    x, _ = expanded(gold, strategy, spans=300, draws=2)
    assert stats.kstest(x[1].ravel(), "norm", args=(0, 1 / 3)).pvalue > 0.01


@pytest.mark.parametrize("strategy", ["random", "repetition"])
def test_more_entities_than_slots(gold, strategy):
    _, spans = expanded(gold, strategy, spans=4, draws=40)
    chosen = [frozenset(as_set(spans[2, draw])) for draw in range(40)]
    assert all(len(c) == 4 and c <= as_set(gold[2]) for c in chosen), "distinct gold entities"
    assert len(set(chosen)) > 10, "draws choose independently"
    assert frozenset().union(*chosen) == as_set(gold[2]), "every entity is chosen sometimes"


@pytest.mark.parametrize("strategy", ["random", "repetition"])
def test_draws_differ_and_equal_keys_give_equal_draws(gold, strategy):
    x, _ = expanded(gold, strategy, spans=9)
    for sentence, distinct in ((0, 2), (1, 4), (2, 4)):  # three entities have only six orders
        assert len(np.unique(x[sentence].reshape(4, -1), axis=0)) >= distinct
    again, _ = expanded(gold, strategy, spans=9)
    assert np.array_equal(x, again)
    other, _ = expanded(gold, strategy, spans=9, first_key=1)
    assert not np.array_equal(x, other)


@pytest.mark.parametrize("strategy", ["random", "repetition"])
def test_expansion_does_not_depend_on_the_batch(gold, strategy):
    coordinates = Coordinates("left-right", 1.0)
    keys = np.arange(6).reshape(3, 2)
    together = expand(gold, COUNTS, LENGTHS, keys, 9, strategy, coordinates)
    alone = expand(gold[:1, :3], COUNTS[:1], LENGTHS[:1], keys[:1], 9, strategy, coordinates)
    assert np.array_equal(together[:1], alone)


# Reverse process


def test_timestep_sequence():
    assert timestep_sequence(1000, 5) == [1000, 800, 600, 400, 200, 0]
    assert timestep_sequence(1000, 1) == [1000, 0]
    assert timestep_sequence(10, 10) == list(range(10, -1, -1))
    assert timestep_sequence(10, 3) == [10, 7, 3, 0]


@pytest.mark.parametrize("start", [1, 2, 7, 100, 999])
def test_timestep_sequences_descend_evenly(start):
    for steps in range(1, start + 1):
        sequence = timestep_sequence(start, steps)
        assert len(sequence) == steps + 1
        assert (sequence[0], sequence[-1]) == (start, 0)
        gaps = -np.diff(sequence)
        assert gaps.min() >= 1 and gaps.max() - gaps.min() <= 2
        ideal = np.linspace(start, 0, steps + 1)
        assert np.abs(np.array(sequence) - ideal).max() <= 0.5 + 1e-9


@pytest.mark.parametrize(("start", "steps"), [(10, 0), (10, 11), (10, -1), (0, 1)])
def test_impossible_timestep_sequences(start, steps):
    with pytest.raises(ValueError, match=f"{steps} denoising steps do not fit into {start}"):
        timestep_sequence(start, steps)


TIMESTEPS = 200


def run_perfect_denoiser(kind, schedule_kind, steps, eta, spans, lengths, draws=1, seed=0):
    """Run the reverse process with a denoiser that knows the gold."""
    coordinates, schedule = Coordinates(kind, 1.0), Schedule(schedule_kind, TIMESTEPS)
    keys = mix_keys(np.arange(len(spans)), seed)
    x0 = coordinates.encode(spans, lengths[:, None])
    x0 = np.broadcast_to(x0, (len(spans), draws, *x0.shape[2:]))
    start = np.full((len(spans), draws), TIMESTEPS)
    noise = gaussian_noise(mix_keys(keys, 0), *x0.shape[1:])

    def fresh(step):
        return gaussian_noise(mix_keys(keys, step), *x0.shape[1:])

    sequence = timestep_sequence(TIMESTEPS, steps)
    x = schedule.add_noise(x0, start, noise)
    steps = reverse_process(lambda x, t: (x0, t), x, schedule.alpha_bar, sequence, eta, fresh)
    steps = list(steps)
    result = coordinates.decode(steps[-1].next_x, lengths[:, None])
    return result, [(step.prediction, step.x) for step in steps], x0, noise, schedule


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("steps", [1, 2, 5, 10, 50, TIMESTEPS])
def test_a_perfect_denoiser_recovers_the_gold(kind, schedule, steps):
    spans = np.array([[[[0, 4], [1, 1], [3, 9]]], [[[0, 0], [1, 2], [2, 2]]]])
    lengths = np.array([10, 3])
    result, seen, x0, noise, schedule = run_perfect_denoiser(
        kind, schedule, steps, 0.0, spans, lengths
    )
    assert np.array_equal(result, spans)
    assert [t for t, _ in seen] == timestep_sequence(TIMESTEPS, steps)[:-1]
    # Without fresh noise, x_t is x_0 with the initial noise at the level of t.
    for t, x in seen:
        expected = schedule.add_noise(x0, np.full((2, 1), t), noise)
        assert x.dtype == np.float32
        assert np.allclose(x, expected, atol=1e-4)


@pytest.mark.parametrize("eta", [0.5, 1.0])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stochastic_steps_keep_the_marginal_distribution(schedule, eta):
    many = 20_000
    spans = np.broadcast_to([[[[1, 8]]]], (many, 1, 1, 2))
    _, seen, x0, noise, schedule = run_perfect_denoiser(
        "left-right", schedule, 5, eta, spans, np.full(many, 10)
    )
    assert len(seen) == 5
    for t, x in seen:
        alpha_bar = schedule.alpha_bar[t].item()
        error = 5 * math.sqrt((1 - alpha_bar) / many)
        values = x.astype(np.float64).reshape(many, 2)
        mean, variance = values.mean(0), values.var(0)
        expected = math.sqrt(alpha_bar) * x0[0].ravel()
        assert np.allclose(mean, expected, atol=error)
        assert variance.tolist() == pytest.approx([1 - alpha_bar] * 2, rel=0.06)
    # With fresh noise at every step, the last x correlates less with the first than for eta = 0.
    first, last = noise.ravel(), (seen[-1][1] - seen[-1][1].mean(0)).ravel()
    assert np.corrcoef(first, last)[0, 1] < 0.95
    if eta == 1:
        assert np.corrcoef(first, last)[0, 1] < 0.5


def test_stochastic_steps_are_a_function_of_the_keys():
    spans = np.array([[[[1, 8], [2, 3]]]])
    lengths = np.array([10])
    runs = [
        run_perfect_denoiser("left-right", "cosine", 5, 1.0, spans, lengths, seed=seed)[1]
        for seed in (0, 0, 1)
    ]
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(runs[0], runs[1], strict=True))
    assert not np.array_equal(runs[0][1][1], runs[2][1][1])


@pytest.mark.parametrize("t", [2, 25, 50])
def test_eta_one_is_ddpm(t):
    # Between adjacent timesteps it is the posterior q(x_{t-1} | x_t, x_0) of Ho et al.
    later, now = Schedule("cosine", 50).alpha_bar[t - 1 : t + 1].tolist()
    beta = 1 - now / later
    x, x0, noise = np.array([[0.8], [-0.3], [1.7]])
    mean = (math.sqrt(later) * beta * x0 + math.sqrt(1 - beta) * (1 - later) * x) / (1 - now)
    sigma = math.sqrt((1 - later) / (1 - now) * beta)
    assert np.allclose(ddim_step(x, x0, now, later, 1.0, noise), mean + sigma * noise)
    steps = [ddim_step(x, x0, now, later, 0.5, value) for value in (noise, 0 * noise)]
    assert np.allclose(steps[0] - steps[1], 0.5 * sigma * noise)


def test_stochastic_steps_need_noise():
    x = np.zeros((1, 1, 2))
    with pytest.raises(ValueError, match="eta > 0 needs noise"):
        ddim_step(x, x, 0.1, 0.5, eta=0.5)
    alpha_bar = Schedule("cosine", 10).alpha_bar
    with pytest.raises(ValueError, match="eta > 0 needs noise"):
        next(reverse_process(lambda x, t: (x, None), x, alpha_bar, [10, 5, 0], eta=0.5))


@pytest.mark.parametrize(("eta", "drawn"), [(0.0, []), (0.3, [1, 2, 3]), (1.0, [1, 2, 3])])
def test_noise_is_drawn_once_for_each_stochastic_step(eta, drawn):
    """Step 0 is reserved for the noise that the process starts from."""
    x = np.zeros((1, 1, 2, 2), dtype=np.float32)
    steps = []

    def noise(step):
        steps.append(step)
        return x

    alpha_bar = Schedule("cosine", 100).alpha_bar
    sequence = timestep_sequence(100, 4)
    done = list(reverse_process(lambda x, t: (x, t), x, alpha_bar, sequence, eta, noise))
    assert [step.prediction for step in done] == sequence[:-1]
    assert steps == drawn, "no more noise than needed"


def test_each_step_starts_where_the_last_one_ended():
    alpha_bar = Schedule("cosine", 100).alpha_bar
    x, x0 = gaussian_noise(np.arange(2), 1, 3, 2)
    steps = list(reverse_process(lambda x, t: (x0, t), x, alpha_bar, timestep_sequence(100, 4)))
    assert np.array_equal(steps[0].x, x)
    for (_, t, next_x), step in itertools.pairwise(steps):
        assert np.array_equal(step.x, next_x)
        assert np.array_equal(next_x, ddim_step(x, x0, alpha_bar[t], alpha_bar[step.prediction]))
        x = next_x
    assert np.array_equal(steps[-1].next_x, x0), "the last step ends with x̂_0"


def test_timesteps_may_differ_between_sentences():
    alpha_bar = Schedule("cosine", 100).alpha_bar
    x, x0 = gaussian_noise(np.arange(2), 3, 1, 4, 2)
    first, later = np.array([[100], [100], [20]]), np.array([[1], [60], [20]])
    (step,) = reverse_process(lambda x, t: (x0, None), x, alpha_bar, [first, later])
    for row in range(3):
        now, then = alpha_bar[first[row, 0]], alpha_bar[later[row, 0]]
        expected = ddim_step(x[row], x0[row], now, then)
        assert np.allclose(step.next_x[row], expected, atol=1e-5)
    assert np.allclose(step.next_x[2], x[2], atol=1e-5), "no step at all"


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_steps_agree_between_numpy_and_torch(schedule, eta):
    alpha_bar = Schedule(schedule, 100).alpha_bar.tolist()
    x, x0, noise = gaussian_noise(np.arange(3), 4, 2, 30, 2)
    tensors = [torch.from_numpy(value) for value in (x, x0, noise)]
    for now, later in ((100, 99), (100, 50), (60, 10), (2, 1), (1, 0)):
        step = ddim_step(x, x0, alpha_bar[now], alpha_bar[later], eta, noise)
        on_torch = ddim_step(*tensors[:2], alpha_bar[now], alpha_bar[later], eta, tensors[2])
        assert on_torch.dtype == torch.float32 and step.dtype == np.float32
        assert np.allclose(on_torch.numpy(), step, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_the_reverse_process_agrees_between_numpy_and_torch(eta):
    coordinates, schedule = Coordinates("left-right", 1.0), Schedule("cosine", 100)
    lengths = np.array([[10], [33]])

    def run(convert):
        """convert: turns a numpy array into one of the backend."""
        words = convert(lengths)

        def denoise(x, t):  # predicts the spans that it sees
            spans = coordinates.decode(x, words)
            return coordinates.encode(spans, words), spans

        def noise(step):
            return convert(gaussian_noise(mix_keys(np.arange(2), step), 1, 9, 2))

        sequence = timestep_sequence(100, 5)
        steps = reverse_process(denoise, noise(0), schedule.alpha_bar, sequence, eta, noise)
        return list(steps)[-1].prediction

    on_host, on_torch = run(np.asarray), run(torch.from_numpy)
    assert isinstance(on_host, np.ndarray) and isinstance(on_torch, torch.Tensor)
    assert np.array_equal(on_torch.numpy(), on_host)
