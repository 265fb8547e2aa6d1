"""The network as three ONNX graphs, in operations that ONNX Runtime runs fast."""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diffusionner.batching import DEVICE_ARRAYS, Batch, EncodedCorpus
from diffusionner.corpus import Sentence
from diffusionner.diffusion import Candidates
from diffusionner.export.weights import take_out
from diffusionner.inference.onnx_engine import LABEL_INPUTS, label_inputs
from diffusionner.inference.pipeline import DiffusionNER
from diffusionner.model.decoder import PreparedSentence, read_out, sinusoids
from diffusionner.model.encoder import LabelVectors, SentenceEncoding
from diffusionner.model.initializer import SpanScores
from diffusionner.model.network import DenoisingNetwork
from diffusionner.model.pointer import BoundaryPointer
from diffusionner.storage.config import DENOISER_FILE, ENCODER_FILE, GRAPHS, SENTENCE_FILE

INPUTS = DEVICE_ARRAYS[:7]  # what the encoder reads
_ON_HOST = ("slots", "logits", "gapped")
OUTPUTS = tuple(f.name for f in dataclasses.fields(Candidates) if f.name not in _ON_HOST)


def write_graphs(ner: DiffusionNER, folder: Path) -> None:
    """Write the graphs of a model, with references to its weights."""
    assert isinstance(ner.network, DenoisingNetwork)
    network = for_graphs(ner.network)
    # With passages, there are fewer rows than sentences.
    example = [
        Sentence("An example of words .".split()[: 3 + n], doc=f"{n // 2}") for n in range(3)
    ]
    corpus = EncodedCorpus(example, ner.subwords, ner.settings.encoder)
    batch = corpus.batch(np.arange(3))
    inputs = tuple(torch.from_numpy(getattr(batch, name)) for name in INPUTS)
    auto = torch.export.Dim.DYNAMIC
    two, one = {0: auto, 1: auto}, {0: auto}
    characters = {**two, 2: auto} if batch.characters.shape[2] else two
    shapes: tuple[Any, ...] = (two, two, two, two, one, one, characters)
    read: list[str] = []
    if ner.is_open:
        read = list(LABEL_INPUTS)
        rows = list(map(ner.subwords.label_subwords, ("person", "a place", "year")))
        inputs = (*inputs, *map(torch.from_numpy, label_inputs(rows, ner.subwords.pad).values()))
        shapes = (*shapes, ({1: auto}, {1: auto}, {1: auto, 2: auto}))
    encoder = EncoderGraph(network)
    with torch.no_grad():
        encoded = encoder(*inputs)
    scores = _score_names(network)
    fragments = ["fragments"] if network.finds_discontinuous else []
    outputs = ["states", *scores, *fragments]
    _record(encoder, inputs, [*INPUTS, *read], outputs, shapes, folder / ENCODER_FILE)

    lengths, states = torch.from_numpy(batch.lengths), encoded[0]
    projections = SentenceGraph(network)
    with torch.no_grad():
        projected = projections(lengths, states)
    layers = [f"layer{i}" for i in range(len(projected) - 4)]  # none without cross-attention
    shared = ["starts", "ends", "left_words", "right_words", *layers]
    names = ["lengths", "states"]
    _record(projections, (lengths, states), names, shared, (one, two), folder / SENTENCE_FILE)

    spans = 7
    step = (
        lengths,
        torch.zeros(3, 1, spans, 2),
        torch.tensor(network.schedule.timesteps),
        torch.ones(3, spans, dtype=torch.bool),
        *projected[:4],
    )
    square = {0: auto, 1: auto, 2: auto}
    of_scores = {"initial": square, "initial_types": square, "types": one}
    if ner.is_open:
        of_scores |= {"initial_types": {**square, 3: auto}, "types": two}
    others = (*(of_scores[n] for n in scores), *({0: auto, 2: auto} for _ in layers))
    shapes = (one, {0: auto, 2: auto}, {}, *[two] * 5, *((others,) if others else ()))
    names = ["lengths", "x", "t", "slots", *shared[:4], *scores, *layers]
    step = (*step, *encoded[1 : 1 + len(scores)], *projected[4:])
    _record(DenoiserGraph(network), step, names, ["x0", *OUTPUTS], shapes, folder / DENOISER_FILE)
    state = {name: tensor.float().numpy() for name, tensor in network.state_dict().items()}
    for name in GRAPHS:
        _finish(folder / name, state)


