"""Exported models: what torch finds, without torch."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import put
from models import LABELS, assert_same, lively_model
from typer.testing import CliRunner

from diffusionner import DiffusionNER, Entity, formats
from diffusionner import export as exporting
from diffusionner.batching import Batch, EncodedCorpus
from diffusionner.cli import app
from diffusionner.corpus import Sentence
from diffusionner.diffusion import gaussian_noise
from diffusionner.errors import CheckpointError, DiffusionNERError, SettingsError, WriteError
from diffusionner.export import ExportError, export
from diffusionner.inference.onnx_engine import OnnxEngine
from diffusionner.inference.torch_engine import read_out
from diffusionner.model.tensors import to_tensors
from diffusionner.model_folder import DENOISER_FILE, ENCODER_FILE

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

GRAPHS = (ENCODER_FILE, DENOISER_FILE)
TEXTS = [
    "Ada Lovelace met Charles Babbage in London. They spoke of engines! Did they?",
    "",
    "Zoe\u0308 went to 北京 👍🏽, on the 4th.\r\n\r\nNobody saw her.",
    "Rome",
]


# --- The exports, each of which takes seconds -------------------------------------------------


@pytest.fixture(scope="module")
def sentences(nested_sentences: list[Sentence]) -> list[list[str]]:
    """One word, usual ones, and more than the encoder reads at a time; no size is the example's."""
    words = [word for s in nested_sentences for word in s.words]
    return [["Ada"], ["x" * 60, "left"], *(s.words for s in nested_sentences[:9]), words[:120]]


@pytest.fixture(scope="module")
def docs(sentences: list[list[str]]) -> list[str]:
    return [f"doc {i // 4}" for i in range(len(sentences))]


def own_dev(ner: DiffusionNER, sentences: list[list[str]]) -> list[Sentence]:
    """Gold is what the model finds: its F1 is 100, and less for anything that differs."""
    plain = [Sentence(words) for words in sentences]
    found = ner.predict_sentences(plain)
    assert sum(map(len, found)) > 15
    return [Sentence(s.words, entities) for s, entities in zip(plain, found, strict=True)]


@pytest.fixture(scope="module")
def rich(encoder_folder: Path) -> DiffusionNER:
    """All that a model can have."""
    return lively_model(
        encoder_folder,
        "encoder.context=2",
        "diffusion.coordinates=left-width",
        "inference.spans=auto",
    )


@pytest.fixture(scope="module")
def plain(encoder_folder: Path) -> DiffusionNER:
    """All that a model can be without."""
    return lively_model(
        encoder_folder,
        "encoder.pooling=mean",
        "encoder.lstm_layers=0",
        "encoder.character_filters=0",
        "decoder.span_pooling=mean",
        "decoder.self_attention=false",
        "decoder.cross_attention=false",
        "diffusion.schedule=linear",
        "diffusion.scale=2",
    )


