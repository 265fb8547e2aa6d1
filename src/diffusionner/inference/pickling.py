"""Models in other processes: pickled as the folder they were loaded from, safe to use after a fork.

Python pickles objects to send them to worker processes. The library itself reads no pickles.
"""

from __future__ import annotations

from typing import Any

from diffusionner.errors import CheckpointError
from diffusionner.inference.engine import Engine
from diffusionner.inference.open_labels import view


def weight_versions(engine: Engine) -> list[int]:
    """Return torch's counters of changes to the weights; an ONNX model has none."""
    network = getattr(engine, "network", None)
    return [] if network is None else [weight._version for weight in network.parameters()]


def reduce(ner: Any) -> tuple[Any, ...]:
    """Return a call that loads a DiffusionNER again, and its attributes that may have changed."""
    if ner.asked is not None:
        return view, (ner.base, ner.asked)
    if ner.folder is None or weight_versions(ner.engine) != ner.weight_versions:
        raise CheckpointError(
            "a model is sent to another process as the folder it was loaded from, and this one was "
            "made or changed in memory; save it with save_pretrained(FOLDER) and pickle "
            "DiffusionNER.from_pretrained(FOLDER)"
        )
    arguments: tuple[Any, ...] = (ner.folder.resolve(), None, "onnx")
    running = getattr(ner.engine, "running", None)
    if running is not None:
        weight = next(running.parameters())
        precision = "float32" if weight.element_size() == 4 else "bf16"
        graphs = getattr(ner.engine, "cuda_graphs", True)
        arguments = (ner.folder.resolve(), str(weight.device), "torch", precision, graphs)
    return type(ner).from_pretrained, arguments, {
        "settings": ner.settings, "calibration": ner.calibration,
    }  # fmt: skip
