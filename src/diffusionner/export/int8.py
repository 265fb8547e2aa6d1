"""int8 quantisation with ranges that are fixed when a model is exported.

ONNX Runtime's dynamic quantisation takes the range of a matrix product's input from the current
batch, so an entity may depend on the other sentences. Here ranges come from a sample of sentences:
a sentence gives the same result alone and in any batch, and no time is spent on finding ranges.
rounding.py chooses the steps. LSTM and attention scores stay in float32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from diffusionner.batching import EncodedCorpus
from diffusionner.corpus import Sentence
from diffusionner.diffusion import AUTO, gaussian_noise, mix_keys, span_slots
from diffusionner.export.rounding import InputSample, InputSteps, choose_steps, round_weights
from diffusionner.inference.onnx_engine import OnnxEngine, best_spans, encoder_inputs
from diffusionner.inference.pipeline import DiffusionNER
from diffusionner.storage.config import DENOISER_FILE, ENCODER_FILE

Feed: TypeAlias = dict[str, Any]  # a graph's inputs by name
SAMPLE = 256  # sentences that ranges are taken from
MIN_COLUMNS = 16  # narrower products are faster in float32
MIN_TABLE = 65_536  # size of an embedding table that is worth rounding


def quantise(folder: Path, sentences: Sequence[Sentence]) -> None:
    """Rewrite the float32 graphs of a folder. sentences: a sample of typical input."""
    ner = DiffusionNER.from_pretrained(folder, backend="onnx")
    sample = sentences[:: -(-len(sentences) // SAMPLE) or 1]
    corpus = EncodedCorpus(sample, ner.subwords, ner.settings.encoder)
    batches = corpus.sorted_batches(8, range(len(sample)))
    assert isinstance(ner.engine, OnnxEngine)
    labels = ner.engine.groups[0]
    feeds = [encoder_inputs(corpus.batch(chosen)) | labels for chosen in batches]
    _rewrite(folder / ENCODER_FILE, feeds)
    _rewrite(folder / DENOISER_FILE, _denoiser_feeds(ner, feeds))


def _denoiser_feeds(ner: DiffusionNER, encoder_feeds: Iterable[Feed]) -> Iterator[Feed]:
    """Yield noisy spans at the start, in the middle and at the end of the reverse process."""
    engine = ner.engine
    assert isinstance(engine, OnnxEngine)
    for feed in encoder_feeds:
        sentence = engine.encoder.run(feed)
        slots = span_slots(feed["lengths"], AUTO, "noise")
        most = slots.shape[1]
        noisy_spans = [
            (t, gaussian_noise(mix_keys(feed["keys"], int(t)), 1, most, 2))
            for t in np.linspace(1, engine.schedule.timesteps, 3, dtype=np.int64)
        ]
        if "initial" in sentence:
            spans, _ = best_spans(sentence["initial"], most)
            x = engine.coordinates.encode(spans[:, None], feed["lengths"][:, None])
            noisy_spans.append((np.int64(engine.schedule.candidate_start), x))
        for t, x in noisy_spans:
            step = {"x": x, "t": np.asarray(t), "slots": slots}
            yield {**sentence, "lengths": feed["lengths"], **step}


def _rewrite(path: Path, feeds: Iterable[Feed]) -> None:
    import onnx

    model = onnx.load(path)
    graph = model.graph
    rewriter = _Rewriter(graph)
    matrices = {name: array for name, array in rewriter.arrays.items() if array.ndim == 2}
    wide = {name for name, matrix in matrices.items() if matrix.shape[1] >= MIN_COLUMNS}
    products = [node for node in graph.node if node.op_type == "MatMul" and node.input[1] in wide]
    weights_of: dict[str, list[np.ndarray]] = {}  # by the input they are multiplied with
    for node in products:
        weights_of.setdefault(node.input[0], []).append(rewriter.arrays[node.input[1]])
    sizes = {name: len(weights[0]) for name, weights in weights_of.items()}
    for name, inputs in _sample_inputs(model, sizes, feeds).items():
        rewriter.steps[name] = choose_steps(inputs, np.concatenate(weights_of[name], 1))
    for node in products:
        rewriter.quantise_product(node)
    large = {name for name, matrix in matrices.items() if matrix.size >= MIN_TABLE}
    for node in graph.node:
        if node.op_type == "Gather" and node.input[0] in large:
            rewriter.quantise_table(node)
    rewriter.finish()
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path)


def _sample_inputs(
    model: Any, sizes: Mapping[str, int], feeds: Iterable[Feed]
) -> dict[str, InputSample]:
    """Sample the values of tensors. sizes: number of channels of each."""
    import onnx
    import onnxruntime

    ordered = sorted(sizes)
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    del watched.graph.output[:]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ordered)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        watched.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    samples = {name: InputSample(sizes[name]) for name in ordered}
    for feed in feeds:
        found = session.run(ordered, {one.name: feed[one.name] for one in session.get_inputs()})
        for name, tensor in zip(ordered, found, strict=True):
            samples[name].add(tensor)
    return samples


class _Rewriter:
    """Replaces nodes of a graph; each new node takes the place of the first one it replaces."""

    def __init__(self, graph: Any) -> None:
        from onnx import numpy_helper

        self.graph = graph
        self.arrays = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
        self.added: dict[str, np.ndarray] = {}
        self.replaced: dict[str, list[Any]] = {}  # by the old node's output
        self.dropped: set[str] = set()
        self.readers = {name: node for node in graph.node for name in node.input}
        self.reads = Counter(name for node in graph.node for name in node.input)
        self.reads.update(one.name for one in graph.output)
        self.rounded: set[str] = set()  # inputs
        self.steps: dict[str, InputSteps] = {}

    def add(self, name: str, array: Any) -> str:
        self.added[name] = np.asarray(array)
        return name

    def quantise_product(self, node: Any) -> None:
        """Replace a MatMul and the bias Add after it."""
        from onnx import helper

        source, weight = node.input
        # Factors differ between inputs.
        rounded, of_column = f"{source}_{weight}_int8", f"{source}_{weight}_scale"
        if rounded not in self.added:
            matrix = self.arrays[weight] * self.steps[source].factors[:, None]
            for name, array in zip((rounded, of_column), round_weights(matrix), strict=True):
                self.add(name, array)
        output, bias = node.output[0], self._bias(node.output[0])
        nodes = [] if source in self.rounded else self._quantise_input(source)
        scale, zero = f"{source}_scale", f"{source}_zero"
        inputs = [f"{source}_uint8", rounded, scale, of_column, zero, ""]
        result = output
        if bias is not None:
            inputs.append(bias)
            result = self.readers[output].output[0]
            self.dropped.add(result)
        product = helper.make_node("MatMulIntegerToFloat", inputs, [result], domain="com.microsoft")
        self.replaced[output] = [*nodes, product]

    def _quantise_input(self, name: str) -> list[Any]:
        from onnx import helper

        self.rounded.add(name)
        steps = self.steps[name]
        scale = self.add(f"{name}_scale", np.float32(steps.step))
        zero = self.add(f"{name}_zero", np.uint8(steps.zero))
        nodes, evened = [], name
        if (steps.factors != 1).any():
            evened = f"{name}_even"
            inverse = self.add(f"{name}_factors", 1 / steps.factors)
            nodes.append(helper.make_node("Mul", [name, inverse], [evened]))
        target = [f"{name}_uint8"]
        return [*nodes, helper.make_node("QuantizeLinear", [evened, scale, zero], target)]

    def _bias(self, output: str) -> str | None:
        """Return the bias that is added to a product whose only reader is that Add."""
        reader = self.readers.get(output)
        if reader is None or self.reads[output] != 1 or reader.op_type != "Add":
            return None
        (other,) = [name for name in reader.input if name != output] or [""]
        array = self.arrays.get(other)
        return other if array is not None and array.ndim == 1 else None

    def quantise_table(self, node: Any) -> None:
        """Replace an embedding table by int8 with one scale per row."""
        from onnx import helper

        table, index = node.input
        rounded, scales = f"{table}_int8", f"{table}_scale"
        if rounded not in self.added:
            rows = self.arrays[table]
            steps = np.maximum(np.abs(rows).max(1, keepdims=True), 1e-9) / 127
            self.add(rounded, np.rint(rows / steps).astype(np.int8))
            self.add(scales, steps.astype(np.float32))
        output = node.output[0]
        self.replaced[output] = [
            helper.make_node("Gather", [rounded, index], [f"{output}_int8"]),
            helper.make_node("Gather", [scales, index], [f"{output}_steps"]),
            helper.make_node("Cast", [f"{output}_int8"], [f"{output}_cast"], to=1),
            helper.make_node("Mul", [f"{output}_cast", f"{output}_steps"], [output]),
        ]

    def finish(self) -> None:
        from onnx import numpy_helper

        nodes: list[Any] = []
        for node in self.graph.node:
            if node.output[0] in self.replaced:
                nodes += self.replaced[node.output[0]]
            elif node.output[0] not in self.dropped:
                nodes.append(node)
        read = {name for node in nodes for name in node.input}
        kept = [one for one in self.graph.initializer if one.name in read]
        kept += [numpy_helper.from_array(array, name) for name, array in self.added.items()]
        del self.graph.node[:], self.graph.initializer[:]
        self.graph.node.extend(nodes)
        self.graph.initializer.extend(kept)