@pytest.fixture(scope="module")
def project(
    rich: DiffusionNER, sentences: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with a model, a corpus, and what `diffusionner export` made of them."""
    folder = tmp_path_factory.mktemp("project")
    rich.save_pretrained(folder / "model")
    records = [
        {"tokens": s.words, "entities": [span._asdict() for span in s.entities]}
        for s in own_dev(rich, sentences)
    ]
    put(folder, {"dev.jsonl": "".join(json.dumps(record) + "\n" for record in records)})
    arguments = [folder / "exported", "--model", folder / "model", "--dev", folder / "dev.jsonl"]
    done = CliRunner().invoke(app, ["export", *map(str, arguments)], env={"COLUMNS": "500"})
    assert done.exit_code == 0, done.output
    assert done.stdout.count("\n") == 1
    assert "exported: " in done.stdout and " MB; F1 on " in done.stdout
    assert "dev.jsonl: 100.00 before, 100.00 after" in done.stdout
    return folder


@pytest.fixture(scope="module")
def exported(project: Path) -> Path:
    return project / "exported"


@pytest.fixture(scope="module")
def rich_pair(rich: DiffusionNER, exported: Path) -> tuple[DiffusionNER, DiffusionNER]:
    return rich, DiffusionNER.from_pretrained(exported)


@pytest.fixture(scope="module")
def plain_pair(
    plain: DiffusionNER, sentences: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[DiffusionNER, DiffusionNER]:
    folder = tmp_path_factory.mktemp("plain") / "new" / "exported"
    stages: list[str] = []
    done = export(plain, folder, own_dev(plain, sentences), progress=stages.append)
    assert done.before == done.after == 100
    assert done.size == sum((folder / name).stat().st_size for name in GRAPHS)
    assert stages == ["recording the graphs", "comparing on dev"]
    return plain, DiffusionNER.from_pretrained(folder)


@pytest.fixture(params=["rich", "plain"])
def pair(request) -> tuple[DiffusionNER, DiffusionNER]:
    """A model and its export."""
    return request.getfixturevalue(f"{request.param}_pair")


@pytest.fixture
def ner(rich_pair) -> DiffusionNER:
    """An exported model."""
    return rich_pair[1]


@pytest.fixture
def recorded(monkeypatch, exported: Path) -> None:
    """The graphs of `rich` are already there: to export it again takes no time."""

    def copy(ner: DiffusionNER, folder: Path) -> None:
        for name in GRAPHS:
            shutil.copy(exported / name, folder)

    monkeypatch.setattr(exporting, "_write_graphs", copy)


# --- The same entities ------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["auto", 1, 7, 40])
@pytest.mark.parametrize("eta", [0.0, 0.5])
@pytest.mark.parametrize("steps", [1, 5])
def test_the_same_entities(pair, sentences, docs, steps, eta, number):
    options = {"steps": steps, "eta": eta, "spans": number}
    expected, found = (model.predict_tokens(sentences, docs, **options) for model in pair)
    assert sum(map(len, expected)) > 3
    assert_same(found, expected)


@pytest.mark.parametrize("chosen", [slice(1), slice(3), slice(None)])
def test_every_span_becomes_the_same(pair, sentences, chosen):
    """Also those that are no entities."""
    model, ner = pair
    corpus = EncodedCorpus([Sentence(w) for w in sentences], ner.subwords, ner.settings.encoder)
    batch = corpus.batch(np.arange(len(corpus))[chosen])
    slots = np.arange(23) < 1 + np.arange(len(batch.lengths))[:, None] * 5 % 23
    inference = ner.settings.with_inference({"steps": 5, "eta": 0.5}).inference
    expected, found = (one.engine.reverse(batch, inference, slots) for one in (model, ner))
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert np.array_equal(found[slots][:, :3], expected[slots][:, :3])
    assert np.allclose(found[slots], expected[slots], atol=1e-4)
    assert (found[~slots][:, 3] == -1).all()


def test_the_same_from_given_spans(pair, sentences, docs):
    given = [[(i, i + 1) for i in range(min(number, len(w)))] for number, w in enumerate(sentences)]
    for options in ({}, {"steps": 5, "start": 60}, {"steps": 5, "eta": 0.5}, {"batch_size": 2}):
        expected, found = (
            model.predict_tokens(sentences, docs, from_spans=given, **options) for model in pair
        )
        assert any(expected) and not expected[0]
        assert_same(found, expected)


def test_the_same_in_texts(pair):
    expected, found = (list(model.pipe(TEXTS)) for model in pair)
    assert found[1] == [] and all(found[::2])
    assert_same(found, expected)
    for text, entities in zip(TEXTS, found, strict=True):
        assert all(text[e.start : e.end] == e.text for e in entities)
        assert all(type(e.start) is type(e.end) is int and type(e.score) is float for e in entities)


def test_the_same_for_other_options(pair, sentences):
    for options in ({"seed": 3}, {"threshold": 2.0}, {"overlap": "flat"}, {"overlap": "nested"}):
        expected, found = (model.predict_tokens(sentences, **options) for model in pair)
        assert_same(found, expected)
    corpus = [Sentence(words) for words in sentences]
    expected, found = (model.predict_sentences(corpus) for model in pair)
    assert found == expected


@pytest.mark.parametrize("number", ["auto", 30])
def test_any_batch_and_order_give_the_same(pair, sentences, docs, number):
    _, ner = pair
    expected = ner.predict_tokens(sentences, docs, spans=number)
    for size in (1, 3, 100):
        again = ner.predict_tokens(sentences, docs, spans=number, batch_size=size)
        assert_same(again, expected)
    alone = [ner.predict_tokens([words], spans=number)[0] for words in sentences]
    order = np.random.default_rng(0).permutation(len(sentences)).tolist()
    shuffled = ner.predict_tokens([sentences[i] for i in order], spans=number, batch_size=4)
    assert_same(shuffled, [alone[i] for i in order])


def test_attributes(rich_pair):
    torch_ner, ner = rich_pair
    assert isinstance(ner.engine, OnnxEngine)
    assert ner.labels == LABELS
    assert ner.settings == torch_ner.settings
    assert replace(ner.subwords, backend=None) == replace(torch_ner.subwords, backend=None, hf=None)


# --- The graphs are the network ---------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        ("encoder.pooling=max", "encoder.lstm_layers=2", "encoder.hidden_size=20"),
        ("encoder.pooling=mean", "decoder.cross_attention=false", "decoder.layers=2"),
        ("encoder.pooling=first", "decoder.self_attention=false", "decoder.layers=3"),
        ("decoder.layers=0", "encoder.lstm_layers=0", "decoder.span_pooling=mean"),
        ("encoder.character_filters=0", "diffusion.coordinates=left-width"),
        ("encoder.max_subwords=30", "diffusion.schedule=linear", "diffusion.scale=0.5"),
    ],
    ids=lambda changes: changes[0],
)
def test_graphs_are_the_network(encoder_folder, sentences, changes):
    ner = lively_model(encoder_folder, *changes)
    corpus = EncodedCorpus(
        [Sentence(words) for words in sentences], ner.subwords, ner.settings.encoder
    )
    batch = to_tensors(corpus.batch(np.arange(len(corpus))), torch.device("cpu"))
    network = ner.network
    x = torch.from_numpy(gaussian_noise(batch.keys, 1, 9, 2))
    slots = torch.arange(9) < torch.arange(1, len(corpus) + 1)[:, None] % 9 + 1
    with torch.no_grad():
        sentence = network.encode(batch)
        steps = torch.full((len(corpus), 1), 40)
        prediction = network.denoise(sentence, x, steps, slots)
        values = exporting._EncoderGraph(network)(*inputs_of(batch))
        step = (batch.lengths, x, torch.tensor(40), slots)
        x0, table = exporting._DenoiserGraph(network)(*step, *values)
    assert torch.allclose(values[0], sentence.starts, atol=1e-5)
    expected = read_out(prediction, slots)
    assert torch.equal(table[..., :3], expected[..., :3])
    assert torch.allclose(table, expected, atol=1e-4)
    assert (table[..., 3] >= 0).any() and (table[~slots][:, 3] == -1).all()
    left, right = prediction.left.argmax(-1), prediction.right.argmax(-1)
    kept = torch.stack([left, torch.maximum(left, right)], -1)
    assert torch.equal(x0, network.coordinates.encode(kept, batch.lengths[:, None]))


def inputs_of(batch: Batch[torch.Tensor]) -> list[torch.Tensor]:
    names = ("subwords", "attention", "word_of", "first", "lengths", "characters")
    return [getattr(batch, name) for name in names]


# --- int8 -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def int8(
    rich: DiffusionNER,
    exported: Path,
    sentences: list[list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Path]:
    """Random weights with as much noise as these do not survive it: the gate is held open."""
    folder = tmp_path_factory.mktemp("int8") / "exported"
    level = logging.getLogger().level
    with pytest.MonkeyPatch.context() as patch:
        recorded.__wrapped__(patch, exported)
        patch.setitem(exporting.LIMITS, "int8", 100)
        stages: list[str] = []
        done = export(rich, folder, own_dev(rich, sentences), "int8", stages.append)
    assert done.before == 100
    assert stages[1:] == ["rounding the weights to int8", "comparing on dev"]
    assert logging.getLogger().level == level
    return folder


def test_int8_is_smaller(int8, exported):
    assert {path.name for path in int8.iterdir()} == {path.name for path in exported.iterdir()}
    for name in GRAPHS:
        assert (int8 / name).stat().st_size < 0.9 * (exported / name).stat().st_size
        kinds = {one.data_type for one in onnx.load(int8 / name).graph.initializer}
        assert onnx.TensorProto.INT8 in kinds


def test_int8_states_are_close(int8, rich, sentences):
    """The encoder, before the amplified decoder makes leaps of small differences."""
    corpus = EncodedCorpus(
        [Sentence(words) for words in sentences], rich.subwords, rich.settings.encoder
    )
    batch = corpus.batch(np.arange(len(corpus)))
    with torch.no_grad():
        expected = rich.network.encode(to_tensors(batch, torch.device("cpu"))).starts
    engine = DiffusionNER.from_pretrained(int8).engine
    feed = {one.name: getattr(batch, one.name) for one in engine.encoder.get_inputs()}
    (found,) = engine.encoder.run(["starts"], feed)
    apart = np.linalg.norm(found - expected.numpy()) / np.linalg.norm(expected.numpy())
    assert 1e-4 < apart < 0.05


def test_int8_predicts(int8, sentences):
    ner = DiffusionNER.from_pretrained(int8)
    found = ner.predict_tokens(sentences)
    assert sum(map(len, found)) > 20
    assert found == ner.predict_tokens(sentences)
    for words, entities in zip(sentences, found, strict=True):
        assert all(0 <= e.start < e.end <= len(words) and 0 <= e.score <= 1 for e in entities)


# --- Without torch ----------------------------------------------------------------------------

BLOCK = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "accelerate", "safetensors"}:
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Nothing())
"""


def without_torch(folder: Path, program: str) -> str:
    """Run a program for which torch and its company are not installed: its output."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join(os.path.abspath(entry) for entry in entries if entry)
    done = subprocess.run(
        [sys.executable, "-c", BLOCK + program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_torch(project, ner, sentences):
    put(project, {"words.json": json.dumps(sentences)})
    program = """
import json
from diffusionner import DiffusionNER
ner = DiffusionNER.from_pretrained("exported")
words = json.load(open("words.json", encoding="utf-8"))
given = ner.predict_tokens(words, from_spans=[[(0, 1)]] * len(words))
print(json.dumps([ner.predict_tokens(words), list(ner.pipe(json.loads(input()))), given]))
"""
    program = program.replace("input()", repr(json.dumps(TEXTS)))
    tokens, texts, given = (
        [[Entity(*e) for e in entities] for entities in part]
        for part in json.loads(without_torch(project, program))
    )
    assert_same(tokens, ner.predict_tokens(sentences))
    assert_same(texts, list(ner.pipe(TEXTS)))
    assert_same(given, ner.predict_tokens(sentences, from_spans=[[(0, 1)]] * len(sentences)))


def test_the_command_line_without_torch(project, ner):
    program = """
from diffusionner.cli import main
import sys
text = "Ada Lovelace met Charles Babbage in London."
common = ["--model", "exported", "--spans", "9"]
for arguments in (
    ["predict", text, "--output", "predicted.jsonl", *common],
    ["evaluate", "--data", "dev.jsonl", "--json", "scores.json", "--model", "exported"],
):
    sys.argv = ["diffusionner", *arguments]
    try:
        main()
    except SystemExit as done:
        assert not done.code, done.code
assert "torch" not in sys.modules
"""
    without_torch(project, program)
    (record,) = map(json.loads, (project / "predicted.jsonl").read_text().splitlines())
    expected = ner("Ada Lovelace met Charles Babbage in London.", spans=9)
    assert expected
    assert_same([[Entity(**e) for e in record["entities"]]], [expected])
    assert json.loads((project / "scores.json").read_text())["micro"]["f1"] == 1


def test_a_torch_model_without_torch(project):
    """Not a traceback from the depths of an import."""
    program = """
from diffusionner import DiffusionNER
from diffusionner.errors import CheckpointError
for path in ("model", "nowhere"):
    try:
        DiffusionNER.from_pretrained(path)
    except CheckpointError as error:
        print(error)
"""
    first, second = without_torch(project, program).splitlines()
    assert "'model' is no exported model, and others need the package 'torch'" in first
    assert "'nowhere' is no exported model" in second


# --- The command line -------------------------------------------------------------------------


def test_predict(cli, project, exported):
    arguments = ("--spans", 9, "--steps", 3, "--output", "-")
    text = "Ada Lovelace met Charles Babbage in London."
    found, expected = (
        cli("predict", text, "--model", model, *arguments).records[0]["entities"]
        for model in (exported, project / "model")
    )
    assert expected
    assert_same([[Entity(**e) for e in found]], [[Entity(**e) for e in expected]])
    shown = cli("predict", text, "--model", exported, "--device", "cpu")
    assert shown.status == 0 and "Lovelace" in shown.out


def test_export_says_what_it_did(cli, recorded, project, tmp_path):
    arguments = ("--model", project / "model", "--dev", project / "dev.jsonl")
    result = cli("export", tmp_path / "a" / "new", *arguments, "--format", "jsonl")
    assert result.status == 0, result.err
    assert "100.00 before, 100.00 after" in result.out
    assert {path.name for path in (tmp_path / "a" / "new").iterdir()} == {
        "config.json", "tokenizer.json", *GRAPHS,
    }  # fmt: skip


def test_folders_are_the_same_each_time(recorded, rich, project, exported, tmp_path):
    export(rich, tmp_path / "again", formats.read(project / "dev.jsonl"))
    for path in exported.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


# --- The gate ---------------------------------------------------------------------------------


@pytest.fixture
def dev(project: Path) -> list[Sentence]:
    return formats.read(project / "dev.jsonl")


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_the_gate(recorded, monkeypatch, rich, dev, tmp_path, precision):
    monkeypatch.setitem(exporting.LIMITS, precision, -0.1)
    with pytest.raises(ExportError) as caught:
        export(rich, tmp_path / "new", dev, precision)
    message = str(caught.value)
    assert "F1 on dev is 100.00 with the model" in message
    assert f"{precision} graphs, more than -0.1 apart; nothing was written" in message
    assert list(tmp_path.iterdir()) == []


def test_a_dev_corpus_that_shows_nothing(recorded, rich, dev, tmp_path):
    bare = [replace(sentence, entities=[]) for sentence in dev]
    with pytest.raises(ExportError, match="F1 on dev is 0 with the model"):
        export(rich, tmp_path / "new", bare)
    assert list(tmp_path.iterdir()) == []


def test_int8_of_a_model_that_does_not_survive_it(recorded, rich, dev, tmp_path):
    with pytest.raises(ExportError, match=r"int8 graphs, more than 0\.5 apart"):
        export(rich, tmp_path / "new", dev, "int8")
    assert list(tmp_path.iterdir()) == []


def test_damaged_graphs_are_noticed(monkeypatch, rich, exported, dev, tmp_path, refused, project):
    def damaged(ner: DiffusionNER, folder: Path) -> None:
        shutil.copy(exported / ENCODER_FILE, folder)
        model = onnx.load(exported / DENOISER_FILE)
        for one in model.graph.initializer:
            if one.data_type == onnx.TensorProto.FLOAT and len(one.dims) == 2:
                array = onnx.numpy_helper.to_array(one)
                one.CopyFrom(onnx.numpy_helper.from_array(array[::-1].copy(), one.name))
        onnx.save(model, folder / DENOISER_FILE)

    monkeypatch.setattr(exporting, "_write_graphs", damaged)
    with pytest.raises(ExportError, match=r"100\.00 with the model and \d?\d\.\d\d with"):
        export(rich, tmp_path / "new", dev)
    assert list(tmp_path.iterdir()) == []
    arguments = ("--model", project / "model", "--dev", project / "dev.jsonl")
    assert "nothing was written" in refused("export", tmp_path / "new", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_crash_leaves_nothing(monkeypatch, rich, dev, tmp_path):
    def crash(ner: DiffusionNER, folder: Path) -> None:
        (folder / ENCODER_FILE).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "_write_graphs", crash)
    with pytest.raises(KeyboardInterrupt):
        export(rich, tmp_path / "new", dev)
    assert list(tmp_path.iterdir()) == []


# --- What is refused --------------------------------------------------------------------------


def never(*_: object) -> None:
    raise AssertionError("the graphs are recorded only when everything else is in order")


def test_what_is_there_is_not_overwritten(monkeypatch, rich, dev, tmp_path):
    monkeypatch.setattr(exporting, "_write_graphs", never)
    put(tmp_path / "here", {"mine.txt": "keep me"})
    with pytest.raises(WriteError, match=r"here exists already; .*another name"):
        export(rich, tmp_path / "here", dev)
    assert [path.name for path in tmp_path.rglob("*")] == ["here", "mine.txt"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"--precision": "int4"}, "unknown precision 'int4'; did you mean 'int8'?"),
        ({"--precision": "half"}, "unknown precision 'half'; choose one of: float32, int8"),
        ({"--model": "absent"}, "no model in"),
        ({"--model": "exported"}, "no torch module"),
        ({"--dev": "absent.jsonl"}, "absent.jsonl"),
        ({"--dev": "other.jsonl"}, "QQQ"),
        ({"OUT": "model"}, "exists already"),
    ],
    ids=lambda value: str(value),
)
def test_refused(refused, monkeypatch, project, options, message):
    monkeypatch.chdir(project)
    record = {"tokens": ["Ada"], "entities": [{"start": 0, "end": 1, "label": "QQQ"}]}
    put(project, {"other.jsonl": json.dumps(record) + "\n"})
    before = {path.name for path in project.iterdir()}
    chosen = {"OUT": "new", "--model": "model", "--dev": "dev.jsonl", **options}
    output = chosen.pop("OUT")
    assert message in refused("export", output, *(part for pair in chosen.items() for part in pair))
    assert {path.name for path in project.iterdir()} == before


def test_unknown_backends_and_devices(project, exported, refused):
    for path in (exported, project / "model"):
        with pytest.raises(SettingsError, match=r"unknown backend 'onxx'; did you mean 'onnx'\?"):
            DiffusionNER.from_pretrained(path, backend="onxx")
    with pytest.raises(SettingsError, match="backend onnx runs on the CPU, not on device 'cuda'"):
        DiffusionNER.from_pretrained(exported, device="cuda")
    with pytest.raises(CheckpointError, match="is an exported model, for backend onnx"):
        DiffusionNER.from_pretrained(exported, backend="torch")
    with pytest.raises(CheckpointError, match="model"):
        DiffusionNER.from_pretrained(project / "model", backend="onnx")
    assert "on the CPU" in refused("predict", "Ada", "--model", exported, "--device", "cuda:1")


def test_backends_by_name(project, exported):
    words = [["Ada", "met", "Charles"]]
    found = [
        DiffusionNER.from_pretrained(path, device, backend).predict_tokens(words)
        for path, device, backend in (
            (exported, "cpu", "onnx"), (str(exported), None, None),
            (project / "model", "cpu", "torch"), (str(project / "model"), "cpu", None),
        )
    ]  # fmt: skip
    for one in found[1:]:
        assert_same(one, found[0])


def test_an_exported_model_has_no_torch_module(ner, tmp_path):
    for use in (
        lambda: ner.network,
        lambda: ner.encoder,
        lambda: ner.save_pretrained(tmp_path / "new"),
        lambda: export(ner, tmp_path / "new", [Sentence(["Ada"])]),
    ):
        with pytest.raises(CheckpointError, match="backend onnx has no torch module"):
            use()
    assert list(tmp_path.iterdir()) == []


def test_options_are_checked_as_ever(ner):
    with pytest.raises(SettingsError, match=r"inference\.steps=101 exceeds"):
        ner("Ada", steps=101)


def test_onnxruntime_that_is_not_there(monkeypatch, exported):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(CheckpointError) as caught:
        DiffusionNER.from_pretrained(exported)
    assert "needs the package 'onnxruntime'" in str(caught.value)
    assert "pip install 'diffusionner[onnx]'" in str(caught.value)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_exporting_needs_its_packages(monkeypatch, refused, project, tmp_path, package):
    monkeypatch.setattr(exporting, "_write_graphs", never)
    monkeypatch.setitem(sys.modules, package, None)
    arguments = ("--model", project / "model", "--dev", project / "dev.jsonl")
    err = refused("export", tmp_path / "new", *arguments)
    assert f"exporting needs the package '{package}'" in err
    assert "pip install 'diffusionner[export]'" in err
    assert list(tmp_path.iterdir()) == []


# --- Damaged folders --------------------------------------------------------------------------


def truncate(name: str, share: float = 0.5) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return damage


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def without(*keys: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        place = config
        for key in keys[:-1]:
            place = place[key]
        del place[keys[-1]]
        (folder / "config.json").write_text(json.dumps(config))

    return damage


def changed(**values: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))

    return damage


DAMAGES = {
    "half an encoder": (truncate(ENCODER_FILE), "encoder.onnx is missing, truncated or damaged"),
    "empty encoder": (truncate(ENCODER_FILE, 0), "encoder.onnx is missing, truncated or damaged"),
    "half a denoiser": (truncate(DENOISER_FILE), "denoiser.onnx is missing, truncated or damaged"),
    "no denoiser": (remove(DENOISER_FILE), "denoiser.onnx is missing, truncated or damaged"),
    "no tokenizer": (remove("tokenizer.json"), "tokenizer.json cannot be read"),
    "half a tokenizer": (truncate("tokenizer.json"), "tokenizer.json cannot be read"),
    "no config": (remove("config.json"), "there is no config.json"),
    "half a config": (truncate("config.json"), "config.json cannot be read"),
    "no labels": (without("labels"), "config.json lacks labels"),
    "no settings": (without("settings"), "config.json lacks settings"),
    "no tokenizer's numbers": (without("tokenizer"), "config.json lacks tokenizer"),
    "no prefix": (without("tokenizer", "prefix"), "prefix"),
    "other numbers": (changed(tokenizer=[1, 2]), "cannot be read"),
    "later version": (changed(version=2), "has version 2, this release reads 1"),
    "another model": (changed(format="bert"), "is not a DiffusionNER model"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_folders(exported, tmp_path, name):
    damage, message = DAMAGES[name]
    folder = tmp_path / "exported"
    shutil.copytree(exported, folder)
    damage(folder)
    with pytest.raises(CheckpointError) as caught:
        DiffusionNER.from_pretrained(folder)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_its_encoder(exported, tmp_path):
    """It can no longer be told from a torch model's that is not whole."""
    shutil.copytree(exported, tmp_path / "exported")
    (tmp_path / "exported" / ENCODER_FILE).unlink()
    for backend in (None, "onnx", "torch"):
        with pytest.raises(DiffusionNERError):
            DiffusionNER.from_pretrained(tmp_path / "exported", backend=backend)


def test_the_command_line_reports_damage(refused, exported, tmp_path):
    shutil.copytree(exported, tmp_path / "exported")
    truncate(ENCODER_FILE)(tmp_path / "exported")
    err = refused("predict", "Ada", "--model", tmp_path / "exported")
    assert "encoder.onnx is missing, truncated or damaged" in err
