"""Word indices of spans ↔ the real numbers that are diffused.

A sentence of M words is the unit interval cut into M equal cells; word i is the centre of its
cell, (i + ½)/M, and a real number belongs to the word in whose cell it lies. The same two maps
serve training and inference, and one undoes the other exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

from diffusionner.diffusion.arrays import Array, namespace


@dataclass(frozen=True)
class Coordinates:
    """kind: "left-right" or "left-width"; scale: λ."""

    kind: str
    scale: float

    def encode(self, spans: Array, lengths: Array) -> Array:
        """Spans (left, right), both inclusive, [..., K, 2] → x [..., K, 2] in (-λ, λ).

        lengths: number of words M, broadcastable to [...].
        """
        xp = namespace(spans)
        left, right = spans[..., 0], spans[..., 1]
        second = right if self.kind == "left-right" else right - left  # width - 1 has M cells too
        cells = xp.asarray(xp.stack([left, second], -1), dtype=xp.float32) + 0.5
        unit = cells / xp.asarray(lengths[..., None, None], dtype=xp.float32)
        return (2 * unit - 1) * self.scale

    def decode(self, x: Array, lengths: Array) -> Array:
        """x [..., K, 2] → word indices (left, right) [..., K, 2] with 0 ≤ left ≤ right < M."""
        xp = namespace(x)
        words = lengths[..., None, None]
        unit = xp.clip((x / self.scale + 1) / 2, 0, 1)
        cells = xp.floor(unit * xp.asarray(words, dtype=xp.float32))
        cells = xp.minimum(xp.asarray(cells, dtype=xp.int64), words - 1)
        first, second = cells[..., 0], cells[..., 1]
        if self.kind == "left-right":
            # Noise may swap the boundaries; the span between them is still the same.
            return xp.stack([xp.minimum(first, second), xp.maximum(first, second)], -1)
        return xp.stack([first, xp.minimum(first + second, words[..., 0] - 1)], -1)
