"""The weights of graphs as the tensors of model.safetensors, which torch reads as well."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from diffusionner.storage.config import WEIGHTS
from diffusionner.storage.initializers import GATES, ROWS, TRANSPOSED, in_gate_order


def take_out(graph: Any, state: Mapping[str, np.ndarray]) -> None:
    """Replace the weights of a graph by references to tensors of a network, found by their values.

    Constants that were made of several weights stay, as do the tables of some encoders.
    state: float32 tensors by name.
    """
    from onnx import TensorProto, numpy_helper

    known: dict[bytes, str] = {}
    for tensor, array in state.items():
        for conversion, converted in _conversions(tensor, array):
            known.setdefault(_key(converted), conversion)
    renamed: dict[str, str] = {}
    kept: dict[str, Any] = {}
    for one in graph.initializer:
        array = numpy_helper.to_array(one)
        is_weight = one.data_type == TensorProto.FLOAT and array.size > 1
        name = known.get(_key(array)) if is_weight else None
        renamed[one.name] = name or one.name
        kept[name or one.name] = reference(name, array) if name else one
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    replace_initializers(graph, kept)


def reference(name: str, array: np.ndarray) -> Any:
    """Return an initializer whose numbers are those of a tensor in model.safetensors."""
    from onnx import StringStringEntryProto, TensorProto, helper

    return TensorProto(
        name=name,
        data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
        dims=array.shape,
        data_location=TensorProto.EXTERNAL,
        external_data=[StringStringEntryProto(key="location", value=WEIGHTS)],
    )


def references(graph: Any) -> dict[str, int]:
    """Return the weights that a graph reads from model.safetensors, and their types."""
    return {one.name: one.data_type for one in graph.initializer if one.external_data}


def replace_initializers(graph: Any, initializers: Mapping[str, Any]) -> None:
    del graph.initializer[:]
    graph.initializer.extend(initializers.values())


def _conversions(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield a tensor in all the ways in which graphs read it."""
    yield name, array
    if array.ndim != 2:
        return
    yield name + TRANSPOSED, array.T
    if ".weight_ih_" in name or ".weight_hh_" in name:
        yield name + GATES, in_gate_order(array)
    half = array.shape[1] // 2
    for first, end in ((0, half), (half, 2 * half)):
        yield f"{name}{TRANSPOSED}{ROWS}{first}:{end}", array.T[first:end]


def _key(array: np.ndarray) -> bytes:
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes())
    return digest.digest() + repr(array.shape).encode()
