"""Check an ONNX file before ONNX Runtime opens it.

A graph is a program. Those that an export writes have no loops or branches, call no functions, and
read weights from model.safetensors alone. Anything else could run forever or read files outside of
the folder. The file is read as protobuf messages, since inference does not need the package onnx.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from diffusionner.errors import CheckpointError
from diffusionner.files import open_regular
from diffusionner.storage.config import WEIGHTS

MAX_GRAPH = 2**31 - 1  # bytes; the limit of protobuf
DOMAINS = (b"", b"ai.onnx", b"com.microsoft")  # the operators of ONNX and of ONNX Runtime
MAX_FIELDS = 200_000  # graphs have some ten thousand
INT8 = 3  # its number among the types of tensors

# Numbers of fields in onnx.proto that hold other messages, and what these are.
_MESSAGES: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "initializer", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "subgraph", 10: "tensor", 11: "subgraph", 22: "sparse tensor"}
    | {23: "sparse tensor"},
    "initializer": {13: "entry"},
    "tensor": {13: "file"},
}
_FORBIDDEN = {
    "subgraph": "a loop or a branch",
    "function": "a function",
    "training": "a training graph",
    "sparse tensor": "a sparse tensor",
    "file": "weights in another file",
}


def check_graph(path: Path) -> dict[str, int]:
    """Return the weights that a graph reads from model.safetensors, and their types.

    Raise CheckpointError for a file that is not a graph as exports write it.
    """
    try:
        with open_regular(path, MAX_GRAPH) as file, mmap(file.fileno(), 0, access=ACCESS_READ) as m:
            found, weights = _walk(m)
    except (OSError, ValueError, LookupError) as error:  # mmap: ValueError for an empty file
        raise CheckpointError(
            f"{path} is missing, truncated or damaged ({error}); export the model again"
        ) from error
    if found:
        raise CheckpointError(
            f"{path} has {found}, which no export writes; it is not loaded. Export the model again"
        )
    return weights


def _walk(content: mmap) -> tuple[str, dict[str, int]]:
    """Return what a model contains that an export does not write, and its outside weights."""
    weights: dict[str, int] = {}
    queue = [("model", 0, len(content))]
    budget = MAX_FIELDS
    while queue:
        kind, start, end = queue.pop()
        fields = list(islice(_fields(content, start, end), budget))
        budget -= len(fields)
        if not budget:
            return "too many parts", weights
        for number, at, stop in fields:
            part = _MESSAGES[kind].get(number)
            if part in _FORBIDDEN:
                return _FORBIDDEN[part], weights
            if part == "entry":  # where the numbers are
                entry = {n: content[a:b] for n, a, b in _fields(content, at, stop)}
                if entry != {1: b"location", 2: WEIGHTS.encode()}:
                    return "weights in another file", weights
                values = {n: (a, b) for n, a, b in fields}
                kind_at, name = values[2][0], content[slice(*values[8])].decode()
                weights[name] = _varint(content, kind_at)[0]
            elif part is not None:
                queue.append((part, at, stop))
            if kind == "node" and number == 7 and content[at:stop] not in DOMAINS:
                return f"operators of '{content[at:stop][:50].decode(errors='replace')}'", weights
    return "", weights


def _fields(content: Any, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each field of a message, and where its value starts and ends."""
    while at < end:
        tag, at = _varint(content, at)
        kind, start = tag & 7, at
        if kind == 0:
            _, at = _varint(content, at)
        elif kind == 2:
            size, start = _varint(content, at)
            at = start + size
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError("it is not a protobuf message")
        if at > end:
            raise ValueError("it ends too early")
        yield tag >> 3, start, at


def _varint(content: Any, at: int) -> tuple[int, int]:
    """Return the number that starts at a byte, and where it ends."""
    number = shift = 0
    while True:
        byte = content[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
        if shift > 63:
            raise ValueError("it has a number of more than 64 bits")
