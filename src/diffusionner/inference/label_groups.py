"""Candidates of labels that are read in several groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from diffusionner.diffusion import Candidates


def join_groups(
    parts: Sequence[Candidates[np.ndarray]], sizes: Sequence[int], given: int
) -> Candidates[np.ndarray]:
    """Join the candidates of groups of labels; decoding keeps the best of equal spans.

    sizes: number of labels of each group; given: number of spans that the caller gave. These come
    first, those of all groups before any others.
    """
    if len(parts) == 1:
        return parts[0]
    before = np.cumsum(sizes) - sizes
    moved = [
        replace(
            part,
            type_id=part.type_id + first,
            logits=None,  # whose size is that of the group
            gapped=part.gapped and replace(part.gapped, type_id=part.gapped.type_id + first),
        )
        for part, first in zip(parts, before.tolist(), strict=True)
    ]

    def joined(arrays: list[np.ndarray]) -> np.ndarray:
        of_given, own = zip(*(np.split(array, [given], axis=2) for array in arrays), strict=True)
        return np.concatenate([*of_given, *own], 2)

    return Candidates.combine(moved, joined)
