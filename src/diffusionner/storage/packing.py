"""Weights in fewer bytes: matrices as int8 with a scale per row, the rest as float16.

Only how they are stored: a loaded model computes in float32 as ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from diffusionner.errors import CheckpointError, SettingsError, nearest

PRECISIONS = ("float32", "float16", "int8")
SCALE = ".scale"  # a matrix 'name' of int8 has its scales as 'name.scale'
LARGEST = 127
LEAST_SIZE = 4096  # numbers of a matrix that is worth rounding


def pack(tensors: Mapping[str, Tensor], precision: str) -> dict[str, Tensor]:
    """The tensors as they are stored."""
    if precision not in PRECISIONS:
        raise SettingsError(f"unknown precision '{precision}'; {nearest(precision, PRECISIONS)}")
    if precision == "float32":
        return dict(tensors)
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            packed[name] = tensor
        elif precision == "int8" and tensor.dim() == 2 and tensor.numel() >= LEAST_SIZE:
            scale = tensor.abs().amax(1).clamp(min=1e-12) / LARGEST
            packed[name] = (tensor / scale[:, None]).round().to(torch.int8)
            packed[name + SCALE] = scale
        else:
            packed[name] = tensor.half()
    return packed


def unpack(packed: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
    """The tensors in float32, whatever they were stored as."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in packed.items():
        if name.endswith(SCALE) and name.removesuffix(SCALE) in packed:
            continue
        if tensor.dtype == torch.int8:
            if (scale := packed.get(name + SCALE)) is None or len(scale) != len(tensor):
                raise CheckpointError(
                    f"{origin}: '{name}' has no scale for each of its rows; copy the file again"
                )
            tensor = tensor.float().mul_(scale.float()[:, None])  # in place: half the memory
        tensors[name] = tensor.float() if tensor.is_floating_point() else tensor
    return tensors


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else "is truncated or damaged"
        raise CheckpointError(
            f"{path} {what} ({error}); restore it from a good copy or train again"
        ) from error