def _score_names(network: DenoisingNetwork) -> list[str]:
    """Return the names of the encoder's outputs about spans and types."""
    initializer = network.decoder.initializer
    if initializer is None:
        return []
    names = ["initial"] if initializer.types is None else ["initial", "initial_types"]
    return [*names, "types"] if network.joins_labels else names


def for_graphs(network: DenoisingNetwork) -> DenoisingNetwork:
    """Return an equivalent copy on the CPU with parts that export well."""
    network = copy.deepcopy(network).cpu().eval()  # the original stays on its device
    decoder = network.decoder
    decoder.left, decoder.right = _FoldedPointer(decoder.left), _FoldedPointer(decoder.right)
    size = decoder.timestep_table.shape[1]
    del decoder.timestep_table
    vars(decoder)["timestep_table"] = _TimestepRows(size)  # in place of a tensor
    return network


class _FoldedPointer(BoundaryPointer):
    """A pointer with the output weights v folded into both projections, so that scores are sums.

    v·relu(w + s) is sign(v)·relu(|v|w + |v|s), and relu(w + s) is max(w, -s) + s. Multiplying K × M
    rows by a single column, as the network does, costs as much as a wide matrix would.
    """

    def __init__(self, pointer: BoundaryPointer) -> None:
        weight = pointer.output.weight.detach()[0]
        super().__init__(len(weight))
        order = weight.sign().argsort(descending=True)  # v > 0 first
        self.positive = int((weight > 0).sum())
        self.words = _Scaled(pointer.words, order, weight.abs())
        self.spans = _Scaled(pointer.spans, order, weight.abs())
        self.output.load_state_dict(pointer.output.state_dict())

    def forward(self, words: Tensor, spans: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
        words, spans, n = words[:, None, None], self.spans(spans), self.positive
        relu = torch.maximum(words, -spans[..., None, :])  # without + s
        scores = relu[..., :n].sum(-1) - relu[..., n:].sum(-1)
        shared = spans[..., :n].sum(-1) - spans[..., n:].sum(-1) + self.output.bias
        return (scores + shared[..., None]).masked_fill(~mask[:, None, None], -1e4)


class _Scaled(nn.Linear):
    """A linear map whose outputs are scaled and put in order afterwards; its weights stay."""

    def __init__(self, linear: nn.Linear, order: Tensor, factors: Tensor) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None)
        self.load_state_dict(linear.state_dict())
        self.order, self.factors = order, factors[order]

    def forward(self, states: Tensor) -> Tensor:
        return super().forward(states)[..., self.order] * self.factors


