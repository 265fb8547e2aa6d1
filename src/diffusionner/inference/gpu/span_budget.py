"""Number of spans to launch on a GPU.

With spans="auto", unlikely candidates are left out. A CPU reads their scores and takes as many as
the batch needs; reading them would stall a GPU. So a GPU gets as many as batches of such sentences
have needed so far, usually few. A batch that needed more runs again with all slots, so that the
result does not depend on this.
"""

from __future__ import annotations

import numpy as np

from diffusionner.batching import round_up
from diffusionner.diffusion import Candidates
from diffusionner.inference.gpu.recording import SPANS


class SpanBudget:
    """Remembers how many spans batches have needed, by the number of their slots."""

    def __init__(self) -> None:
        self.needed: dict[int, int] = {}

    def expected(self, slots: np.ndarray) -> int:
        """Return how many of the slots [B, K] to launch: all of them for a new kind of batch."""
        most = slots.shape[1]
        needed = self.needed.get(round_up(most, SPANS))
        return most if needed is None else min(most, round_up(needed + 1, SPANS))

    def was_sufficient(
        self, found: Candidates[np.ndarray], slots: np.ndarray, launched: int
    ) -> bool:
        """Return whether the launched spans were enough, and remember how many were used."""
        used = found.slots[:, 0].sum(1)
        kind = round_up(slots.shape[1], SPANS)
        self.needed[kind] = max(self.needed.get(kind, 0), int(used.max()))
        return not ((used == launched) & (slots.sum(1) > launched)).any()
