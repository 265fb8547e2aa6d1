"""Export a model for ONNX Runtime: its folder with graphs, if they give the same results."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.onnx import OnnxExporterError

from diffusionner.corpus import Sentence
from diffusionner.errors import DiffusionNERError, SettingsError, nearest
from diffusionner.evaluation import score_sentences
from diffusionner.export.graphs import write_graphs
from diffusionner.export.int8 import quantise
from diffusionner.files import file_digest, write_atomically, write_folders
from diffusionner.inference import self_test
from diffusionner.inference.pipeline import DiffusionNER
from diffusionner.model.network import DenoisingNetwork
from diffusionner.storage.checkpoint import model_config, tensor_writer, tokenizer_files
from diffusionner.storage.config import GRAPHS, REPLAY_FILE, WEIGHTS, config_bytes
from diffusionner.storage.packing import pack

# Maximum change of F1 on dev, in points.
LIMITS = {"float32": 0.1, "int8": 0.5}


class ExportError(DiffusionNERError):
    """Raised when there are no graphs, or they change F1 on dev too much; nothing was written."""


@dataclass(frozen=True)
class Exported:
    """F1 on dev before and after the export, in points, and the size of weights and graphs."""

    before: float
    after: float
    size: int


def export(
    ner: DiffusionNER,
    output: Path,
    dev: Sequence[Sentence],
    precision: str = "float32",
    progress: Callable[[str], None] = lambda stage: None,
) -> Exported:
    """Write a folder that both backends read; raise ExportError if F1 on dev changes too much."""
    ner.settings.require_denoising("an export for ONNX Runtime")
    if precision not in LIMITS:
        raise SettingsError(f"unknown precision '{precision}'; {nearest(precision, LIMITS)}")
    for package in ("onnx", "onnxruntime", "onnxscript"):
        if find_spec(package) is None:
            raise SettingsError(
                f"exporting needs the package '{package}'; install it with: "
                "pip install onnx onnxruntime onnxscript"
            )
    results: list[Exported] = []
    assert isinstance(ner.network, DenoisingNetwork)

    def fill(folder: Path) -> None:
        progress("writing the graphs")
        try:
            write_graphs(ner, folder)
        except OnnxExporterError as error:
            encoder = ner.encoder.transformer.config.model_type
            raise ExportError(
                f"torch cannot export this model, whose encoder is a {encoder}, to ONNX; nothing "
                "was written. Run it with torch, or train one with another encoder"
            ) from error
        _write_weights(ner.network.state_dict(), folder)
        _write_rest(ner, folder)
        if precision == "int8":
            progress("rounding the weights to int8")
            as_int8 = {n: torch.from_numpy(array) for n, array in quantise(folder, dev).items()}
            _write_weights({**pack(ner.network.state_dict(), "float16"), **as_int8}, folder)
            _write_rest(ner, folder)
        progress("comparing on dev")
        written = DiffusionNER.from_pretrained(folder, backend="onnx")
        before, after = (_f1(model, dev) for model in (ner, written))
        if not before:
            raise ExportError(
                "the model's F1 on dev is 0, so there is nothing to compare; nothing was written. "
                "Use a dev corpus in which the model finds entities"
            )
        if abs(before - after) > LIMITS[precision]:
            raise ExportError(
                f"F1 on dev is {before:.2f} with the model but {after:.2f} with its {precision} "
                f"graphs, more than {LIMITS[precision]} points apart; nothing was written. Try "
                "float32, or a larger dev corpus"
            )
        test = self_test.record(written.engine, [ner.engine], ner.subwords, ner.settings)
        _write_rest(ner, folder, test)
        if ner.folder is not None and (ner.folder / REPLAY_FILE).exists():
            shutil.copyfile(ner.folder / REPLAY_FILE, folder / REPLAY_FILE)
        size = sum((folder / name).stat().st_size for name in (WEIGHTS, *GRAPHS))
        results.append(Exported(before, after, size))

    write_folders({output: fill})
    return results[0]


def _write_weights(tensors: Mapping[str, Tensor], folder: Path) -> None:
    write_atomically(folder / WEIGHTS, tensor_writer(tensors, {"format": "pt"}))


def _write_rest(ner: DiffusionNER, folder: Path, test: Mapping[str, Any] | None = None) -> None:
    """Write the tokenizer and config.json, with what torch needs and what the graphs need."""
    subwords = ner.subwords
    special = {name: getattr(subwords, name) for name in ("prefix", "suffix", "pad", "unknown")}
    tokenizer = tokenizer_files(subwords)
    for name, content in tokenizer.items():
        (folder / name).write_bytes(content)
    config = model_config(ner.network, subwords, ner.settings, ner.calibration, test)
    config["tokenizer"] = {"limit": subwords.limit, **special}
    config["files"] = {name: file_digest(folder / name) for name in (WEIGHTS, *GRAPHS, *tokenizer)}
    (folder / "config.json").write_bytes(config_bytes(config))


def _f1(ner: DiffusionNER, dev: Sequence[Sentence]) -> float:
    return 100 * score_sentences(dev, ner.predict_sentences(dev)).micro.f1
