"""Sentences to arrays: subwords, windows and batches."""

from diffusionner.batching.encoded_corpus import (
    DEVICE_ARRAYS,
    Batch,
    EncodedCorpus,
    Windows,
    round_up,
    window_parts,
)

__all__ = ["DEVICE_ARRAYS", "Batch", "EncodedCorpus", "Windows", "round_up", "window_parts"]
