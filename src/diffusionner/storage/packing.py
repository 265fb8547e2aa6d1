"""Compact storage of weights: matrices as int8 with a scale per row, the rest as float16.

This is a storage format only: a loaded model computes in float32.
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
SCALE = ".scale"  # the scales of an int8 matrix 'name' are 'name.scale'
MAX_INT8 = 127
MIN_SIZE = 4096  # smaller matrices are stored as float16


def pack(tensors: Mapping[str, Tensor], precision: str) -> dict[str, Tensor]:
    """Convert tensors to their storage format."""
    if precision not in PRECISIONS:
        raise SettingsError(f"unknown precision '{precision}'; {nearest(precision, PRECISIONS)}")
    if precision == "float32":
        return dict(tensors)
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            packed[name] = tensor
        elif precision == "int8" and tensor.dim() == 2 and tensor.numel() >= MIN_SIZE:
            scale = tensor.abs().amax(1).clamp(min=1e-12) / MAX_INT8
            packed[name] = (tensor / scale[:, None]).round().to(torch.int8)
            packed[name + SCALE] = scale
        else:
            packed[name] = tensor.half()
    return packed


def unpack(packed: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
    """Convert stored tensors to float32."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in packed.items():
        if name.endswith(SCALE) and name.removesuffix(SCALE) in packed:
            continue
        if tensor.dtype == torch.int8:
            if (scale := packed.get(name + SCALE)) is None or len(scale) != len(tensor):
                raise CheckpointError(
                    f"{origin}: '{name}' lacks a scale for each of its rows; copy the file again"
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
