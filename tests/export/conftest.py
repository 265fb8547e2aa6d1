"""Exports, which take seconds each, made once for all tests of this folder."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from corpus_files import put
from exports import own_dev, with_graphs_of
from typer.testing import CliRunner

from diffusionner import DiffusionNER
from diffusionner.cli import app
from diffusionner.corpus import Sentence
from diffusionner.export import export
from diffusionner.storage.config import GRAPHS, WEIGHTS
from models import lively_model

if not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def sentences(nested_sentences: list[Sentence]) -> list[list[str]]:
    """One word, usual lengths, and more than the encoder reads at once."""
    words = [word for s in nested_sentences for word in s.words]
    return [["Ada"], ["x" * 60, "left"], *(s.words for s in nested_sentences[:9]), words[:120]]


@pytest.fixture(scope="session")
def docs(sentences: list[list[str]]) -> list[str]:
    return [f"doc {i // 4}" for i in range(len(sentences))]


@pytest.fixture(scope="session")
def rich(encoder_folder: Path) -> DiffusionNER:
    """A model with every optional part."""
    return lively_model(
        encoder_folder,
        "encoder.context=2",
        "diffusion.coordinates=left-width",
        "inference.spans=auto",
    )


@pytest.fixture(scope="session")
def plain(encoder_folder: Path) -> DiffusionNER:
    """A model without optional parts."""
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


@pytest.fixture(scope="session")
def project(
    rich: DiffusionNER, sentences: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with a model, a corpus, and the output of `diffusionner export`."""
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


@pytest.fixture(scope="session")
def exported(project: Path) -> Path:
    return project / "exported"


@pytest.fixture(scope="session")
def rich_pair(rich: DiffusionNER, exported: Path) -> tuple[DiffusionNER, DiffusionNER]:
    return rich, DiffusionNER.from_pretrained(exported)


@pytest.fixture(scope="session")
def plain_pair(
    plain: DiffusionNER, sentences: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[DiffusionNER, DiffusionNER]:
    folder = tmp_path_factory.mktemp("plain") / "new" / "exported"
    stages: list[str] = []
    done = export(plain, folder, own_dev(plain, sentences), progress=stages.append)
    assert done.before == done.after == 100
    assert done.size == sum((folder / name).stat().st_size for name in (WEIGHTS, *GRAPHS))
    assert stages == ["writing the graphs", "comparing on dev"]
    return plain, DiffusionNER.from_pretrained(folder)


@pytest.fixture(scope="session", params=["spans", "types"])
def initialized(encoder_folder: Path, request: pytest.FixtureRequest) -> DiffusionNER:
    """A model that starts from the candidates of its initializer."""
    return lively_model(
        encoder_folder,
        f"decoder.initializer={request.param}",
        f"decoder.offset_window={2 if request.param == 'types' else 0}",
        "inference.start=candidates",
        "inference.spans=auto",
    )


@pytest.fixture(scope="session")
def initialized_export(
    initialized: DiffusionNER,
    sentences: list[list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("initialized") / "exported"
    done = export(initialized, folder, own_dev(initialized, sentences))
    assert done.before == done.after == 100
    return folder


@pytest.fixture(scope="session")
def initialized_pair(
    initialized: DiffusionNER, initialized_export: Path
) -> tuple[DiffusionNER, DiffusionNER]:
    return initialized, DiffusionNER.from_pretrained(initialized_export)


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
    """Reuse the graphs of `rich`, so that exporting it again takes no time."""
    with_graphs_of(exported, monkeypatch)
