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
from diffusionner.export.weights import reference, references, replace_initializers
from diffusionner.inference.onnx_engine import OnnxEngine, best_spans, encoder_inputs
from diffusionner.inference.onnx_graph import open_session
from diffusionner.inference.pipeline import DiffusionNER
from diffusionner.storage.config import GRAPHS, WEIGHTS
from diffusionner.storage.initializers import INPUTS, ROWS, SCALE, TRANSPOSED, Initializers

Feed: TypeAlias = dict[str, Any]  # a graph's inputs by name
SAMPLE = 256  # sentences that ranges are taken from
MIN_COLUMNS = 16  # narrower products are faster in float32
MIN_TABLE = 65_536  # size of an embedding table that is worth rounding


def quantise(folder: Path, sentences: Sequence[Sentence]) -> dict[str, np.ndarray]:
    """Rewrite the float32 graphs of a folder; return the int8 weights that they need.

    sentences: a sample of typical input.
    """
    ner = DiffusionNER.from_pretrained(folder, backend="onnx")
    chosen = sentences[:: -(-len(sentences) // SAMPLE) or 1]
    corpus = EncodedCorpus(chosen, ner.subwords, ner.settings.encoder)
    batches = corpus.sorted_batches(8, range(len(chosen)))
    assert isinstance(ner.engine, OnnxEngine)
    labels = ner.engine.groups[0]
    feeds = [encoder_inputs(corpus.batch(rows)) | labels for rows in batches]
    weights = Initializers(folder / WEIGHTS)
    rounded: dict[str, np.ndarray] = {}
    # All before the first graph is rewritten.
    encoded = [{**feed, **ner.engine.encoder.run(feed)} for feed in feeds]
    shared = [{**feed, **ner.engine.sentence.run(feed)} for feed in encoded]
    steps = _denoiser_feeds(ner.engine, shared)
    for name, sample in zip(GRAPHS, (feeds, encoded, steps), strict=True):
        _rewrite(folder / name, weights, sample, rounded)
    return rounded


def _denoiser_feeds(engine: OnnxEngine, shared: Iterable[Feed]) -> Iterator[Feed]:
    """Yield noisy spans at the start, in the middle and at the end of the reverse process."""
    for feed in shared:
        slots = span_slots(feed["lengths"], AUTO, "noise")
        most = slots.shape[1]
        noisy_spans = [
            (t, gaussian_noise(mix_keys(feed["keys"], int(t)), 1, most, 2))
            for t in np.linspace(1, engine.schedule.timesteps, 3, dtype=np.int64)
        ]
        if "initial" in feed:
            spans, _ = best_spans(feed["initial"], most)
            x = engine.coordinates.encode(spans[:, None], feed["lengths"][:, None])
            noisy_spans.append((np.int64(engine.schedule.candidate_start), x))
        for t, x in noisy_spans:
            step = {"x": x, "t": np.asarray(t), "slots": slots}
            yield {**feed, **step}


def _rewrite(
    path: Path,
    weights: Initializers,
    feeds: Iterable[Feed],
    rounded: dict[str, np.ndarray],
) -> None:
    """Rewrite a graph. rounded: tensors of model.safetensors in int8, which this adds to."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    rewriter = _Rewriter(model.graph, weights, rounded)
    sizes = {name: len(matrices[0]) for name, matrices in rewriter.read_by_products().items()}
    for name, inputs in _sample_inputs(model, weights, sizes, feeds).items():
        rewriter.choose_steps(name, inputs)
    rewriter.finish()
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    path.write_bytes(model.SerializeToString())


def _sample_inputs(
    model: Any, weights: Initializers, sizes: Mapping[str, int], feeds: Iterable[Feed]
) -> dict[str, InputSample]:
    """Sample the values of tensors. sizes: number of channels of each."""
    import onnx

    ordered = sorted(sizes)
    if not ordered:  # of a graph without matrices that are worth rounding
        return {}
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    del watched.graph.output[:]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ordered)
    types = references(watched.graph)
    session = open_session(watched.SerializeToString(), weights, types)
    samples = {name: InputSample(sizes[name]) for name in ordered}
    for feed in feeds:
        found = session.run(ordered, {one.name: feed[one.name] for one in session.get_inputs()})
        for name, tensor in zip(ordered, found, strict=True):
            samples[name].add(tensor)
    return samples


class _Rewriter:
    """Replaces nodes of a graph; each new node takes the place of the first one it replaces.

    A matrix is rounded whole, even if a graph reads it in parts (`X.T@0:384`).
    """

    def __init__(
        self,
        graph: Any,
        weights: Initializers,
        rounded: dict[str, np.ndarray],
    ) -> None:
        from onnx import TensorProto

        self.graph = graph
        self.rounded = rounded
        self.kept = {one.name: one for one in graph.initializer}
        floats = (n for n, kind in references(graph).items() if kind == TensorProto.FLOAT)
        self.arrays = {name: weights.read(name) for name in floats}
        self.readers = {name: node for node in graph.node for name in node.input}
        self.reads = Counter(name for node in graph.node for name in node.input)
        self.reads.update(one.name for one in graph.output)
        self.steps: dict[str, InputSteps] = {}
        self.products = self._products()
        gathers = [node for node in graph.node if node.op_type == "Gather"]
        gathered = Counter(node.input[0] for node in gathers)
        self.tables = [
            node
            for node in gathers
            if node.input[0] in self.arrays
            and node.input[0] not in rounded
            and self.arrays[node.input[0]].size >= MIN_TABLE
            and gathered[node.input[0]] == self.reads[node.input[0]]  # others need float32
        ]

    def _products(self) -> dict[str, list[Any]]:
        """Return the products of each matrix that can be rounded, in the order of its rows."""
        products: dict[str, list[Any]] = {}
        for node in self.graph.node:
            matrix = self.arrays.get(node.input[1]) if node.op_type == "MatMul" else None
            if matrix is not None and matrix.ndim == 2 and matrix.shape[1] >= MIN_COLUMNS:
                products.setdefault(_tensor_of(node.input[1]), []).append(node)
        chosen = {}
        for name, nodes in products.items():
            nodes.sort(key=lambda node: _first_row(node.input[1]))
            parts = [node.input[1] for node in nodes]
            alone = len(set(parts)) == len(parts) and all(self.reads[part] == 1 for part in parts)
            whole = parts == [name + TRANSPOSED] or len(parts) == 2
            if alone and whole and name not in self.rounded:
                chosen[name] = nodes
        return chosen

    def read_by_products(self) -> dict[str, list[np.ndarray]]:
        """Return the matrices that each tensor is multiplied with."""
        matrices: dict[str, list[np.ndarray]] = {}
        for nodes in self.products.values():
            for node in nodes:
                matrices.setdefault(node.input[0], []).append(self.arrays[node.input[1]])
        return matrices

    def choose_steps(self, name: str, inputs: InputSample) -> None:
        matrices = self.read_by_products()[name]
        self.steps[name] = choose_steps(inputs, np.concatenate(matrices, 1))

    def finish(self) -> None:
        """Replace products and tables by those of integers."""
        replaced: dict[str, list[Any]] = {}  # by the old node's output
        dropped: set[str] = set()
        for tensor, products in self.products.items():
            self._round(tensor, products)
        by_output = {
            node.output[0]: name for name, nodes in self.products.items() for node in nodes
        }
        ready: set[str] = set()  # rounded inputs
        for node in self.graph.node:
            if node.output[0] in by_output:
                tensor = by_output[node.output[0]]
                replaced[node.output[0]] = self._product(node, tensor, ready, dropped)
        for node in self.tables:
            replaced[node.output[0]] = self._table(node)
        nodes: list[Any] = []
        for node in self.graph.node:
            if node.output[0] in replaced:
                nodes += replaced[node.output[0]]
            elif node.output[0] not in dropped:
                nodes.append(node)
        read = {name for node in nodes for name in node.input}
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        replace_initializers(self.graph, {n: one for n, one in self.kept.items() if n in read})

    def _round(self, tensor: str, products: Sequence[Any]) -> None:
        """Round a matrix [K, N], whose parts are multiplied with inputs of their own."""
        factors = np.concatenate([self.steps[node.input[0]].factors for node in products])
        matrix = np.concatenate([self.arrays[node.input[1]] for node in products])
        integers, steps = round_weights(matrix * factors[:, None])
        self.rounded[tensor] = np.ascontiguousarray(integers.T)
        self.rounded[tensor + SCALE] = steps
        self._refer(tensor + SCALE, steps)
        if (factors != 1).any():
            self.rounded[tensor + INPUTS] = (1 / factors).astype(np.float32)

    def _product(self, node: Any, tensor: str, ready: set[str], dropped: set[str]) -> list[Any]:
        """Return the nodes for a MatMul and the bias Add after it."""
        from onnx import helper

        source, weight = node.input
        nodes = []
        if source not in ready:
            ready.add(source)
            nodes = self._quantise_input(source, tensor, weight)
        self._refer(weight, self.arrays[weight].astype(np.int8))
        result, bias = node.output[0], self._bias(node.output[0])
        inputs = [
            f"{source}_uint8",
            weight,
            f"{source}_scale",
            tensor + SCALE,
            f"{source}_zero",
            "",
        ]
        if bias is not None:
            inputs.append(bias)
            result = self.readers[result].output[0]
            dropped.add(result)
        product = helper.make_node("MatMulIntegerToFloat", inputs, [result], domain="com.microsoft")
        return [*nodes, product]

    def _quantise_input(self, name: str, tensor: str, weight: str) -> list[Any]:
        from onnx import helper, numpy_helper

        steps = self.steps[name]
        scale, zero = f"{name}_scale", f"{name}_zero"
        self.kept[scale] = numpy_helper.from_array(np.float32(steps.step), scale)
        self.kept[zero] = numpy_helper.from_array(np.uint8(steps.zero), zero)
        nodes, evened = [], name
        if (steps.factors != 1).any():
            evened = f"{name}_even"
            rows = weight.partition(ROWS)[2]
            inverse = tensor + INPUTS + (ROWS + rows if rows else "")
            self._refer(inverse, steps.factors.astype(np.float32))
            nodes.append(helper.make_node("Mul", [name, inverse], [evened]))
        target = [f"{name}_uint8"]
        return [*nodes, helper.make_node("QuantizeLinear", [evened, scale, zero], target)]

    def _bias(self, output: str) -> str | None:
        """Return the bias that is added to a product whose only reader is that Add."""
        reader = self.readers.get(output)
        if reader is None or self.reads[output] != 1 or reader.op_type != "Add":
            return None
        (other,) = [name for name in reader.input if name != output] or [""]
        initializer = self.kept.get(other)
        return other if initializer is not None and len(initializer.dims) == 1 else None

    def _table(self, node: Any) -> list[Any]:
        """Return the nodes that look up rows of an embedding table in int8."""
        from onnx import helper, numpy_helper

        table, index = node.input
        if table not in self.rounded:
            rows = self.arrays[table]
            steps = np.maximum(np.abs(rows).max(1), 1e-9) / 127
            self.rounded[table] = np.rint(rows / steps[:, None]).astype(np.int8)
            self.rounded[table + SCALE] = steps.astype(np.float32)
            self._refer(table, self.rounded[table])
            self._refer(table + SCALE, self.rounded[table + SCALE])
        output, axis = node.output[0], "last_axis"
        self.kept[axis] = numpy_helper.from_array(np.array([-1]), axis)
        return [
            helper.make_node("Gather", [table, index], [f"{output}_int8"]),
            helper.make_node("Gather", [table + SCALE, index], [f"{output}_step"]),
            helper.make_node("Unsqueeze", [f"{output}_step", axis], [f"{output}_steps"]),
            helper.make_node("Cast", [f"{output}_int8"], [f"{output}_cast"], to=1),
            helper.make_node("Mul", [f"{output}_cast", f"{output}_steps"], [output]),
        ]

    def _refer(self, name: str, array: np.ndarray) -> None:
        self.kept[name] = reference(name, array)


def _tensor_of(weight: str) -> str:
    """Return the tensor of model.safetensors that a weight is, or is a part of."""
    return weight.partition(ROWS)[0].removesuffix(TRANSPOSED)


def _first_row(weight: str) -> int:
    return int(weight.partition(ROWS)[2].partition(":")[0] or 0)
