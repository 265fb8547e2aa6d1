"""The diffusion process on boundaries: maths only, no network."""

from diffusionner.diffusion.beliefs import BeliefDenoiser, BeliefWeights
from diffusionner.diffusion.coordinates import Coordinates
from diffusionner.diffusion.expansion import expand
from diffusionner.diffusion.noise import gaussian_noise, mix_keys, span_noise, uniform_noise
from diffusionner.diffusion.sampler import (
    AUTO,
    ReverseStep,
    absent,
    likely_candidates,
    min_spans,
    reverse_process,
    span_slots,
    timestep_sequence,
)
from diffusionner.diffusion.schedule import Schedule
from diffusionner.diffusion.spans import Candidates, GappedCandidates, ReverseStart

__all__ = [
    "AUTO",
    "BeliefDenoiser",
    "BeliefWeights",
    "Candidates",
    "Coordinates",
    "GappedCandidates",
    "ReverseStart",
    "ReverseStep",
    "Schedule",
    "absent",
    "expand",
    "gaussian_noise",
    "likely_candidates",
    "min_spans",
    "mix_keys",
    "reverse_process",
    "span_noise",
    "span_slots",
    "timestep_sequence",
    "uniform_noise",
]
