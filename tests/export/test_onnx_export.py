"""The check of F1 before an export is written, and exports that are refused."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from corpus_files import put

from diffusionner import DiffusionNER, formats
from diffusionner import export as exporting
from diffusionner.corpus import Sentence
from diffusionner.errors import CheckpointError, SettingsError, WriteError
from diffusionner.export import ExportError, export
from diffusionner.storage.config import DENOISER_FILE, ENCODER_FILE, SENTENCE_FILE
from models import assert_same

# F1 before and after


@pytest.fixture
def dev(project: Path) -> list[Sentence]:
    return formats.read(project / "dev.jsonl")


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_changed_f1_refuses_the_export(recorded, monkeypatch, rich, dev, tmp_path, precision):
    monkeypatch.setitem(exporting.LIMITS, precision, -0.1)
    with pytest.raises(ExportError) as caught:
        export(rich, tmp_path / "new", dev, precision)
    message = str(caught.value)
    assert "F1 on dev is 100.00 with the model" in message
    assert f"{precision} graphs, more than -0.1 points apart; nothing was written" in message
    assert list(tmp_path.iterdir()) == []


def test_a_dev_corpus_without_entities_is_refused(recorded, rich, dev, tmp_path):
    bare = [replace(sentence, entities=[]) for sentence in dev]
    with pytest.raises(ExportError, match="the model's F1 on dev is 0"):
        export(rich, tmp_path / "new", bare)
    assert list(tmp_path.iterdir()) == []


def test_int8_that_changes_f1_too_much_is_not_written(recorded, rich, dev, tmp_path):
    with pytest.raises(ExportError, match=r"int8 graphs, more than 0\.5 points apart"):
        export(rich, tmp_path / "new", dev, "int8")
    assert list(tmp_path.iterdir()) == []


def test_damaged_graphs_are_noticed(monkeypatch, rich, exported, dev, tmp_path, refused, project):
    def damaged(ner: DiffusionNER, folder: Path) -> None:
        for name in (ENCODER_FILE, SENTENCE_FILE):
            shutil.copy(exported / name, folder)
        model = onnx.load(exported / DENOISER_FILE, load_external_data=False)
        for node in model.graph.node:
            if node.op_type == "Add":
                node.op_type = "Sub"
        (folder / DENOISER_FILE).write_bytes(model.SerializeToString())

    monkeypatch.setattr(exporting, "write_graphs", damaged)
    with pytest.raises(ExportError, match=r"100\.00 with the model but \d?\d\.\d\d with"):
        export(rich, tmp_path / "new", dev)
    assert list(tmp_path.iterdir()) == []
    arguments = ("--model", project / "model", "--dev", project / "dev.jsonl")
    assert "nothing was written" in refused("export", tmp_path / "new", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_crash_leaves_nothing(monkeypatch, rich, dev, tmp_path):
    def crash(ner: DiffusionNER, folder: Path) -> None:
        (folder / ENCODER_FILE).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "write_graphs", crash)
    with pytest.raises(KeyboardInterrupt):
        export(rich, tmp_path / "new", dev)
    assert list(tmp_path.iterdir()) == []


# Refused exports


def never(*_: object) -> None:
    raise AssertionError("graphs are written only if everything else is in order")


def test_an_existing_folder_is_not_overwritten(monkeypatch, rich, dev, tmp_path):
    monkeypatch.setattr(exporting, "write_graphs", never)
    put(tmp_path / "here", {"mine.txt": "keep me"})
    with pytest.raises(WriteError, match=r"here already exists; .*another name"):
        export(rich, tmp_path / "here", dev)
    assert [path.name for path in tmp_path.rglob("*")] == ["here", "mine.txt"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"--precision": "int4"}, "unknown precision 'int4'; did you mean 'int8'?"),
        ({"--precision": "half"}, "unknown precision 'half'; choose one of: float32, int8"),
        ({"--model": "absent"}, "no model in"),
        ({"--dev": "absent.jsonl"}, "absent.jsonl"),
        ({"--dev": "other.jsonl"}, "QQQ"),
        ({"OUT": "model"}, "already exists"),
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
        DiffusionNER.from_pretrained(exported, device="cuda", backend="onnx")
    with pytest.raises(CheckpointError) as caught:
        DiffusionNER.from_pretrained(project / "model", backend="onnx")
    message = str(caught.value)
    assert f"'{project / 'model'}' is a torch model without encoder.onnx" in message
    assert f"diffusionner export OUTPUT --model '{project / 'model'}'" in message
    assert "cannot be used" in refused("predict", "Ada", "--model", exported, "--device", "cuda:1")


def test_backends_by_name(project, exported):
    words = [["Ada", "met", "Charles"]]
    found = [
        DiffusionNER.from_pretrained(path, device, backend).predict_tokens(words)
        for path, device, backend in (
            (exported, "cpu", "onnx"), (str(exported), None, None), (exported, "cpu", "torch"),
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
        with pytest.raises(CheckpointError, match="an ONNX model has no torch module"):
            use()
    assert list(tmp_path.iterdir()) == []


def test_inference_options_are_checked(ner):
    with pytest.raises(SettingsError, match=r"inference\.steps=101 exceeds"):
        ner("Ada", steps=101)


def test_a_missing_onnxruntime_is_named(monkeypatch, exported):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(CheckpointError) as caught:
        DiffusionNER.from_pretrained(exported)
    assert "needs the package 'onnxruntime'" in str(caught.value)
    assert "pip install onnxruntime" in str(caught.value)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_exporting_needs_its_packages(monkeypatch, refused, project, tmp_path, package):
    monkeypatch.setattr(exporting, "write_graphs", never)
    monkeypatch.setitem(sys.modules, package, None)
    arguments = ("--model", project / "model", "--dev", project / "dev.jsonl")
    err = refused("export", tmp_path / "new", *arguments)
    assert f"exporting needs the package '{package}'" in err
    assert "pip install onnx onnxruntime onnxscript" in err
    assert list(tmp_path.iterdir()) == []
