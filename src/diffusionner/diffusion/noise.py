"""Counter-based random numbers: a pure function of a key and a position.

A sentence's noise then depends on the sentence alone, never on the batch it is in, on the order of
the batch or on how many numbers were drawn before; and a resumed run needs no generator state. The
mixing function is SplitMix64's finaliser.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
_SECOND = -7723592293110705685  # 0x94D049BB133111EB


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's is arithmetic on signed integers."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _finalise(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


def mix_keys(keys: Tensor, *salts: int) -> Tensor:
    """New independent int64 keys from old ones and any number of integers."""
    for salt in salts:
        keys = _finalise(keys + _GOLDEN * (salt + 1) % (1 << 63))
    return keys


def uniform_noise(keys: Tensor, *shape: int) -> Tensor:
    """Float64 numbers in (0, 1). keys: [...] int64 → [..., *shape]."""
    positions = torch.arange(1, math.prod(shape) + 1, device=keys.device) * _GOLDEN
    bits = _finalise(_finalise(keys[..., None]) + positions)
    # 52 bits and a half are exact in float64, so neither 0 nor 1 can come out.
    return ((_shift(bits, 12).double() + 0.5) * 2.0**-52).view(*keys.shape, *shape)


def gaussian_noise(keys: Tensor, *shape: int) -> Tensor:
    """Standard normal float32 numbers. keys: [...] int64 → [..., *shape].

    A longer shape repeats a shorter one's numbers and goes on: K spans are the first K of 2K.
    """
    return torch.special.ndtri(uniform_noise(keys, *shape)).float()
