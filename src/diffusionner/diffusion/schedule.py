"""Variance schedules and the closed-form forward process (paper, section 3)."""

from __future__ import annotations

import math

import numpy as np

CANDIDATE_START = 0.2  # share of T


class Schedule:
    """ᾱ_t for t = 0..T, with ᾱ_0 = 1 (no noise) and ᾱ_T close to 0 (pure noise)."""

    def __init__(self, kind: str, timesteps: int) -> None:
        self.timesteps = timesteps
        # Timestep assigned to spans that do not start as noise.
        self.candidate_start = max(1, round(CANDIDATE_START * timesteps))
        steps = np.arange(timesteps + 1, dtype=np.float64)
        if kind == "cosine":
            # Nichol & Dhariwal: ᾱ_t follows cos²; the offset keeps the first steps from vanishing.
            offset = 0.008
            curve = np.cos((steps / timesteps + offset) / (1 + offset) * math.pi / 2) ** 2
            betas = np.minimum(1 - curve[1:] / curve[:-1], 0.999)
        elif kind == "linear":
            # Ho et al. use 1e-4..0.02 over 1000 steps. The range is stretched for other T, so that
            # ᾱ_T stays the same.
            stretch = 1000 / timesteps
            betas = np.linspace(0.02 * stretch, 1e-4 * stretch, timesteps)
            betas = np.minimum(betas[::-1], 0.999)  # from the top, so that T = 1 is all noise
        else:
            raise ValueError(f"unknown schedule '{kind}'")
        survival = np.cumprod(1 - betas)
        self.alpha_bar = np.concatenate([[1.0], survival]).astype(np.float32)

    def add_noise(self, x0: np.ndarray, t: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return x_t = sqrt(ᾱ_t)·x_0 + sqrt(1-ᾱ_t)·ε. x0, noise: [..., K, 2]; t: [...]."""
        alpha_bar = self.alpha_bar[t][..., None, None]
        noisy: np.ndarray = np.sqrt(alpha_bar) * x0 + np.sqrt(1 - alpha_bar) * noise
        return noisy
