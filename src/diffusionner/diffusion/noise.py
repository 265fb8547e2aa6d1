"""Counter-based random numbers: a pure function of a key and a position.

The noise of a sentence depends on the sentence alone, never on its batch, the order of the batch or
how many numbers were drawn before, and a resumed run needs no generator state. The mixing function
is the finaliser of SplitMix64. Noise is drawn on the host with numpy, so it is bit-identical on
every device and backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from statistics import NormalDist

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def _finalise(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


def mix_keys(keys: np.ndarray, *salts: int) -> np.ndarray:
    """Derive independent int64 keys from other keys and any number of integers."""
    mixed = np.asarray(keys, dtype=np.int64).view(np.uint64)
    for salt in salts:
        step = ((_GOLDEN - (1 << 64)) * (salt + 1)) % (1 << 63)
        mixed = _finalise(mixed + np.uint64(step))
    return mixed.view(np.int64)


def uniform_noise(keys: np.ndarray, *shape: int) -> np.ndarray:
    """Draw float64 numbers in (0, 1). keys: [...] int64 → [..., *shape]."""
    positions = np.arange(1, math.prod(shape) + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    keys = np.asarray(keys, dtype=np.int64)
    bits = _finalise(_finalise(keys.view(np.uint64)[..., None]) + positions)
    # 52 bits plus a half are exact in float64, so the result is never 0 or 1.
    unit = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return unit.reshape(*keys.shape, *shape)


def gaussian_noise(keys: np.ndarray, *shape: int) -> np.ndarray:
    """Draw standard normal float32 numbers. keys: [...] int64 → [..., *shape].

    A longer shape starts with the numbers of a shorter one: K spans are the first K of 2K.
    """
    return _inverse_normal()(uniform_noise(keys, *shape)).astype(np.float32)


@cache
def _inverse_normal() -> Callable[[np.ndarray], np.ndarray]:
    """Return the inverse of the normal distribution function: scipy's, or a slower one."""
    try:
        from scipy.special import ndtri
    except ImportError:  # a plain installation, which only needs it to start from noise
        return np.vectorize(NormalDist().inv_cdf, otypes=[np.float64])
    inverse: Callable[[np.ndarray], np.ndarray] = ndtri
    return inverse


def span_noise(keys: np.ndarray, seed: int, step: int, spans: int, given: int = 0) -> np.ndarray:
    """Draw the noise of an inference step, [..., 1, G + K, 2]; step 0 is the start.

    The G given spans have keys of their own, so that the noise of no span depends on the number of
    the others.
    """
    own = gaussian_noise(mix_keys(keys, seed, step), 1, spans, 2)
    if not given:
        return own
    first = gaussian_noise(mix_keys(~keys, seed, step), 1, given, 2)
    return np.concatenate([first, own], -2)
