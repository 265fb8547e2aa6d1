"""The diffusion process on boundaries: maths only, no network."""

from diffusionner.diffusion.coordinates import Coordinates
from diffusionner.diffusion.expansion import expand
from diffusionner.diffusion.noise import gaussian_noise, mix_keys, span_noise, uniform_noise
from diffusionner.diffusion.sampler import (
    ddim_step,
    ddim_weights,
    reverse_process,
    timestep_sequence,
)
from diffusionner.diffusion.schedule import Schedule

__all__ = [
    "Coordinates",
    "Schedule",
    "ddim_step",
    "ddim_weights",
    "expand",
    "gaussian_noise",
    "mix_keys",
    "reverse_process",
    "span_noise",
    "timestep_sequence",
    "uniform_noise",
]
