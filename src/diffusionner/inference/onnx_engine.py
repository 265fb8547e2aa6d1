"""The reverse process in ONNX Runtime, on the CPU: no torch.

float32 or int8, a sentence gives the same entities alone, in any batch and in any order: no range
or scale in the graphs is taken from the batch at hand.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from diffusionner.batching import Batch
from diffusionner.batching.subwords import BACKEND_FILE, SubwordTokenizer, parse_backend
from diffusionner.diffusion import (
    Coordinates,
    Schedule,
    reverse_process,
    span_noise,
    timestep_sequence,
)
from diffusionner.diffusion.span_counts import AUTO, LOWEST, NO_SPAN, likely
from diffusionner.errors import CheckpointError
from diffusionner.settings import InferenceSettings, Settings
from diffusionner.storage.config import DENOISER_FILE, ENCODER_FILE, read_config

TOKENIZER_NUMBERS = ("limit", "prefix", "suffix", "pad", "unknown")  # in config.json
PART = 8  # windows that are worth a processor of their own


class OnnxEngine:
    """Two graphs: the encoder, run once per sentence, and the denoiser, run at each step.

    Every processor works on a part of a batch, or a batch, of its own: to share the small matrices
    of one sentence among them takes longer.
    """

    subword_step = 1
    ahead = 3  # more than its threads have at a time

    def __init__(self, folder: Path, labels: list[str], settings: Settings) -> None:
        self.labels = labels
        self.schedule = Schedule(settings.diffusion.schedule, settings.diffusion.timesteps)
        self.coordinates = Coordinates(settings.diffusion.coordinates, settings.diffusion.scale)
        self.encoder = _Graph(folder / ENCODER_FILE)
        self.denoiser = _Graph(folder / DENOISER_FILE)
        if self.denoiser.labels != labels:
            raise CheckpointError(
                f"{folder / DENOISER_FILE} is for the labels {self.denoiser.labels}, but "
                f"config.json beside it has {labels}; export the model again"
            )
        self.processors = processors()
        self.workers = ThreadPoolExecutor(self.processors)

    def find(
        self,
        batch: Batch[np.ndarray],
        settings: InferenceSettings,
        slots: np.ndarray,
        given: np.ndarray | None = None,
        start: int | None = None,
    ) -> Callable[[], np.ndarray]:
        count, spans = slots.shape
        parts = np.array_split(np.arange(count), np.clip(count // PART, 1, self.processors))
        running = [
            self.workers.submit(
                self._reverse,
                encoder_inputs(batch, rows),
                settings,
                slots[rows],
                None if given is None else given[rows],
                start,
            )
            for rows in parts
        ]

        def table() -> np.ndarray:
            steps = settings.steps if settings.average_steps else 1
            joined = np.full((count, steps, spans, 5), NO_SPAN, dtype=np.float32)
            for rows, part in zip(parts, running, strict=True):
                found = part.result()
                joined[rows, :, : found.shape[2]] = found
            return joined

        return table

    def _reverse(
        self,
        inputs: dict[str, np.ndarray],
        settings: InferenceSettings,
        slots: np.ndarray,
        given: np.ndarray | None,
        start: int | None,
    ) -> np.ndarray:
        lengths = inputs["lengths"]
        sentence = {**self.encoder.run(inputs), "lengths": lengths}
        if given is None and settings.start == "candidates":
            given, scores = candidates(sentence["initial"], slots.shape[1])
            start = max(self.schedule.start, settings.steps)
            if settings.spans == AUTO:
                slots = likely(slots, scores)
        spans = max(1, int(slots.sum(1).max()))  # a sentence's are the first ones
        slots = slots[:, :spans]

        def noise(step: int, count: int) -> np.ndarray:  # [B, 1, K, 2]
            return span_noise(inputs["keys"], settings.seed, step, count)

        if given is None:
            x = noise(0, spans)
        else:
            x = self.coordinates.encode(given[:, None, :spans], lengths[:, None])

        def denoise(x: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
            step = {"x": x, "t": np.array(t, dtype=np.int64), "slots": slots}
            found = self.denoiser.run(sentence | step)
            return found["x0"], found["table"]

        sequence = timestep_sequence(start or self.schedule.timesteps, settings.steps)
        tables = reverse_process(
            denoise, x, self.schedule, sequence, settings.eta, lambda step: noise(step, spans)
        )
        return np.stack(tables if settings.average_steps else tables[-1:], 1)


def candidates(scores: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest spans [B, K, 2], best first, and their scores [B, K], as the initializer's."""
    words = scores.shape[1]
    flat = scores.reshape(len(scores), -1)
    taken = min(count, flat.shape[1])
    index = np.argpartition(-flat, taken - 1)[:, :taken]
    best = np.take_along_axis(flat, index, 1)
    order = np.argsort(-best, kind="stable")
    index, best = (np.take_along_axis(one, order, 1) for one in (index, best))
    spans = np.maximum(1, (best > LOWEST / 2).sum(1, keepdims=True))
    slots = np.arange(count) % spans
    chosen = np.take_along_axis(index, slots, 1)
    return np.stack([chosen // words, chosen % words], -1), np.take_along_axis(best, slots, 1)


def encoder_inputs(
    batch: Batch[np.ndarray], rows: np.ndarray | slice = slice(None)
) -> dict[str, np.ndarray]:
    """Rows of a batch, with the noise keys, as short and as narrow as they can be."""
    longest = int(batch.attention[rows].sum(1).max())
    most = int(batch.lengths[rows].max())
    word_of = np.minimum(batch.word_of[rows], most)
    characters = batch.characters[rows, :most]
    width = max(1, int((characters != 0).sum(-1).max(initial=0)))  # of the longest word
    return {
        "subwords": batch.subwords[rows, :longest],
        "attention": batch.attention[rows, :longest],
        "word_of": word_of[:, : int((word_of < most).sum(1).max())],
        "first": batch.first[rows, :most],
        "characters": characters[..., :width],
        "lengths": batch.lengths[rows],
        "keys": batch.keys[rows],
    }


def load(folder: Path) -> tuple[OnnxEngine, SubwordTokenizer, Settings]:
    """What `diffusionner export` wrote."""
    config = read_config(folder)
    file = folder / "config.json"
    if "tokenizer" not in config and not (folder / ENCODER_FILE).exists():
        raise CheckpointError(
            f"'{folder}' is a torch model, it has no {ENCODER_FILE}; load it with backend torch, "
            f"or make a folder for backend onnx: diffusionner export OUTPUT --model '{folder}' "
            "--dev DEV"
        )
    settings = Settings.from_dict(config["settings"], str(file))
    numbers = _tokenizer_numbers(config.get("tokenizer"), file)
    path = folder / BACKEND_FILE
    try:
        backend = parse_backend(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); export the model again") from error
    tokenizer = SubwordTokenizer(backend=backend, **numbers)
    return OnnxEngine(folder, config["labels"], settings), tokenizer, settings


def _tokenizer_numbers(numbers: Any, file: Path) -> dict[str, Any]:
    """What config.json says of the tokenizer, checked: numbers, and lists of them."""

    def whole(value: Any) -> bool:
        return type(value) is int and value >= 0

    if not isinstance(numbers, dict) or set(numbers) != set(TOKENIZER_NUMBERS):
        found = ", ".join(map(str, numbers)) if isinstance(numbers, dict) else "no such table"
        raise CheckpointError(
            f"{file}: 'tokenizer' needs {', '.join(TOKENIZER_NUMBERS)}, it has: {found}; export "
            "the model again"
        )
    for name, value in numbers.items():
        lists = name in ("prefix", "suffix")
        if not (isinstance(value, list) and all(map(whole, value)) if lists else whole(value)):
            raise CheckpointError(
                f"{file}: tokenizer.{name} is {json.dumps(value)}, expected "
                f"{'a list of numbers' if lists else 'a number'}; export the model again"
            )
    return numbers


class _Graph:
    """A session, fed by name."""

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise CheckpointError(
                "backend onnx needs the package 'onnxruntime'; install it with: "
                "pip install onnxruntime"
            ) from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # lengths differ from the example's: that is meant
        options.intra_op_num_threads = 1
        try:
            self.session = onnxruntime.InferenceSession(
                path,
                options,
                providers=["CPUExecutionProvider"],
                # One node instead of two, but a slower one.
                disabled_optimizers=["SkipLayerNormFusion"],
            )
        except Exception as error:  # its exceptions have no common class but this
            reason = str(error).strip().splitlines()[0]
            raise CheckpointError(
                f"{path} is missing, truncated or damaged ({reason}); export the model again"
            ) from error
        self.inputs = [one.name for one in self.session.get_inputs()]
        self.outputs = [one.name for one in self.session.get_outputs()]

    @property
    def labels(self) -> Any:
        """What the graph was recorded for; None where it does not say."""
        return json.loads(self.session.get_modelmeta().custom_metadata_map.get("labels", "null"))

    def run(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Feed the graph what it asks for."""
        found = self.session.run(self.outputs, {name: values[name] for name in self.inputs})
        return dict(zip(self.outputs, found, strict=True))


def processors() -> int:
    """How many this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
