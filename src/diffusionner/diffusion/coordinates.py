"""Word indices of spans ↔ the real numbers that are diffused.

A sentence of M words is the unit interval cut into M equal cells; word i is the centre of its
cell, (i + ½)/M, and a real number belongs to the word in whose cell it lies. The same two maps
serve training and inference, and one undoes the other exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Coordinates:
    """kind: "left-right" or "left-width"; scale: λ."""

    kind: str
    scale: float

    def encode(self, spans: Tensor, lengths: Tensor) -> Tensor:
        """Spans (left, right), both inclusive, [..., K, 2] → x [..., K, 2] in (-λ, λ).

        lengths: number of words M, broadcastable to [...].
        """
        left, right = spans.unbind(-1)
        second = right if self.kind == "left-right" else right - left  # width - 1 has M cells too
        cells = torch.stack([left, second], dim=-1).float() + 0.5
        unit = cells / lengths[..., None, None].float()
        return (2 * unit - 1) * self.scale

    def decode(self, x: Tensor, lengths: Tensor) -> Tensor:
        """x [..., K, 2] → word indices (left, right) [..., K, 2] with 0 ≤ left ≤ right < M."""
        words = lengths[..., None, None]
        unit = ((x / self.scale + 1) / 2).clamp(0, 1)
        last = words - 1
        cells = torch.minimum((unit * words.float()).floor().long(), last)
        first, second = cells.unbind(-1)
        last = last.squeeze(-1)
        if self.kind == "left-right":
            # Noise may swap the boundaries; the span between them is still the same.
            return torch.stack([torch.minimum(first, second), torch.maximum(first, second)], -1)
        return torch.stack([first, torch.minimum(first + second, last)], -1)
