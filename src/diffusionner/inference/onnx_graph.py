"""A graph that ONNX Runtime runs."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffusionner.errors import CheckpointError, first_line
from diffusionner.storage.initializers import Initializers
from diffusionner.storage.onnx_file import INT8, check_graph


class Graph:
    """A session whose inputs and outputs go by name, opened when it runs first."""

    def __init__(self, path: Path, weights: Initializers) -> None:
        """weights: of the file beside the graph, which has none of its own."""
        self.path, self.weights = path, weights
        self.types = check_graph(path)
        self.lock = threading.Lock()  # threads share a graph
        self.session: Any = None

    def run(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Run the graph on the inputs it needs."""
        if self.session is None:
            self._open()
        results = self.session.run(self.outputs, {name: values[name] for name in self.inputs})
        return dict(zip(self.outputs, results, strict=True))

    def _open(self) -> None:
        with self.lock:
            if self.session is not None:
                return
            try:
                session = open_session(self.path, self.weights, self.types)
            except CheckpointError:
                raise
            except Exception as error:  # its exceptions have no other common class
                raise CheckpointError(
                    f"{self.path} is missing, truncated or damaged ({first_line(error)}); export "
                    "the model again"
                ) from error
            self.inputs = [value.name for value in session.get_inputs()]
            self.outputs = [value.name for value in session.get_outputs()]
            self.session = session


def open_session(graph: Path | bytes, weights: Initializers, types: Mapping[str, int]) -> Any:
    """Return a session. types: of the weights that the graph reads from the file, by name."""
    try:
        import onnxruntime
    except ImportError as error:
        raise CheckpointError(
            "backend onnx needs the package 'onnxruntime'; install it with: pip install onnxruntime"
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns that lengths differ from the example's
    options.intra_op_num_threads = 1
    values = [weights.read(name, kind == INT8) for name, kind in types.items()]
    shared = [onnxruntime.OrtValue.ortvalue_from_numpy(value) for value in values]
    options.add_external_initializers(list(types), shared)
    return onnxruntime.InferenceSession(
        graph,
        options,
        providers=["CPUExecutionProvider"],
        # It makes one node of two, but a slower one.
        disabled_optimizers=["SkipLayerNormFusion"],
    )
