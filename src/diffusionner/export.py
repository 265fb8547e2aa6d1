"""A trained model as two ONNX graphs, written only if they find what the model finds."""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diffusionner.batching import EncodedCorpus
from diffusionner.checkpoint import tokenizer_files
from diffusionner.corpus import Sentence
from diffusionner.errors import DiffusionNERError, SettingsError, nearest
from diffusionner.evaluation.scorer import compare, pair_up
from diffusionner.files import write_folders
from diffusionner.inference.pipeline import DiffusionNER
from diffusionner.inference.torch_engine import read_out
from diffusionner.model import DenoisingNetwork
from diffusionner.model.decoder import PreparedSentence
from diffusionner.model.graphs import unpack
from diffusionner.model_folder import DENOISER_FILE, ENCODER_FILE, new_config

# How far F1 on dev may move, in points, before an export is refused.
LIMITS = {"float32": 0.1, "int8": 0.5}


class ExportError(DiffusionNERError):
    """The graphs do not find what the model finds; nothing was written."""


@dataclass(frozen=True)
class Exported:
    """F1 on dev of the model and of what was written, in points, and the bytes of the graphs."""

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
    """Write `output`, a folder for backend onnx; ExportError if F1 on dev moves too far."""
    if precision not in LIMITS:
        raise SettingsError(f"unknown precision '{precision}'; {nearest(precision, LIMITS)}")
    for package in ("onnx", "onnxruntime", "onnxscript"):
        if find_spec(package) is None:
            raise SettingsError(
                f"exporting needs the package '{package}'; install it with: "
                "pip install 'diffusionner[export]'"
            )
    result: Exported | None = None

    def fill(folder: Path) -> None:
        nonlocal result
        progress("recording the graphs")
        _write_graphs(ner, folder)
        _write_rest(ner, folder)
        if precision == "int8":
            progress("rounding the weights to int8")
            for name in (ENCODER_FILE, DENOISER_FILE):
                _quantise(folder / name)
        progress("comparing on dev")
        written = DiffusionNER.from_pretrained(folder, backend="onnx")
        before, after = (_f1(model, dev) for model in (ner, written))
        if not before:
            raise ExportError(
                "F1 on dev is 0 with the model, so there is nothing to compare; nothing was "
                "written. Give a dev corpus that the model finds entities in"
            )
        if abs(before - after) > LIMITS[precision]:
            raise ExportError(
                f"F1 on dev is {before:.2f} with the model and {after:.2f} with its {precision} "
                f"graphs, more than {LIMITS[precision]} apart; nothing was written. Try "
                "float32, or a larger dev corpus"
            )
        size = sum((folder / name).stat().st_size for name in (ENCODER_FILE, DENOISER_FILE))
        result = Exported(before, after, size)

    write_folders({output: fill})
    assert result is not None
    return result


