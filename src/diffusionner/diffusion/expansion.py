"""Expansion of the gold spans to K slots, by repetition or by random spans (paper, 4.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from diffusionner.diffusion.coordinates import Coordinates
from diffusionner.diffusion.noise import gaussian_noise, mix_keys, uniform_noise


def expand(
    gold: Tensor,
    counts: Tensor,
    lengths: Tensor,
    keys: Tensor,
    spans: int,
    strategy: str,
    coordinates: Coordinates,
) -> Tensor:
    """x_0 [B, D, K, 2] for D independent draws.

    gold: [B, N, 2] word indices (left, right), padded; counts, lengths: [B]; keys: [B, D].
    Random spans are Gaussian around the middle of the sentence, three deviations to each end. They
    also stand in for the gold of a sentence without entities. With more gold than slots each draw
    takes its own random choice.
    """
    batch, draws = keys.shape
    slots = torch.arange(spans, device=gold.device)
    size = gold.shape[1]
    present = torch.arange(size, device=gold.device) < counts[:, None]  # [B, N]
    order = uniform_noise(mix_keys(keys, 1), size)  # [B, D, N]
    order = order.masked_fill(~present[:, None], 2.0).argsort(-1)
    if strategy == "repetition":
        picks = slots % counts.clamp(min=1)[:, None]  # [B, K]
        from_gold = (counts > 0)[:, None].expand(batch, spans)
    else:
        picks = slots.clamp(max=size - 1).expand(batch, spans)
        from_gold = slots < counts[:, None]
    chosen = order.gather(-1, picks[:, None].expand(batch, draws, spans))  # [B, D, K]
    spans_gold = gold[:, None].expand(batch, draws, size, 2)
    spans_gold = spans_gold.gather(2, chosen[..., None].expand(batch, draws, spans, 2))
    x0 = coordinates.encode(spans_gold, lengths[:, None].expand(batch, draws))
    random = gaussian_noise(mix_keys(keys, 2), spans, 2) / 3 * coordinates.scale
    return torch.where(from_gold[:, None, :, None], x0, random)
