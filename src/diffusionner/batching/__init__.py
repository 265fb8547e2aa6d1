"""Sentences to arrays: subwords, windows and batches."""

from diffusionner.batching.encoded_corpus import (
    DEVICE_ARRAYS,
    Batch,
    EncodedCorpus,
    RowLabels,
    round_up,
)
from diffusionner.batching.windows import PassageCounter, Windows, window_parts

__all__ = [
    "DEVICE_ARRAYS",
    "Batch",
    "EncodedCorpus",
    "PassageCounter",
    "RowLabels",
    "Windows",
    "round_up",
    "window_parts",
]
