"""The map between word indices of spans and the real numbers that are diffused.

A sentence of M words divides the unit interval into M equal cells. Word i maps to the centre of its
cell, (i + ½)/M, and a real number maps to the word in whose cell it lies. Training and inference
use the same two maps, which are exact inverses on word indices.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any  # np.ndarray or torch.Tensor; whoever passes a tensor has imported torch


@dataclass(frozen=True)
class Coordinates:
    """Coordinates of a span: its two boundaries, or its left boundary and its width."""

    kind: str  # "left-right" or "left-width"
    scale: float  # λ

    def encode(self, spans: Array, lengths: Array) -> Array:
        """Map spans (left, right), both inclusive, [..., K, 2] to x [..., K, 2] in (-λ, λ).

        lengths: number of words M, broadcastable to [...].
        """
        xp = np if isinstance(spans, np.ndarray) else sys.modules["torch"]
        left, right = spans[..., 0], spans[..., 1]
        second = right if self.kind == "left-right" else right - left  # width - 1 has M cells too
        cells = xp.asarray(xp.stack([left, second], -1), dtype=xp.float32) + 0.5
        unit = cells / xp.asarray(lengths[..., None, None], dtype=xp.float32)
        return (2 * unit - 1) * self.scale

    def decode(self, x: Array, lengths: Array) -> Array:
        """Map x [..., K, 2] to word indices (left, right) [..., K, 2], 0 ≤ left ≤ right < M."""
        xp = np if isinstance(x, np.ndarray) else sys.modules["torch"]
        words = lengths[..., None, None]
        unit = xp.clip((x / self.scale + 1) / 2, 0, 1)
        cells = xp.floor(unit * xp.asarray(words, dtype=xp.float32))
        cells = xp.minimum(xp.asarray(cells, dtype=xp.int64), words - 1)
        first, second = cells[..., 0], cells[..., 1]
        if self.kind == "left-right":
            # Noise may swap the boundaries; the span between them is the same.
            return xp.stack([xp.minimum(first, second), xp.maximum(first, second)], -1)
        return xp.stack([first, xp.minimum(first + second, words[..., 0] - 1)], -1)
