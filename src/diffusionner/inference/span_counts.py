"""K_eval, the noisy spans that a sentence gets (the paper's dynamic sampling)."""

from __future__ import annotations

import numpy as np

AUTO = "auto"
LEAST, MOST = 12, 60


def span_counts(words: np.ndarray, spans: int | str) -> np.ndarray:
    """K of sentences of so many words. auto: as many as words and a few, within bounds.

    It depends on the sentence alone, never on its batch, and a sentence's K spans are the first K
    of any larger number: so its entities do not depend on the batch either.
    """
    if spans == AUTO:
        return np.clip(words + LEAST // 2, LEAST, MOST)
    return np.full(len(words), spans, dtype=np.int64)


def fewest(spans: int | str) -> int:
    """What every sentence gets at least."""
    return LEAST if spans == AUTO else int(spans)
