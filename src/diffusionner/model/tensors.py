"""Arrays of the host to tensors of a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffusionner.batching import Batch

ON_DEVICE = (
    "subwords", "attention", "word_of", "first", "lengths", "characters", "gold", "gold_types",
    "annotated_types",
)  # fmt: skip


def to_tensors(batch: Batch[np.ndarray], device: torch.device) -> Batch[Tensor]:
    return with_tensors(batch, to_device(arrays_of(batch), device))


def arrays_of(batch: Batch[np.ndarray]) -> list[np.ndarray]:
    """What of a batch is needed on a device: integers and flags."""
    return [getattr(batch, name) for name in ON_DEVICE]


def with_tensors(batch: Batch[np.ndarray], tensors: Sequence[Tensor]) -> Batch[Tensor]:
    """The batch with these in the places of `arrays_of`."""
    return Batch(
        **dict(zip(ON_DEVICE, tensors, strict=True)), keys=batch.keys, gold_counts=batch.gold_counts
    )


def encoder_batch(*parts: Tensor) -> Batch[Tensor]:
    """A batch of no more than the encoder reads, for a recording of it."""
    none, nothing = parts[0].new_zeros(0), np.zeros(0, dtype=np.int64)
    read = dict(zip(ON_DEVICE[:6], parts, strict=True))
    rest = dict.fromkeys(ON_DEVICE[6:], none)
    return Batch(**read, **rest, keys=nothing, gold_counts=nothing)


def to_device(values: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Arrays moved together: one copy, which overlaps with computation. Integers become int64."""
    if device.type == "cpu" or not values:
        return [torch.from_numpy(value) for value in values]
    return unpack(pack(values, device).to(device, non_blocking=True), values)


def pack(values: Sequence[np.ndarray], device: torch.device) -> Tensor:
    """Arrays of integers or float32, one behind the other, in 32 bits each."""
    sizes = [value.size for value in values]
    packed = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
    places = np.split(packed.numpy(), np.cumsum(sizes)[:-1])
    for place, value in zip(places, values, strict=True):
        place[:] = (value.view(np.int32) if value.dtype == np.float32 else value).ravel()
    return packed


def unpack(packed: Tensor, values: Sequence[np.ndarray]) -> list[Tensor]:
    """What was packed, in the shapes and kinds of the values."""
    parts = torch.split(packed, [value.size for value in values])
    whole = torch.split(packed.long(), [value.size for value in values])
    return [
        _as(value.dtype, part, number).view(value.shape)
        for value, part, number in zip(values, parts, whole, strict=True)
    ]


def _as(dtype: np.dtype[Any], part: Tensor, number: Tensor) -> Tensor:
    if dtype == np.float32:
        return part.view(torch.float32)
    return number.bool() if dtype == np.bool_ else number
