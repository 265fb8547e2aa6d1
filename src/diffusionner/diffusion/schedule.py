"""Variance schedules and the closed-form forward process (paper, section 3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Schedule:
    """ᾱ_t for t = 0..T, with ᾱ_0 = 1 (no noise) and ᾱ_T close to 0 (pure noise)."""

    def __init__(self, kind: str, timesteps: int) -> None:
        self.timesteps = timesteps
        steps = torch.arange(timesteps + 1, dtype=torch.float64)
        if kind == "cosine":
            # Nichol & Dhariwal: ᾱ_t follows cos²; the offset keeps the first steps from vanishing.
            offset = 0.008
            curve = torch.cos((steps / timesteps + offset) / (1 + offset) * math.pi / 2) ** 2
            betas = (1 - curve[1:] / curve[:-1]).clamp(max=0.999)
        elif kind == "linear":
            # Ho et al. use 1e-4..0.02 over 1000 steps; the range is stretched for other T so
            # that ᾱ_T stays the same.
            stretch = 1000 / timesteps
            betas = torch.linspace(0.02 * stretch, 1e-4 * stretch, timesteps, dtype=torch.float64)
            betas = betas.flip(0).clamp(max=0.999)  # from the top, so that T = 1 is all noise
        else:
            raise ValueError(f"unknown schedule '{kind}'")
        survival = torch.cumprod(1 - betas, dim=0)
        self.alpha_bar = torch.cat([torch.ones(1, dtype=torch.float64), survival]).float()
        self._on_device = {self.alpha_bar.device: self.alpha_bar}

    def at(self, t: Tensor) -> Tensor:
        """ᾱ_t for integer timesteps of any shape, on their device."""
        if t.device not in self._on_device:
            self._on_device[t.device] = self.alpha_bar.to(t.device)
        return self._on_device[t.device][t]

    def add_noise(self, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """x_t = sqrt(ᾱ_t)·x_0 + sqrt(1-ᾱ_t)·ε. x0, noise: [..., K, 2]; t: [...]."""
        alpha_bar = self.at(t)[..., None, None]
        return alpha_bar.sqrt() * x0 + (1 - alpha_bar).sqrt() * noise
