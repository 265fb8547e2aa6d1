"""The reverse process: K_eval spans, DDIM along an arithmetic sequence of timesteps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from diffusionner.diffusion.coordinates import Array

Prediction = TypeVar("Prediction")
AUTO = "auto"  # K_eval follows from the length of the sentence
MIN_SPANS, MAX_SPANS = 12, 150
TYPICAL_WORDS = 40  # longer sentences have more spans than `inference.spans` says
MIN_CANDIDATE_SCORE = -4.0  # candidates below it are not denoised; entities score above zero


class ReverseStep(NamedTuple, Generic[Prediction]):
    """One denoising step."""

    x: Array  # [B, D, K, 2] noisy spans that the network saw
    prediction: Prediction  # its output
    next_x: Array  # [B, D, K, 2] spans at the next timestep


def reverse_process(
    denoise: Callable[[Array, Any], tuple[Array, Prediction]],
    x: Array,
    alpha_bar: Array,
    timesteps: Sequence[Any],
    eta: float = 0.0,
    noise: Callable[[int], Array] | None = None,
) -> Iterator[ReverseStep[Prediction]]:
    """Run the reverse process and yield its steps.

    denoise(x, t) returns x̂_0 and the prediction it was read from. Timesteps are integers or, with
    one for each sentence, arrays [B, D]. noise(step) draws fresh noise of x's shape for eta > 0.
    """
    for step, (t, next_t) in enumerate(pairwise(timesteps), start=1):
        x0, prediction = denoise(x, t)
        if isinstance(next_t, int) and next_t == 0:
            next_x = x0
        else:
            fresh = noise(step) if noise is not None and eta > 0 else None
            next_x = ddim_step(x, x0, alpha_bar[t], alpha_bar[next_t], eta, fresh)
        yield ReverseStep(x, prediction, next_x)
        x = next_x


def ddim_step(
    x: Array,
    x0: Array,
    alpha_bar: Array,
    alpha_bar_next: Array,
    eta: float = 0.0,
    noise: Array | None = None,
) -> Array:
    """Move x from ᾱ to the less noisy ᾱ_next, given the predicted x̂_0.

    ᾱ is a number or an array [B, D]. eta = 0 is deterministic, as in the paper; eta > 0 needs
    noise.
    """
    of_x0, of_x, of_noise = ddim_coefficients(alpha_bar, alpha_bar_next, eta)
    x = of_x0 * x0 + of_x * x
    if eta > 0:
        if noise is None:
            raise ValueError("eta > 0 needs noise")
        x = x + of_noise * noise
    return x


def ddim_coefficients(
    alpha_bar: Array, alpha_bar_next: Array, eta: float = 0.0
) -> tuple[Array, Array, Array]:
    """Return the DDIM coefficients of x̂_0, x_t and fresh noise, to broadcast over [B, D, K, 2]."""
    is_number = np.ndim(alpha_bar) == 0
    if is_number:  # in float64, whatever the schedule is stored in
        xp: Any = np
        now, later = np.float64(alpha_bar), np.float64(alpha_bar_next)
    else:
        xp = np if isinstance(alpha_bar, np.ndarray) else sys.modules["torch"]
        now, later = alpha_bar[..., None, None], alpha_bar_next[..., None, None]
    variance = xp.clip(1 - now, 1e-12, None)
    ratio = (1 - later) / variance
    sigma = eta * xp.sqrt(xp.clip(ratio * (1 - now / later), 0, None))
    direction = xp.sqrt(xp.clip(1 - later - sigma**2, 0, None))
    of_x = direction / xp.sqrt(variance)  # share of the noise in x that stays
    of_x0 = xp.sqrt(later) - of_x * xp.sqrt(now)
    return (float(of_x0), float(of_x), float(sigma)) if is_number else (of_x0, of_x, sigma)


def timestep_sequence(start: int, steps: int) -> list[int]:
    """Return τ_γ = start, ..., τ_1, τ_0 = 0: γ + 1 timesteps in an arithmetic sequence."""
    if not 1 <= steps <= start:
        raise ValueError(f"{steps} denoising steps do not fit into {start} timesteps")
    return [round(start * i / steps) for i in range(steps, -1, -1)]


def span_slots(words: np.ndarray, spans: int | str, start: str) -> np.ndarray:
    """Return which of the K spans of a batch each sentence has: [B, K].

    words: [B] lengths of the sentences. K grows with the sentence: each span moves to an entity
    nearby, so with too few spans an entity may have none close to it. A number is that of a
    sentence of up to TYPICAL_WORDS words. With spans="auto", candidates, which already lie near
    entities, are about half as many as spans of noise.

    K depends on the sentence alone, and its K spans are the first K of any larger number, so its
    entities do not depend on the batch.
    """
    if spans == AUTO:
        share = 4 if start == "candidates" else 2
        counts = np.clip(words * 3 // share + MIN_SPANS // 2, MIN_SPANS, MAX_SPANS)
    else:
        counts = np.maximum(words * int(spans) // TYPICAL_WORDS, int(spans))
    return np.asarray(np.arange(counts.max()) < counts[:, None])


def likely_candidates(slots: Array, scores: Array) -> Array:
    """Return the slots [B, K] whose candidates are worth denoising, at least the best one.

    scores: [B, K] of the initializer, best first. All slots after an unlikely candidate are left
    out, so that the remaining spans are always the first ones.
    """
    likely = (scores >= MIN_CANDIDATE_SCORE) | (scores == scores[:, :1])
    return slots & (likely.cumprod(1) > 0)


def absent(given: Array, own: Array, slots: Array) -> Array:
    """Return which given spans [B, G, 2] are not among the own ones [B, K, 2] with a slot: [B, G].

    The others are denoised all the same, but hidden: their twins stand for them.
    """
    same = (given[:, :, None] == own[:, None]).all(-1) & slots[:, None]
    return ~same.any(-1)


def min_spans(spans: int | str) -> int:
    """Return the minimum number of spans per sentence."""
    return MIN_SPANS if spans == AUTO else int(spans)
