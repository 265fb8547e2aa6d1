"""The same maths for numpy on the host and torch on a device."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any  # np.ndarray or torch.Tensor


def namespace(array: Array) -> Any:
    """numpy or torch, whichever the array is of. torch is not imported for this."""
    return np if isinstance(array, np.ndarray) else sys.modules["torch"]
