"""How many spans to launch where a device alone knows how many candidates are likely.

`auto` leaves out those that are not. A CPU looks at their scores and takes as many as its batch
needs; a GPU would have to be waited for. So it gets as many as batches of such sentences have
needed so far: a few, where most that a sentence may have are many. A batch for which that was too
few runs again with all it may have, so that what is found does not depend on this.
"""

from __future__ import annotations

import numpy as np

from diffusionner.batching import round_up
from diffusionner.diffusion.span_counts import NO_ENTITY
from diffusionner.inference.gpu.recording import SPANS


class SpanBudget:
    def __init__(self) -> None:
        self.needed: dict[int, int] = {}  # by the most that a sentence of the batch may have

    def expected(self, slots: np.ndarray) -> int:
        """For a batch with these slots [B, K]; all of them as long as no such batch was seen."""
        most = slots.shape[1]
        needed = self.needed.get(round_up(most, SPANS))
        return most if needed is None else min(most, round_up(needed + 1, SPANS))

    def sufficed(self, table: np.ndarray, slots: np.ndarray, launched: int) -> bool:
        """Whether these were enough for what was found, [B, steps, K, 5]; remembers how many were
        needed.
        """
        used = (table[:, 0, :, 3] >= NO_ENTITY).sum(1)
        kind = round_up(slots.shape[1], SPANS)
        self.needed[kind] = max(self.needed.get(kind, 0), int(used.max()))
        cut = (used == launched) & (slots.sum(1) > launched)
        return not cut.any()