class _EncoderGraph(nn.Module):
    """What is paid once per sentence."""

    def __init__(self, network: DenoisingNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(
        self,
        subwords: Tensor,
        attention: Tensor,
        word_of: Tensor,
        first: Tensor,
        lengths: Tensor,
        characters: Tensor,
    ) -> tuple[Tensor, ...]:
        mask = attention.bool()[:, None, None]
        batch = unpack((subwords, mask, word_of, first, lengths, characters))
        sentence = self.network.encode(batch)
        layers = [pair for pair in sentence.keys_values if pair is not None]
        fixed = (sentence.starts, sentence.ends, sentence.left, sentence.right)
        return (*fixed, *(tensor for pair in layers for tensor in pair))


class _DenoiserGraph(nn.Module):
    """One step: noisy spans in, x̂_0 and what each span has become out."""

    def __init__(self, network: DenoisingNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(
        self,
        lengths: Tensor,
        x: Tensor,
        t: Tensor,
        slots: Tensor,
        starts: Tensor,
        ends: Tensor,
        left: Tensor,
        right: Tensor,
        *layers: Tensor,
    ) -> tuple[Tensor, Tensor]:
        mask = torch.arange(starts.shape[1]) < lengths[:, None]
        # Without cross-attention no layer has keys and values.
        keys_values: list[tuple[Tensor, Tensor] | None] = [None] * len(self.network.decoder.layers)
        if layers:
            keys_values = list(zip(layers[::2], layers[1::2], strict=True))
        sentence = PreparedSentence(mask, lengths, starts, ends, keys_values, left, right)
        steps = t[None, None].expand(x.shape[0], 1)
        prediction = self.network.denoise(sentence, x, steps, slots)
        start, end = prediction.left.argmax(-1), prediction.right.argmax(-1)
        spans = torch.stack([start, torch.maximum(start, end)], -1)
        x0 = self.network.coordinates.encode(spans, lengths[:, None])
        return x0, read_out(prediction, slots)


def _write_graphs(ner: DiffusionNER, folder: Path) -> None:
    network = copy.deepcopy(ner.network).cpu().eval()  # the caller's stays on its device
    example = [Sentence("An example of some words .".split()[: 4 + n]) for n in range(3)]
    corpus = EncodedCorpus(example, ner.subwords, ner.settings.encoder)
    batch = corpus.batch(np.arange(3))
    names = ("subwords", "attention", "word_of", "first", "lengths", "characters")
    inputs = tuple(torch.from_numpy(getattr(batch, name)) for name in names)
    encoder, denoiser = _EncoderGraph(network), _DenoiserGraph(network)
    with torch.no_grad():
        sentence = encoder(*inputs)
    layers = [f"layer{i}" for i in range(len(sentence) - 4)]
    outputs = ["starts", "ends", "left", "right", *layers]
    auto = torch.export.Dim.DYNAMIC
    two, one = {0: auto, 1: auto}, {0: auto}
    _record(
        encoder, inputs, list(names), outputs, (two, two, two, two, one, two), folder / ENCODER_FILE
    )
    spans = 7
    step = (
        inputs[4],
        torch.zeros(3, 1, spans, 2),
        torch.tensor(network.schedule.timesteps),
        torch.ones(3, spans, dtype=torch.bool),
    )
    shapes: tuple[Any, ...] = (one, {0: auto, 2: auto}, {}, two, two, two, two, two)
    if layers:  # none without cross-attention
        shapes = (*shapes, tuple({0: auto, 2: auto} for _ in layers))
    _record(
        denoiser,
        (*step, *sentence),
        ["lengths", "x", "t", "slots", *outputs],
        ["x0", "table"],
        shapes,
        folder / DENOISER_FILE,
    )


def _record(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    names: list[str],
    outputs: list[str],
    shapes: tuple[Any, ...],
    path: Path,
) -> None:
    # The exporter reports what it does at length, and what is not installed.
    loud = logging.getLogger("torch.onnx").level
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module.eval(),
                inputs,
                path,
                input_names=names,
                output_names=outputs,
                dynamic_shapes=shapes,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    finally:
        logging.getLogger("torch.onnx").setLevel(loud)
    _forget_shapes(path)


def _forget_shapes(path: Path) -> None:
    """Behind an LSTM the exporter notes the example's length; ONNX Runtime finds the shapes out."""
    import onnx

    model = onnx.load(path)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    onnx.save(model, path)


def _write_rest(ner: DiffusionNER, folder: Path) -> None:
    subwords = ner.subwords
    special = {name: getattr(subwords, name) for name in ("prefix", "suffix", "pad", "unknown")}
    config = new_config(ner.labels, ner.settings)
    config["tokenizer"] = {"limit": subwords.limit, **special}
    text = json.dumps(config, indent=1, ensure_ascii=False) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    (folder / "tokenizer.json").write_bytes(tokenizer_files(subwords)["tokenizer.json"])


def _quantise(path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    plain = path.with_suffix(".float32")
    path.rename(plain)
    root = logging.getLogger()  # which it uses to recommend steps that these graphs do not need
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        # Not LSTM: what its quantised form returns has nothing to do with its input.
        kinds = ["MatMul", "Gemm", "Gather"]
        quantize_dynamic(plain, path, kinds, weight_type=QuantType.QInt8)
    finally:
        root.setLevel(level)
    plain.unlink()


def _f1(ner: DiffusionNER, dev: Sequence[Sentence]) -> float:
    return 100 * compare(pair_up(dev, ner.predict_sentences(dev))).micro.f1
