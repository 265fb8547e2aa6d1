"""A model folder as an engine: torch or ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.errors import CheckpointError, SettingsError, nearest
from diffusionner.inference import self_test
from diffusionner.inference.engine import Engine
from diffusionner.settings import Settings
from diffusionner.storage.config import GRAPHS

BACKENDS = ("torch", "onnx")


def load(
    path: Path,
    device: str | None,
    backend: str | None,
    precision: str | None,
    cuda_graphs: bool,
) -> tuple[Engine, SubwordTokenizer, Settings, float]:
    """Return the parts of a model, and the tolerance of its self-test.

    The arguments are those of `DiffusionNER.from_pretrained`.
    """
    exported = any((path / file).exists() for file in GRAPHS)
    if backend is None:
        on_cpu = device in (None, "cpu") and precision is None
        backend = "onnx" if exported and on_cpu else "torch"
    if backend == "onnx":
        from diffusionner.inference import onnx_engine

        if device not in (None, "cpu"):
            raise SettingsError(f"backend onnx runs on the CPU, not on device '{device}'")
        if precision is not None:
            raise SettingsError("the precision of an ONNX model is fixed when it is exported")
        return *onnx_engine.load(path), self_test.LOW_PRECISION_TOLERANCE
    if backend != "torch":
        raise SettingsError(f"unknown backend '{backend}'; {nearest(backend, BACKENDS)}")
    try:
        from diffusionner.inference.torch_engine import load_engine
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise CheckpointError(
            f"'{path}' is not an exported model, and others need the package 'torch'; install it "
            "with `pip install '.[torch]'`, or run `diffusionner export` on a machine that has it"
        ) from error
    from diffusionner.storage import checkpoint

    network, subwords, settings = checkpoint.load(path)
    engine = load_engine(network, device, precision, cuda_graphs)
    exact = getattr(engine, "running", None) is network and not exported
    tolerance = self_test.TOLERANCE if exact else self_test.LOW_PRECISION_TOLERANCE
    return engine, subwords, settings, tolerance
