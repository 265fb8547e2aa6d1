"""K_eval, the noisy spans that a sentence gets (the paper's dynamic sampling)."""

from __future__ import annotations

import numpy as np

from diffusionner.diffusion.arrays import Array

AUTO = "auto"
LEAST, MOST = 12, 150
LEAST_SCORE = -4.0  # of a candidate: entities have more than zero
LOWEST = -1e4  # the score of what cannot be, such as what is no span of the sentence
NO_ENTITY, NO_SPAN = -1.0, -2.0  # totals: of a span that is none, of a slot without a span


def span_counts(words: np.ndarray, spans: int | str, start: str) -> np.ndarray:
    """K of sentences of so many words. auto: half as many again as words and a few, within bounds;
    at a start from candidates, which lie where entities are, about half of that.

    Each span moves to an entity near it, and several move to the same: what is lost with fewer
    spans is the entities that none started near. So K must grow with the sentence, and a crowded
    one (an entity for every other word) needs several spans for each.

    It depends on the sentence alone, never on its batch, and a sentence's K spans are the first K
    of any larger number: so its entities do not depend on the batch either.
    """
    if spans == AUTO:
        share = 4 if start == "candidates" else 2
        return np.clip(words * 3 // share + LEAST // 2, LEAST, MOST)
    return np.full(len(words), spans, dtype=np.int64)


def likely(slots: Array, scores: Array) -> Array:
    """auto, from candidates: [B, K] those that are at all likely, and the best in any case.

    scores: [B, K] of the initializer, the best first. Where a sentence has fewer, they repeat; what
    follows an unlikely one is left out too, so that a sentence's spans are always the first.
    """
    taken = (scores >= LEAST_SCORE) | (scores == scores[:, :1])
    return slots & (taken.cumprod(1) > 0)


def span_slots(counts: np.ndarray) -> np.ndarray:
    """[B, K]: which of the spans of a batch its sentences have."""
    return np.asarray(np.arange(counts.max()) < counts[:, None])


def fewest(spans: int | str) -> int:
    """What every sentence gets at least."""
    return LEAST if spans == AUTO else int(spans)
