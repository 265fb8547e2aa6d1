"""The reverse process: DDIM along an arithmetic sequence of timesteps (paper, 4.1)."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

from diffusionner.diffusion.arrays import Array
from diffusionner.diffusion.schedule import Schedule

Result = TypeVar("Result")


def timestep_sequence(start: int, steps: int) -> list[int]:
    """τ_γ = start, ..., τ_1, τ_0 = 0: arithmetic, rounded, descending, γ + 1 numbers."""
    if not 1 <= steps <= start:
        raise ValueError(f"{steps} denoising steps do not fit into {start} timesteps")
    return [round(start * i / steps) for i in range(steps, -1, -1)]


def ddim_weights(
    alpha_bar: float, alpha_bar_next: float, eta: float = 0.0
) -> tuple[float, float, float]:
    """What the next x is a sum of, at ᾱ_next: so much of x_0, of x at ᾱ, and of fresh noise."""
    variance = max(1 - alpha_bar, 1e-12)
    ratio = (1 - alpha_bar_next) / variance
    sigma = eta * math.sqrt(max(0.0, ratio * (1 - alpha_bar / alpha_bar_next)))
    direction = math.sqrt(max(0.0, 1 - alpha_bar_next - sigma**2))
    # x holds sqrt(ᾱ)·x_0 and noise, of which this much stays.
    of_x = direction / math.sqrt(variance)
    return math.sqrt(alpha_bar_next) - of_x * math.sqrt(alpha_bar), of_x, sigma


def ddim_step(
    x: Array,
    x0: Array,
    alpha_bar: float,
    alpha_bar_next: float,
    eta: float = 0.0,
    noise: Array | None = None,
) -> Array:
    """From x at ᾱ to the less noisy x at ᾱ_next, given the predicted x_0. Shapes of x are free.

    eta = 0 is deterministic (the paper's equations); eta = 1 needs fresh noise of x's shape.
    """
    of_x0, of_x, of_noise = ddim_weights(alpha_bar, alpha_bar_next, eta)
    x = of_x0 * x0 + of_x * x
    if eta > 0:
        if noise is None:
            raise ValueError("eta > 0 needs noise")
        x = x + of_noise * noise
    return x


def reverse_process(
    denoise: Callable[[Array, int], tuple[Array, Result]],
    x: Array,
    schedule: Schedule,
    sequence: list[int],
    eta: float = 0.0,
    noise: Callable[[int], Array] | None = None,
) -> list[Result]:
    """Run the steps of a timestep sequence and return what each denoising gave.

    denoise(x, t) → (x̂_0, result); x: [B, D, K, 2]. noise(number of the step) is for eta > 0.
    """
    results = []
    for number, (now, later) in enumerate(pairwise(sequence), start=1):
        x0, result = denoise(x, now)
        results.append(result)
        if later:  # at τ_0 = 0 the sample is x̂_0 itself
            fresh = noise(number) if noise is not None and eta > 0 else None
            alpha_bar = float(schedule.alpha_bar[now])
            x = ddim_step(x, x0, alpha_bar, float(schedule.alpha_bar[later]), eta, fresh)
    return results
