"""The reverse process: DDIM along an arithmetic sequence of timesteps (paper, 4.1)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from diffusionner.diffusion.noise import gaussian_noise, mix_keys
from diffusionner.diffusion.schedule import Schedule

Result = TypeVar("Result")


def timestep_sequence(start: int, steps: int) -> list[int]:
    """τ_γ = start, ..., τ_1, τ_0 = 0: arithmetic, rounded, descending, γ + 1 numbers."""
    if not 1 <= steps <= start:
        raise ValueError(f"{steps} denoising steps do not fit into {start} timesteps")
    return [round(start * i / steps) for i in range(steps, -1, -1)]


def ddim_step(
    x: Tensor,
    x0: Tensor,
    alpha_bar: Tensor,
    alpha_bar_next: Tensor,
    eta: float = 0.0,
    noise: Tensor | None = None,
) -> Tensor:
    """From x at ᾱ to the less noisy x at ᾱ_next, given the predicted x_0. Shapes of x are free.

    eta = 0 is deterministic (the paper's equations); eta = 1 needs fresh noise of x's shape.
    """
    predicted_noise = (x - alpha_bar.sqrt() * x0) / (1 - alpha_bar).clamp(min=1e-12).sqrt()
    sigma = torch.zeros_like(alpha_bar)
    if eta > 0:
        ratio = (1 - alpha_bar_next) / (1 - alpha_bar).clamp(min=1e-12)
        sigma = eta * (ratio * (1 - alpha_bar / alpha_bar_next)).clamp(min=0).sqrt()
    direction = (1 - alpha_bar_next - sigma**2).clamp(min=0).sqrt()
    x = alpha_bar_next.sqrt() * x0 + direction * predicted_noise
    if eta > 0:
        if noise is None:
            raise ValueError("eta > 0 needs noise")
        x = x + sigma * noise
    return x


def reverse_process(
    denoise: Callable[[Tensor, int], tuple[Tensor, Result]],
    x: Tensor,
    schedule: Schedule,
    sequence: list[int],
    keys: Tensor,
    eta: float = 0.0,
) -> Result:
    """Run the steps of a timestep sequence and return what the last denoising gave.

    denoise(x, t) → (x̂_0, result); x: [B, D, K, 2]; keys: [B], for the noise of eta > 0.
    """
    for number, (now, later) in enumerate(pairwise(sequence), start=1):
        x0, result = denoise(x, now)
        if later:  # at τ_0 = 0 the sample is x̂_0 itself
            noise = None
            if eta > 0:
                noise = gaussian_noise(mix_keys(keys, number), *x.shape[1:])
            at = schedule.at(torch.tensor([now, later], device=x.device))
            x = ddim_step(x, x0, at[0], at[1], eta, noise)
    return result
