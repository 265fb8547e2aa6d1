"""Quantisation steps of weights and inputs."""

from __future__ import annotations

import numpy as np
import pytest

from diffusionner.export.rounding import InputSample, InputSteps, choose_steps, round_weights


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(0)


def sample_of(rows: np.ndarray) -> InputSample:
    sample = InputSample(rows.shape[-1])
    for part in np.array_split(rows, 4):
        sample.add(part)
    return sample


def product(rows: np.ndarray, weights: np.ndarray, steps: InputSteps) -> np.ndarray:
    """Compute the product as the graph does."""
    rounded = np.rint(rows / steps.factors / steps.step) + steps.zero
    integers, of_column = round_weights(weights * steps.factors[:, None])
    sums = (rounded.clip(0, 255).astype(int) - steps.zero) @ integers.astype(int)
    return sums * steps.step * of_column


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


# Weights


@pytest.mark.parametrize("rows", [7, 8])
def test_pairs_of_weights_fit_16_bits(generator, rows):
    weights = generator.normal(size=(rows, 200)).astype(np.float32)
    weights[:2, 0], weights[2:4, 1] = 9, -9  # the largest weights, in pairs
    integers, steps = round_weights(weights)
    assert integers.dtype == np.int8 and steps.dtype == np.float32
    assert np.abs(integers * steps - weights).max() <= 0.5001 * steps.max()
    even = np.pad(integers.astype(int), ((0, rows % 2), (0, 0)))
    for part in (even.clip(0), even.clip(max=0)):
        assert 255 * np.abs(part[::2] + part[1::2]).max() < 2**15


def test_a_weight_without_a_pair_uses_all_steps():
    weights = np.array([[2.0, 1.0], [0.0, 1.0], [-0.5, -0.25], [0.5, 0.25]], np.float32)
    integers, steps = round_weights(weights)
    assert integers[:, 0].tolist() == [127, 0, -32, 32]
    assert integers[:2, 1].tolist() == [64, 64]
    assert np.allclose(steps, 2 / 127)


def test_columns_of_zeros_are_exact():
    integers, steps = round_weights(np.zeros((4, 3), np.float32))
    assert not integers.any() and (steps > 0).all()


# Inputs


def test_channels_with_a_wide_range_are_evened_out(generator):
    rows = generator.normal(size=(400, 64)).astype(np.float32)
    rows[:, 5] *= 60
    weights = generator.normal(size=(64, 32)).astype(np.float32)
    weights[5] /= 60
    steps = choose_steps(sample_of(rows), weights)
    assert steps.factors[5] > 10 * np.median(steps.factors)
    plain = InputSteps(np.ones(64, np.float32), np.ptp(rows) / 255, 128)
    wanted = rows @ weights
    error = relative_error(product(rows, weights, steps), wanted)
    assert error < 0.02 and error < relative_error(product(rows, weights, plain), wanted) / 4


def test_even_channels_are_left_alone(generator):
    rows = generator.uniform(-1, 1, size=(400, 64)).astype(np.float32)
    weights = generator.uniform(-1, 1, size=(64, 32)).astype(np.float32)
    steps = choose_steps(sample_of(rows), weights)
    assert (steps.factors == 1).all()
    assert relative_error(product(rows, weights, steps), rows @ weights) < 0.01


def test_one_sided_inputs_use_the_whole_range(generator):
    rows = generator.uniform(0, 5, size=(400, 8)).astype(np.float32)
    steps = choose_steps(sample_of(rows), np.eye(8, dtype=np.float32))
    assert steps.zero == 0 and steps.step == pytest.approx(5 / 255, rel=0.01)


def test_zero_is_exact(generator):
    rows = generator.uniform(3, 5, size=(40, 8)).astype(np.float32)
    steps = choose_steps(sample_of(rows), np.eye(8, dtype=np.float32))
    assert not product(np.zeros((1, 8)), np.eye(8), steps).any()


def test_steps_are_reproducible(generator):
    rows = generator.normal(size=(400, 8)).astype(np.float32) * np.arange(1, 9, dtype=np.float32)
    weights = generator.normal(size=(8, 16)).astype(np.float32)
    one, other = (choose_steps(sample_of(rows), weights) for _ in range(2))
    assert np.array_equal(one.factors, other.factors) and one.step == other.step


def test_an_empty_sample():
    steps = choose_steps(InputSample(8), np.ones((8, 16), np.float32))
    assert (steps.factors == 1).all() and steps.step > 0 and steps.zero == 0
