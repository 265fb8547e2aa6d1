"""Files of belief networks, which run without torch: one comes with the library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from diffusionner.diffusion import BeliefWeights
from diffusionner.diffusion.beliefs import INPUTS
from diffusionner.errors import CheckpointError
from diffusionner.files import read_bounded, write_bytes
from diffusionner.storage.initializers import Initializers

FITTED = Path(__file__).with_name("beliefs.safetensors")  # by `python -m reproduce fit-beliefs`
MAX_BYTES = 2**26


def write_beliefs(
    path: Path, weights: BeliefWeights, metadata: dict[str, str] | None = None
) -> None:
    """Write the weights as a safetensors file. metadata: how they were made."""
    write_bytes(path, save(weights._asdict(), metadata))


def fitted_beliefs() -> BeliefWeights:
    """Return the weights that come with the library."""
    return read_beliefs(FITTED, "install diffusionner again")


def beliefs_of(weights: Initializers) -> BeliefWeights:
    """Return the weights of a model's own network."""
    names = ("hidden.weight", "hidden.bias", "output.weight", "output.bias")
    arrays = (weights.read(f"beliefs.{name}") for name in names)  # as in model.beliefs
    return _checked(BeliefWeights(*arrays), weights.path, "copy the whole folder again")


def read_beliefs(path: Path, advice: str = "fit the network again") -> BeliefWeights:
    """Read and check the weights. advice: what to do if they cannot be used."""
    try:
        weights = BeliefWeights(**load(read_bounded(path, MAX_BYTES)))
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); {advice}") from error
    return _checked(weights, path, advice)


def _checked(weights: BeliefWeights, path: Path, advice: str) -> BeliefWeights:
    hidden = len(weights.hidden)
    expected = [(hidden, INPUTS), (hidden,), (1, hidden), (1,)]
    if [array.shape for array in weights] != expected or not all(
        array.dtype == np.float32 and np.isfinite(array).all() for array in weights
    ):
        raise CheckpointError(
            f"{path} does not have the {INPUTS} inputs of this version, or has weights that are "
            f"not finite; {advice}"
        )
    return weights
