"""Arrays of the host to tensors of a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from diffusionner.batching import Batch

ON_DEVICE = (
    "subwords", "attention", "word_of", "first", "lengths", "characters", "gold", "gold_types",
)  # fmt: skip


def to_tensors(batch: Batch[np.ndarray], device: torch.device) -> Batch[Tensor]:
    moved = to_device([getattr(batch, name) for name in ON_DEVICE], device)
    return Batch(
        **dict(zip(ON_DEVICE, moved, strict=True)), keys=batch.keys, gold_counts=batch.gold_counts
    )


def to_device(values: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Arrays of one type moved together: one copy, which overlaps with computation."""
    if device.type == "cpu":
        return [torch.from_numpy(value) for value in values]
    packed = torch.from_numpy(np.concatenate([value.ravel() for value in values]))
    if device.type == "cuda":
        packed = packed.pin_memory()
    parts = torch.split(packed.to(device, non_blocking=True), [value.size for value in values])
    return [part.view(value.shape) for part, value in zip(parts, values, strict=True)]
