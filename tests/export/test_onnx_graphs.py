"""The exported graphs equal the network, in float32 and nearly in int8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from exports import arrays_in, graph_in, own_dev, with_graphs_of

from diffusionner import DiffusionNER
from diffusionner import export as exporting
from diffusionner.batching import EncodedCorpus
from diffusionner.corpus import Sentence
from diffusionner.diffusion import gaussian_noise
from diffusionner.export import export
from diffusionner.export.graphs import (
    INPUTS,
    OUTPUTS,
    DenoiserGraph,
    EncoderGraph,
    SentenceGraph,
    for_graphs,
)  # fmt: skip
from diffusionner.inference.onnx_engine import encoder_inputs
from diffusionner.model.decoder import read_out
from diffusionner.storage.config import GRAPHS, WEIGHTS
from models import assert_same, lively_model

# float32


@pytest.mark.parametrize(
    "changes",
    [
        ("encoder.pooling=max", "encoder.lstm_layers=2", "encoder.hidden_size=20"),
        ("encoder.pooling=mean", "decoder.cross_attention=false", "decoder.layers=2"),
        ("encoder.pooling=first", "decoder.self_attention=false", "decoder.layers=3"),
        ("decoder.layers=0", "encoder.lstm_layers=0", "decoder.span_pooling=mean"),
        ("encoder.character_filters=0", "diffusion.coordinates=left-width"),
        ("encoder.max_subwords=30", "diffusion.schedule=linear", "diffusion.scale=0.5"),
        ("decoder.initializer=spans", "decoder.layers=2"),
        ("decoder.initializer=spans", "decoder.layers=0"),
        ("decoder.initializer=types", "decoder.offset_window=3"),
    ],
    ids=" ".join,
)
def test_graphs_equal_the_network(encoder_folder, sentences, changes):
    ner = lively_model(encoder_folder, *changes)
    corpus = EncodedCorpus(
        [Sentence(words) for words in sentences], ner.subwords, ner.settings.encoder
    )
    batch = corpus.batch(np.arange(len(corpus))).map(torch.from_numpy)
    network = ner.network
    x = torch.from_numpy(gaussian_noise(batch.keys, 1, 9, 2))
    slots = torch.arange(9) < torch.arange(1, len(corpus) + 1)[:, None] % 9 + 1
    with torch.no_grad():
        sentence = network.prepare(batch)
        x0, prediction = network.denoise(sentence, x, 40, slots)
        recorded = for_graphs(network)
        states, *scores = EncoderGraph(recorded)(*(getattr(batch, name) for name in INPUTS))
        shared = SentenceGraph(recorded)(batch.lengths, states)
        step = (batch.lengths, x, torch.tensor(40), slots, *shared[:4])
        found_x0, *found = DenoiserGraph(recorded)(*step, *scores, *shared[4:])
    assert torch.allclose(shared[0], sentence.starts, atol=1e-5)
    if sentence.initial is not None:
        assert torch.allclose(scores[0], sentence.initial.spans, atol=1e-4)
    expected = read_out(prediction, slots, sentence.initial)
    assert expected.is_entity.any() and not expected.is_entity[:, 0][~slots].any()
    for name, values in zip(OUTPUTS, found, strict=True):
        assert torch.allclose(values.double(), getattr(expected, name).double(), atol=1e-4), name
    assert torch.equal(found_x0, x0)


def test_graphs_have_no_weights_of_their_own(exported, int8):
    for folder in (exported, int8):
        for name in GRAPHS:
            inside = [one for one in graph_in(folder / name).initializer if not one.external_data]
            assert sum(np.prod(one.dims, dtype=int) for one in inside) < 3000
            assert (folder / name).stat().st_size < 200_000


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_both_backends_read_one_folder(exported, int8, sentences, precision):
    folder = exported if precision == "float32" else int8
    onnx_model = DiffusionNER.from_pretrained(folder)
    torch_model = DiffusionNER.from_pretrained(folder, backend="torch")
    assert not hasattr(onnx_model.engine, "network") and torch_model.network is not None
    corpus = EncodedCorpus(
        [Sentence(words) for words in sentences], torch_model.subwords, torch_model.settings.encoder
    )
    batch = corpus.batch(np.arange(len(corpus)))
    with torch.no_grad():
        expected = torch_model.network.encode(batch.map(torch.from_numpy)).states.numpy()
    found = onnx_model.engine.encoder.run(encoder_inputs(batch))["states"]
    apart = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert apart < (1e-5 if precision == "float32" else 0.05)
    if precision == "float32":
        assert_same(onnx_model.predict_tokens(sentences), torch_model.predict_tokens(sentences))


# int8


@pytest.fixture(scope="module")
def int8(
    rich: DiffusionNER,
    exported: Path,
    sentences: list[list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """F1 of random weights does not survive int8, so any change of it is allowed here."""
    folder = tmp_path_factory.mktemp("int8") / "exported"
    with pytest.MonkeyPatch.context() as patch:
        with_graphs_of(exported, patch)
        patch.setitem(exporting.LIMITS, "int8", 100)
        stages: list[str] = []
        done = export(rich, folder, own_dev(rich, sentences), "int8", stages.append)
    assert done.before == 100
    assert stages[1:] == ["rounding the weights to int8", "comparing on dev"]
    return folder


def test_int8_is_smaller(int8, exported):
    assert {path.name for path in int8.iterdir()} == {path.name for path in exported.iterdir()}
    assert (int8 / WEIGHTS).stat().st_size < 0.6 * (exported / WEIGHTS).stat().st_size
    for name in GRAPHS:
        before, after = (graph_in(path / name) for path in (exported, int8))
        products = sum(node.op_type == "MatMulIntegerToFloat" for node in after.node)
        assert products > 5
        left = sum(node.op_type == "MatMul" for node in after.node)
        assert left + products == sum(node.op_type == "MatMul" for node in before.node)
        kinds = {one.data_type for one in after.initializer}
        assert onnx.TensorProto.INT8 in kinds
        assert not {"DynamicQuantizeLinear"} & {node.op_type for node in after.node}


def test_int8_states_are_close(int8, rich, sentences):
    """The encoder alone: the amplified decoder would magnify small differences."""
    corpus = EncodedCorpus(
        [Sentence(words) for words in sentences], rich.subwords, rich.settings.encoder
    )
    batch = corpus.batch(np.arange(len(corpus)))
    with torch.no_grad():
        expected = rich.network.encode(batch.map(torch.from_numpy)).states
    engine = DiffusionNER.from_pretrained(int8).engine
    found = engine.encoder.run(encoder_inputs(batch))["states"]
    apart = np.linalg.norm(found - expected.numpy()) / np.linalg.norm(expected.numpy())
    assert 1e-4 < apart < 0.05


def test_int8_weights_leave_room_for_sums(int8):
    """Two products of a byte and a weight fit into 16 bits: not all CPUs have wider sums."""
    for name in GRAPHS:
        arrays = arrays_in(int8 / name)
        for node in graph_in(int8 / name).node:
            if node.op_type == "MatMulIntegerToFloat":
                weights = arrays[node.input[1]].astype(int)
                for part in (weights.clip(0), weights.clip(max=0)):
                    sums = np.add.reduceat(part, np.arange(0, len(part), 2))
                    assert 255 * np.abs(sums).max() < 2**15


def test_int8_factors_cancel(int8, exported):
    """Rows of the weights are multiplied by the factors that channels are divided by."""
    divided = 0
    for name in GRAPHS:
        after = graph_in(int8 / name)
        arrays, rounded = (arrays_in(folder / name) for folder in (exported, int8))
        factors = {
            f"{node.input[0]}_uint8": 1 / rounded[node.input[1]]
            for node in after.node
            if node.output[0].endswith("_even")
        }
        for node in after.node:
            if node.op_type == "MatMulIntegerToFloat" and node.input[0] in factors:
                divided += 1
                integers, steps = rounded[node.input[1]], rounded[node.input[3]]
                wanted = arrays[node.input[1]] * factors[node.input[0]][:, None]
                assert np.abs(integers * steps - wanted).max() < 0.51 * steps.max()
    assert divided > 3


def test_int8_states_do_not_depend_on_the_batch(int8, rich, sentences):
    engine = DiffusionNER.from_pretrained(int8).engine
    corpus = EncodedCorpus(
        [Sentence(words) for words in sentences], rich.subwords, rich.settings.encoder
    )
    together = engine.encoder.run(encoder_inputs(corpus.batch(np.arange(len(corpus)))))
    for window, words in enumerate(corpus.windows.words):
        alone = engine.encoder.run(encoder_inputs(corpus.batch(np.array([window]))))
        found, expected = together["states"][window, :words], alone["states"][0]
        # A sum in another order may round to another integer.
        assert np.abs(found - expected).mean() < 1e-3 * np.abs(expected).mean()


@pytest.mark.parametrize("number", ["auto", 30])
def test_int8_entities_do_not_depend_on_the_batch(int8, sentences, docs, number):
    ner = DiffusionNER.from_pretrained(int8)
    expected = ner.predict_tokens(sentences, docs, spans=number)
    for size in (1, 3, 100):
        again = ner.predict_tokens(sentences, docs, spans=number, batch_size=size)
        assert_same(again, expected)


def test_int8_predicts(int8, sentences):
    ner = DiffusionNER.from_pretrained(int8)
    found = ner.predict_tokens(sentences)
    assert sum(map(len, found)) > 20
    assert found == ner.predict_tokens(sentences)
    for words, entities in zip(sentences, found, strict=True):
        assert all(0 <= e.start < e.end <= len(words) and 0 <= e.score <= 1 for e in entities)
