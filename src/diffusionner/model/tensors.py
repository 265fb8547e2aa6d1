"""Move arrays of the host to a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffusionner.batching import DEVICE_ARRAYS, Batch, RowLabels


def batch_to_device(batch: Batch[np.ndarray], device: torch.device) -> Batch[Tensor]:
    """Move the arrays of a batch that a device needs."""
    moved = with_tensors(batch, to_device(device_arrays(batch), device))
    if batch.labels is not None:
        moved.labels = RowLabels(*to_device(list(vars(batch.labels).values()), device))
    if batch.gap_cells is not None:
        (moved.gap_cells,) = to_device([batch.gap_cells], device)
    return moved


def device_arrays(batch: Batch[np.ndarray]) -> list[np.ndarray]:
    """Return the arrays of a batch that a device needs: integers and flags."""
    return [getattr(batch, name) for name in DEVICE_ARRAYS]


def with_tensors(batch: Batch[Any], tensors: Sequence[Tensor]) -> Batch[Tensor]:
    """Return the batch with these tensors in the place of `device_arrays`."""
    named: dict[str, Any] = dict(zip(DEVICE_ARRAYS, tensors, strict=True))
    return replace(batch, **named)


def to_device(values: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Move arrays in one asynchronous copy. Integers become int64."""
    if device.type == "cpu" or not values:
        return [torch.from_numpy(value) for value in values]
    return unpack(pack(values, device).to(device, non_blocking=True), values)


def pack(values: Sequence[np.ndarray], device: torch.device) -> Tensor:
    """Concatenate arrays of integers or float32, in 32 bits each."""
    sizes = [value.size for value in values]
    packed = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
    places = np.split(packed.numpy(), np.cumsum(sizes)[:-1])
    for place, value in zip(places, values, strict=True):
        place[:] = (value.view(np.int32) if value.dtype == np.float32 else value).ravel()
    return packed


def unpack(packed: Tensor, values: Sequence[np.ndarray]) -> list[Tensor]:
    """Split packed arrays into the shapes and dtypes of the values."""
    parts = torch.split(packed, [value.size for value in values])
    integers = torch.split(packed.long(), [value.size for value in values])
    return [
        _cast(value.dtype, part, integer).view(value.shape)
        for value, part, integer in zip(values, parts, integers, strict=True)
    ]


def _cast(dtype: np.dtype[Any], part: Tensor, integer: Tensor) -> Tensor:
    if dtype == np.float32:
        return part.view(torch.float32)
    return integer.bool() if dtype == np.bool_ else integer
