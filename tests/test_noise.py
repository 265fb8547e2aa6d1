"""Counter-based noise against SplitMix64 in plain integers, and against statistics."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from scipy import stats

from diffusionner.diffusion import gaussian_noise, mix_keys, noise, uniform_noise


def reference_finaliser(z: int) -> int:
    """Finaliser of SplitMix64 in unbounded integers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def test_uniform_noise_is_splitmix():
    keys = [0, 1, -1, 123456789, -(2**63), 2**63 - 1]
    noise = uniform_noise(np.array(keys), 4)
    assert noise.shape == (6, 4) and noise.dtype == np.float64
    for key, row in zip(keys, noise.tolist(), strict=True):
        start = reference_finaliser(key % 2**64)
        for i, number in enumerate(row, start=1):
            bits = reference_finaliser((start + i * 0x9E3779B97F4A7C15) % 2**64)
            assert number == pytest.approx((bits >> 11) / 2**53, abs=2**-52)


def test_uniform_noise_is_uniform():
    noise = uniform_noise(np.arange(500), 200).ravel()
    assert noise.min() > 0 and noise.max() < 1
    assert stats.kstest(noise, "uniform").pvalue > 0.01


def test_gaussian_noise_is_normal():
    noise = gaussian_noise(np.arange(1000) * 17, 60, 2)
    assert noise.shape == (1000, 60, 2) and noise.dtype == np.float32
    flat = noise.astype(np.float64).ravel()
    assert stats.kstest(flat, "norm").pvalue > 0.01
    assert abs(stats.skew(flat)) < 0.03 and abs(stats.kurtosis(flat)) < 0.06


def independent(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether numbers and their squares correlate by less than five deviations."""
    bound = 5 / math.sqrt(a.size)
    pairs = [(a, b), (a**2, b**2), (a, b**2)]
    return all(abs(np.corrcoef(p.ravel(), q.ravel())[0, 1]) < bound for p, q in pairs)


def test_keys_positions_and_salts_are_independent():
    keys = np.arange(400)
    noise = gaussian_noise(keys, 100)
    assert independent(noise[:-1], noise[1:])  # neighbouring keys
    assert independent(noise[:, :-1], noise[:, 1:])  # neighbouring positions
    # Keys that differ by the distance of two positions must not give a shifted copy.
    shifted = gaussian_noise(keys + (0x9E3779B97F4A7C15 - 2**64), 100)
    assert independent(noise[:, 1:], shifted[:, :-1])
    for salts in ((0,), (1,), (2, 3)):
        assert independent(noise, gaussian_noise(mix_keys(keys, *salts), 100))
    salted = [gaussian_noise(mix_keys(keys, salt), 100) for salt in range(4)]
    assert all(independent(salted[i], salted[j]) for i in range(4) for j in range(i))


def test_a_longer_draw_continues_a_shorter_one():
    keys = np.array([5, 77])
    assert np.array_equal(gaussian_noise(keys, 60, 2)[:, :30], gaussian_noise(keys, 30, 2))


def test_noise_depends_on_the_key_alone():
    keys = np.array([3, -9, 2**40])
    together = gaussian_noise(keys, 7, 2)
    np.random.seed(123)  # no global generator is used
    assert np.array_equal(gaussian_noise(keys[[2, 0]], 7, 2), together[[2, 0]])
    assert np.array_equal(gaussian_noise(keys.reshape(3, 1), 7, 2)[:, 0], together)


@pytest.mark.parametrize("salts", [(0,), (1,), (41, 2), (10**12,)])
def test_mixed_keys_are_splitmix(salts):
    keys = [0, 1, -1, 123456789, -(2**63), 2**63 - 1]
    for key, mixed in zip(keys, mix_keys(np.array(keys), *salts).tolist(), strict=True):
        for salt in salts:
            # The highest bit of the step is dropped, so that it is the same as a signed integer.
            key += (0x9E3779B97F4A7C15 * (salt + 1)) % 2**63
            key = reference_finaliser(key % 2**64)
        assert mixed % 2**64 == key


def test_mixed_keys_are_distinct():
    keys = np.concatenate([np.arange(-500, 500), np.arange(1000) << 32])
    mixed = np.concatenate([mix_keys(keys, salt) for salt in (0, 1, 2, 3, 10**12)])
    twice = np.concatenate([mix_keys(keys, a, b) for a in range(3) for b in range(3)])
    everything = np.concatenate([mixed, twice])
    # Key 0 is in both halves of `keys`.
    assert len(np.unique(everything)) == 14 * len(np.unique(keys))
    assert everything.dtype == np.int64
    assert np.array_equal(mix_keys(keys), keys)


def test_without_scipy(monkeypatch):
    """A plain installation has no scipy, and the same noise."""
    keys = np.arange(40, dtype=np.int64)
    expected = gaussian_noise(keys, 30, 2)
    noise._inverse_normal.cache_clear()
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    try:
        assert np.allclose(gaussian_noise(keys, 30, 2), expected, rtol=1e-6, atol=1e-7)
    finally:
        noise._inverse_normal.cache_clear()
