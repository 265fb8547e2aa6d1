"""Sentences to arrays: subwords, windows and batches."""

from diffusionner.batching.corpus import Batch, EncodedCorpus, Windows, round_up, window_parts

__all__ = ["Batch", "EncodedCorpus", "Windows", "round_up", "window_parts"]