class _TimestepRows:
    """Rows of the table of timesteps, computed when they are read instead of stored."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __getitem__(self, t: Tensor) -> Tensor:
        return sinusoids(t, self.size)


class _Graph(nn.Module):
    def __init__(self, network: DenoisingNetwork) -> None:
        super().__init__()
        self.network = network


class EncoderGraph(_Graph):
    """Encode words and score all spans."""

    def __init__(self, network: DenoisingNetwork) -> None:
        super().__init__(network)
        self.table = None if network.table is None else LabelVectors.of_table(network.table)

    def forward(
        self,
        subwords: Tensor,
        attention: Tensor,
        word_of: Tensor,
        first: Tensor,
        row: Tensor,
        lengths: Tensor,
        characters: Tensor,
        *labels: Tensor,
    ) -> tuple[Tensor, ...]:
        """labels: `LABEL_INPUTS`, if labels are read as words."""
        none, nothing = lengths.new_zeros(0), np.zeros(0, dtype=np.int64)
        batch = Batch(
            subwords,
            attention,
            word_of,
            first,
            row,
            lengths,
            characters,
            none,
            none,
            none,
            nothing,
            nothing,
        )
        read = self.table
        if labels:
            label_subwords, places, belongs = labels
            vectors = self.network.encoder.embed_labels(label_subwords, places)
            read = LabelVectors(vectors, belongs)
        if read is not None:
            read = read.expand(subwords.shape[0])
        encoding = self.network.encoder(batch, read)
        initial = self.network.decoder.initial(encoding)
        scores = () if initial is None else (initial.spans, initial.types)
        fragments = self.network.fragment_scores(encoding)
        found = (encoding.states, *scores, encoding.types, fragments)
        return tuple(tensor for tensor in found if tensor is not None)


class SentenceGraph(_Graph):
    """Compute what all denoising steps share."""

    def forward(self, lengths: Tensor, states: Tensor) -> tuple[Tensor, ...]:
        mask = torch.arange(states.shape[1]) < lengths[:, None]
        sentence = self.network.decoder.project(SentenceEncoding(states, mask, lengths))
        layers = [pair for pair in sentence.keys_values if pair is not None]
        fixed = (sentence.starts, sentence.ends, sentence.left, sentence.right)
        return (*fixed, *(tensor for pair in layers for tensor in pair))


class DenoiserGraph(_Graph):
    """One step: noisy spans in, x̂_0 and candidates out."""

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
        *others: Tensor,
    ) -> tuple[Tensor, ...]:
        """others: what is known of the types, then keys and values of each layer."""
        names = _score_names(self.network)
        known = dict(zip(names, others, strict=False))
        initial, types = None, known.get("types")
        if known:
            initial = SpanScores(known["initial"], known.get("initial_types"), types is None)
        layers = others[len(names) :]
        mask = torch.arange(starts.shape[1]) < lengths[:, None]
        # Without cross-attention no layer has keys and values.
        keys_values: list[tuple[Tensor, Tensor] | None] = [None] * len(self.network.decoder.layers)
        if layers:
            keys_values = list(zip(layers[::2], layers[1::2], strict=True))
        sentence = PreparedSentence(
            mask, lengths, keys_values, left, right, starts, ends, types=types
        )
        steps = t[None, None].expand(x.shape[0], 1)
        x0, prediction = self.network.denoise(sentence, x, steps, slots)
        found = read_out(prediction, slots, initial)
        return (x0, *(getattr(found, name) for name in OUTPUTS))


def _plain_attention() -> Callable[..., Any]:
    """Return attention in few nodes; the exporter's own guards against rows that see nothing."""
    import onnxscript

    op: Any = onnxscript.opset20

    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        assert not is_causal and not enable_gqa
        factor = op.Constant(value_float=scale or 1 / math.sqrt(query.shape[-1]))
        scores = op.MatMul(op.Mul(query, factor), op.Transpose(key, perm=[0, 1, 3, 2]))
        if attn_mask is not None:
            hidden = op.Constant(value_float=-1e4)
            seen = op.Constant(value_float=0.0)
            scores = op.Add(scores, op.Where(attn_mask, seen, hidden))
        return op.MatMul(op.Softmax(scores, axis=-1), value)

    return attention


def _record(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    names: list[str],
    outputs: list[str],
    shapes: tuple[Any, ...],
    path: Path,
) -> None:
    # The exporter logs what it does and which packages are missing.
    loud = logging.getLogger("torch.onnx").level
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module.eval(),
                # Strides of views become symbols, which torch 2.15 cannot export.
                tuple(tensor.contiguous() for tensor in inputs),
                path,
                input_names=names,
                output_names=outputs,
                dynamic_shapes=shapes,
                dynamo=True,
                opset_version=20,
                custom_translation_table={
                    torch.ops.aten.scaled_dot_product_attention.default: _plain_attention()
                },
                external_data=False,
                verbose=False,
            )
    finally:
        logging.getLogger("torch.onnx").setLevel(loud)


def _finish(path: Path, state: Mapping[str, np.ndarray]) -> None:
    """Fold constants, drop the shapes of the example, and take out the weights."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(
        path.read_bytes(),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["MatMulAddFusion"],  # a later pass fuses these for int8
    )
    model = onnx.load(path)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")  # after an LSTM it is that of the example
    del model.graph.value_info[:]
    take_out(model.graph, state)
    path.write_bytes(model.SerializeToString())
