"""Compact storage of weights: matrices as int8 with a scale per row, the rest as float16.

With torch this is a storage format only: a loaded model computes in float32. Exported graphs
multiply the integers as they are (see initializers.py); their inputs may be multiplied by a factor
per channel first, which such a matrix has as well.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from diffusionner.errors import CheckpointError, SettingsError, nearest
from diffusionner.files import open_regular
from diffusionner.storage.initializers import INPUTS, SCALE

PRECISIONS = ("float32", "float16", "int8")
MAX_INT8 = 127
MIN_SIZE = 4096  # smaller matrices are stored as float16
# Larger weights are damage. Those of trained networks stay below a few hundred, and float16, in
# which models are stored and LSTMs run on a GPU, ends here.
MAX_WEIGHT = 65504.0
MAX_HEADER = 4_000_000  # bytes; 150 per tensor
FLOATS = ("F64", "F32", "F16", "BF16")


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
    """Convert stored tensors to float32; raise CheckpointError for unusable weights."""
    for name, tensor in packed.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue  # int8 is checked by its scales
        low, high = torch.aminmax(tensor)  # NaN if any is
        if not (low >= -MAX_WEIGHT and high <= MAX_WEIGHT):
            raise CheckpointError(
                f"{origin}: '{name}' has weights that are absurdly large or not finite "
                f"({low.item():g} to {high.item():g}); the model is damaged or its training "
                "diverged. Restore the file from a good copy or train again"
            )
    tensors: dict[str, Tensor] = {}
    for name, tensor in packed.items():
        if any(name.endswith(s) and name.removesuffix(s) in packed for s in (SCALE, INPUTS)):
            continue
        if tensor.dtype == torch.int8:
            scale = packed.get(name + SCALE)
            if scale is None or tensor.dim() != 2 or scale.shape != tensor.shape[:1]:
                raise CheckpointError(
                    f"{origin}: '{name}' lacks a scale for each of its rows; copy the file again"
                )
            factors = packed.get(name + INPUTS, tensor.new_ones(1))
            if factors.shape not in ((1,), tensor.shape[1:]):
                raise CheckpointError(
                    f"{origin}: '{name}' lacks a factor for each of its inputs; copy the file again"
                )
            tensor = tensor.float().mul_(scale.float()[:, None])  # in place: half the memory
            tensor.mul_(factors.float())
        tensors[name] = tensor.float() if tensor.is_floating_point() else tensor
    return tensors


class StoredTensor(NamedTuple):
    """Type and shape of a tensor, from the header of its file."""

    dtype: str  # as safetensors names it: "F32", "I8" …
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors that a file has, without reading them.

    The sizes are those of the file, so whoever compares them first need not trust config.json.
    """
    try:
        with open_regular(path, sys.maxsize) as file:
            if int.from_bytes(file.read(8), "little") > MAX_HEADER:
                raise OSError("its header is too long")
        with safe_open(path, "pt") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {n: StoredTensor(s.get_dtype(), tuple(s.get_shape())) for n, s in slices.items()}
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    read_header(path)
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    what = "is missing" if isinstance(error, FileNotFoundError) else "is truncated or damaged"
    return CheckpointError(f"{path} {what} ({error}); restore it from a good copy or train again")
