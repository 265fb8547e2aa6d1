"""The training state on disk, one safetensors file from which a run is resumed exactly.

Data order, noise and dropout are functions of seed and step, so no generator needs saving.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from diffusionner.errors import CheckpointError
from diffusionner.files import write_atomically
from diffusionner.model.base import Network
from diffusionner.storage.checkpoint import tensor_writer
from diffusionner.storage.packing import read_tensors
from diffusionner.training.optimisation import WeightUpdate


@dataclass
class Progress:
    """Position of a run."""

    epoch: int = 0  # finished epochs
    batch: int = 0  # finished updates of the current epoch
    step: int = 0  # finished updates in total
    best_f1: float = -1.0
    best_epoch: int = 0
    seconds: float = 0.0  # time spent
    fingerprint: str = ""  # of settings and data: a state only continues the same run


def save_state(path: Path, progress: Progress, network: Network, update: WeightUpdate) -> None:
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    for number, slots in update.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": tensor for name, tensor in slots.items()}
    if update.average is not None:
        tensors |= {f"average.{k}": tensor for k, tensor in update.average.state_dict().items()}
    write_atomically(path, tensor_writer(tensors, {"progress": json.dumps(asdict(progress))}))


def load_state(path: Path, fingerprint: str, network: Network, update: WeightUpdate) -> Progress:
    """Restore network, optimiser and averaged weights; refuse the state of another run."""
    try:
        with safe_open(path, "pt") as file:
            progress = Progress(**json.loads((file.metadata() or {})["progress"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is missing, truncated or not a training state ({error}); "
            "start again without --resume"
        ) from error
    if progress.fingerprint != fingerprint:
        raise CheckpointError(
            f"{path} belongs to a run with other settings or data; resume with the same config and "
            "overrides, or choose another training.output"
        )
    tensors = read_tensors(path)
    network.load_state_dict(_with_prefix("network.", tensors))
    if update.average is not None:
        update.average.load_state_dict(_with_prefix("average.", tensors))
    slots: dict[int, dict[str, Tensor]] = {}
    for key, tensor in _with_prefix("optimizer.", tensors).items():
        number, name = key.split(".")
        slots.setdefault(int(number), {})[name] = tensor
    update.optimizer.load_state_dict({**update.optimizer.state_dict(), "state": slots})
    return progress


def _with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
