"""The reverse process in ONNX Runtime, on the CPU: no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from diffusionner.batching import Batch
from diffusionner.diffusion import (
    Coordinates,
    Schedule,
    gaussian_noise,
    mix_keys,
    reverse_process,
    timestep_sequence,
)
from diffusionner.errors import CheckpointError
from diffusionner.model_folder import DENOISER_FILE, ENCODER_FILE, read_config
from diffusionner.settings import InferenceSettings, Settings
from diffusionner.subwords import SubwordTokenizer


class OnnxEngine:
    """Two graphs: the encoder, run once per sentence, and the denoiser, run at each step."""

    def __init__(self, folder: Path, labels: list[str], settings: Settings) -> None:
        self.labels = labels
        self.schedule = Schedule(settings.diffusion.schedule, settings.diffusion.timesteps)
        self.coordinates = Coordinates(settings.diffusion.coordinates, settings.diffusion.scale)
        self.encoder = _session(folder / ENCODER_FILE)
        self.denoiser = _session(folder / DENOISER_FILE)

    def reverse(
        self,
        batch: Batch[np.ndarray],
        settings: InferenceSettings,
        slots: np.ndarray,
        given: np.ndarray | None = None,
        start: int | None = None,
    ) -> Callable[[], np.ndarray]:
        sentence = _run(self.encoder, vars(batch))
        sentence["lengths"] = batch.lengths
        keys = mix_keys(batch.keys, settings.seed)

        def noise(step: int, count: int) -> np.ndarray:  # [B, 1, K, 2]
            return gaussian_noise(mix_keys(keys, step), 1, count, 2)

        spans = slots.shape[1]
        if given is None:
            x = noise(0, spans)
        else:
            x = self.coordinates.encode(given[:, None], batch.lengths[:, None])

        def denoise(x: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
            step = {"x": x, "t": np.array(t, dtype=np.int64), "slots": slots}
            found = _run(self.denoiser, sentence | step)
            return found["x0"], found["table"]

        sequence = timestep_sequence(start or self.schedule.timesteps, settings.steps)
        table = reverse_process(
            denoise, x, self.schedule, sequence, settings.eta, lambda step: noise(step, spans)
        )
        return lambda: table


def load(folder: Path) -> tuple[OnnxEngine, SubwordTokenizer, Settings]:
    """What `diffusionner export` wrote."""
    config = read_config(folder, "tokenizer")
    settings = Settings.from_dict(config["settings"], str(folder / "config.json"))
    path = folder / "tokenizer.json"
    try:
        backend = Tokenizer.from_file(str(path))
        backend.no_truncation()
        backend.no_padding()
        tokenizer = SubwordTokenizer(backend=backend, **config["tokenizer"])
    except Exception as error:  # tokenizers has no exception class of its own
        raise CheckpointError(f"{path} cannot be read ({error}); export the model again") from error
    return OnnxEngine(folder, config["labels"], settings), tokenizer, settings


def _session(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise CheckpointError(
            "backend onnx needs the package 'onnxruntime'; install it with: "
            "pip install 'diffusionner[onnx]'"
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # lengths differ from the example's: that is meant
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common class but this
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"{path} is missing, truncated or damaged ({reason}); export the model again"
        ) from error


def _run(session: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Feed a graph what it asks for, by name."""
    feed = {one.name: values[one.name] for one in session.get_inputs()}
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))
