"""The weights of exported graphs, which are read from model.safetensors: no torch.

A graph names each weight after a tensor of that file, with what to do with it:

    X           the tensor; int8 times its scales if the graph wants floats
    X.T         transposed, as a matrix product reads it
    X.T@A:B     rows A to B of that
    X.gates     rows of an LSTM in the order of ONNX, with a leading dimension

`X.scale` and `X.inputs` are tensors like any other (see packing.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from diffusionner.errors import CheckpointError

SCALE = ".scale"  # steps of the rows of an int8 matrix
INPUTS = ".inputs"  # what each input is multiplied by before it is rounded, and the weights, too
TRANSPOSED, GATES, ROWS = ".T", ".gates", "@"


def in_gate_order(matrix: np.ndarray) -> np.ndarray:
    """Reorder the rows of an LSTM from torch's i, f, g, o to ONNX's i, o, f, g: [4H, K] → [1, …]"""
    return np.concatenate([np.split(matrix, 4)[gate] for gate in (0, 3, 1, 2)])[None]


class Initializers:
    """Reads the tensors of a file as the weights of graphs."""

    def __init__(self, path: Path) -> None:
        try:
            file: Any = safe_open(path, "np")
            self.names: frozenset[str] = frozenset(file.keys())
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{path} is missing, truncated or damaged ({error}); copy the whole folder again"
            ) from error
        self.file, self.path = file, path

    def read(self, name: str, integers: bool = False) -> np.ndarray:
        """Return a weight by its name in a graph. integers: int8 as it is stored."""
        name, _, rows = name.partition(ROWS)
        convert: Callable[[np.ndarray], np.ndarray] = np.ascontiguousarray
        for suffix, function in ((TRANSPOSED, np.transpose), (GATES, in_gate_order)):
            if name.endswith(suffix):
                name, convert = name.removesuffix(suffix), function
        array = convert(self._tensor(name, integers))
        if rows:
            first, _, end = rows.partition(":")
            array = array[int(first) : int(end)]
        return np.ascontiguousarray(array)

    def _tensor(self, name: str, integers: bool) -> np.ndarray:
        if name not in self.names:
            raise CheckpointError(
                f"{self.path} lacks '{name[:100]}', which a graph beside it reads; they come from "
                "different models. Copy the whole folder again"
            )
        array: np.ndarray = self.file.get_tensor(name)
        if integers or array.dtype.kind != "i":
            return array if integers else array.astype(np.float32)
        scaled = array * self._tensor(name + SCALE, False)[:, None]
        if name + INPUTS in self.names:
            scaled *= self._tensor(name + INPUTS, False)
        return scaled
