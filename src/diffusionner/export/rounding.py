"""Matrix products in 8-bit integers: the steps of weights and of what they are multiplied with.

An input x [M, K] is rounded with one step for all of it, so that a few channels that reach far
leave few steps to the others. Divided by a factor per channel, x / f, all reach about as far, and
the rows of the weights times f give the same product (SmoothQuant, Xiao et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

INPUT_STEPS = 255
# Two neighbouring weights: without VNNI, processors add their products with two inputs in 16 bits.
PAIR_STEPS = 127  # at most 128 when both are rounded up, and 128 x 255 < 2**15
BALANCES = (0.7, 0.85, 1.0)  # how much of a channel's reach goes into its weights
SMALL_ERROR = 0.01  # of what a product varies by: not worth a multiplication by factors
ROWS = 32  # of each tensor met, to measure errors on


class Met:
    """What a sample of sentences gave of an input [..., K]."""

    def __init__(self, channels: int) -> None:
        self.low = np.zeros(channels, np.float32)  # [K] of every row; zero itself must be exact
        self.high = np.zeros(channels, np.float32)
        self._some = [np.zeros((0, channels), np.float32)]
        self._generator = np.random.default_rng(0)

    def add(self, tensor: np.ndarray) -> None:
        rows = tensor.reshape(-1, tensor.shape[-1])
        self.low, self.high = np.minimum(self.low, rows.min(0)), np.maximum(self.high, rows.max(0))
        self._some.append(rows[self._generator.integers(len(rows), size=ROWS)])

    @property
    def rows(self) -> np.ndarray:
        """[M, K] some of the rows, taken at random."""
        return np.concatenate(self._some)


@dataclass(frozen=True)
class InputSteps:
    """x is about factors · step · (integer - zero)."""

    factors: np.ndarray  # [K]
    step: float
    zero: int


def round_weights(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[K, N] → integers [K, N] and the step of each column [N]."""
    pairs = np.pad(matrix, ((0, len(matrix) % 2), (0, 0))).reshape(-1, 2, matrix.shape[1])
    up, down = np.maximum(pairs, 0).sum(1), np.maximum(-pairs, 0).sum(1)
    steps = np.maximum(np.maximum(up, down).max(0), 1e-9) / PAIR_STEPS
    return np.rint(matrix / steps).astype(np.int8), steps.astype(np.float32)


def choose_steps(met: Met, weights: np.ndarray) -> InputSteps:
    """Those with the least error in the product with weights [K, N]."""
    rows = met.rows
    product = rows @ weights
    varies = max(float(np.linalg.norm(product - product.mean(0))), 1e-9) if len(rows) else 1.0

    def error(steps: InputSteps) -> float:
        return float(np.linalg.norm(_rounded_product(rows, weights, steps) - product)) / varies

    plain = _steps(met, np.ones(len(weights), np.float32))
    if error(plain) < SMALL_ERROR:
        return plain
    reach = np.maximum(np.maximum(met.high, -met.low), 1e-6)
    strength = np.maximum(np.abs(weights).max(1), 1e-6)
    evened = (_steps(met, reach**share / strength ** (1 - share)) for share in BALANCES)
    return min((plain, *evened), key=error)


def _steps(met: Met, factors: np.ndarray) -> InputSteps:
    low, high = float((met.low / factors).min()), float((met.high / factors).max())
    step = max(high - low, 1e-6) / INPUT_STEPS
    return InputSteps(factors, step, round(-low / step))


def _rounded_product(rows: np.ndarray, weights: np.ndarray, steps: InputSteps) -> np.ndarray:
    integers, of_column = round_weights(weights * steps.factors[:, None])
    rounded = np.rint(rows / (steps.factors * steps.step)) + steps.zero
    rounded = np.clip(rounded, 0, INPUT_STEPS) - steps.zero
    return np.asarray((rounded * steps.step) @ (integers * of_column))
