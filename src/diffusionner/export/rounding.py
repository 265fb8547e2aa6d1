"""Matrix products in 8-bit integers: quantisation steps of weights and inputs.

An input x [M, K] has one step for all channels, so a few channels with a wide range leave few steps
to the others. Dividing by a factor per channel, x / f, evens out the ranges, and multiplying the
rows of the weights by f gives the same product (SmoothQuant, Xiao et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

INPUT_STEPS = 255
# Of two adjacent weights: without VNNI, CPUs add their products with two inputs in 16 bits.
PAIR_STEPS = 127  # at most 128 when both are rounded up, and 128 x 255 < 2**15
BALANCES = (0.7, 0.85, 1.0)  # share of a channel's range that moves into its weights
SMALL_ERROR = 0.01  # relative error of a product that is not worth multiplying by factors
ROWS = 32  # sampled from each tensor, to measure errors on


class InputSample:
    """Ranges and sampled rows of an input [..., K]."""

    def __init__(self, channels: int) -> None:
        self.low = np.zeros(channels, np.float32)  # [K] over all rows; zero must be exact
        self.high = np.zeros(channels, np.float32)
        self._some = [np.zeros((0, channels), np.float32)]
        self._generator = np.random.default_rng(0)

    def add(self, tensor: np.ndarray) -> None:
        rows = tensor.reshape(-1, tensor.shape[-1])
        self.low, self.high = np.minimum(self.low, rows.min(0)), np.maximum(self.high, rows.max(0))
        self._some.append(rows[self._generator.integers(len(rows), size=ROWS)])

    @property
    def rows(self) -> np.ndarray:
        """Randomly sampled rows, [M, K]."""
        return np.concatenate(self._some)


@dataclass(frozen=True)
class InputSteps:
    """Quantisation of an input: x ≈ factors · step · (integer - zero)."""

    factors: np.ndarray  # [K]
    step: float
    zero: int


def round_weights(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return weights [K, N] as integers [K, N] and the step of each column [N]."""
    pairs = np.pad(matrix, ((0, len(matrix) % 2), (0, 0))).reshape(-1, 2, matrix.shape[1])
    up, down = np.maximum(pairs, 0).sum(1), np.maximum(-pairs, 0).sum(1)
    steps = np.maximum(np.maximum(up, down).max(0), 1e-9) / PAIR_STEPS
    return np.rint(matrix / steps).astype(np.int8), steps.astype(np.float32)


def choose_steps(sample: InputSample, weights: np.ndarray) -> InputSteps:
    """Return the steps with the smallest error in the product with weights [K, N]."""
    rows = sample.rows
    product = rows @ weights
    varies = max(float(np.linalg.norm(product - product.mean(0))), 1e-9) if len(rows) else 1.0

    def error(steps: InputSteps) -> float:
        return float(np.linalg.norm(_rounded_product(rows, weights, steps) - product)) / varies

    plain = _steps(sample, np.ones(len(weights), np.float32))
    if error(plain) < SMALL_ERROR:
        return plain
    range_ = np.maximum(np.maximum(sample.high, -sample.low), 1e-6)
    strength = np.maximum(np.abs(weights).max(1), 1e-6)
    evened = (_steps(sample, range_**share / strength ** (1 - share)) for share in BALANCES)
    return min((plain, *evened), key=error)


def _steps(sample: InputSample, factors: np.ndarray) -> InputSteps:
    low, high = float((sample.low / factors).min()), float((sample.high / factors).max())
    step = max(high - low, 1e-6) / INPUT_STEPS
    return InputSteps(factors, step, round(-low / step))


def _rounded_product(rows: np.ndarray, weights: np.ndarray, steps: InputSteps) -> np.ndarray:
    integers, of_column = round_weights(weights * steps.factors[:, None])
    rounded = np.rint(rows / (steps.factors * steps.step)) + steps.zero
    rounded = np.clip(rounded, 0, INPUT_STEPS) - steps.zero
    return np.asarray((rounded * steps.step) @ (integers * of_column))
