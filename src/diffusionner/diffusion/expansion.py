"""Expand the gold spans to K slots by repetition or by random spans (paper, 4.1)."""

from __future__ import annotations

import numpy as np

from diffusionner.diffusion.coordinates import Coordinates
from diffusionner.diffusion.noise import gaussian_noise, mix_keys, uniform_noise


def expand(
    gold: np.ndarray,
    counts: np.ndarray,
    lengths: np.ndarray,
    keys: np.ndarray,
    spans: int,
    strategy: str,
    coordinates: Coordinates,
) -> np.ndarray:
    """Return x_0 [B, D, K, 2] for D independent draws.

    gold: [B, N, 2] word indices (left, right), padded; counts, lengths: [B]; keys: [B, D]. Random
    spans are Gaussian around the middle of the sentence, with its ends three standard deviations
    away. They also replace the gold of a sentence without entities. If there are more gold spans
    than slots, each draw takes a random selection.
    """
    batch, draws = keys.shape
    slots = np.arange(spans)
    size = gold.shape[1]
    present = np.arange(size) < counts[:, None]  # [B, N]
    order = uniform_noise(mix_keys(keys, 1), size)  # [B, D, N]
    order = np.where(present[:, None], order, 2.0).argsort(-1)
    if strategy == "repetition":
        picks = slots % np.maximum(counts, 1)[:, None]  # [B, K]
        from_gold = np.broadcast_to((counts > 0)[:, None], (batch, spans))
    else:
        picks = np.broadcast_to(np.minimum(slots, size - 1), (batch, spans))
        from_gold = slots < counts[:, None]
    picks = np.broadcast_to(picks[:, None], (batch, draws, spans))
    chosen = np.take_along_axis(order, picks, -1)  # [B, D, K]
    spans_gold = gold[np.arange(batch)[:, None, None], chosen]
    x0 = coordinates.encode(spans_gold, lengths[:, None])
    random = gaussian_noise(mix_keys(keys, 2), spans, 2) / 3 * coordinates.scale
    result: np.ndarray = np.where(from_gold[:, None, :, None], x0, random).astype(np.float32)
    return result
