"""Fixtures: a tiny encoder with random weights, small settings and the command line."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from commands import Result, assert_short
from corpus_files import EXCERPT
from plain import plain_settings
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

import reproduce.formats  # noqa: F401  (registers the formats of research corpora)
from diffusionner import DiffusionNER, formats
from diffusionner.cli import main
from diffusionner.corpus import Sentence
from diffusionner.inference.torch_engine import TorchEngine
from diffusionner.model.network import DenoisingNetwork
from diffusionner.settings import Settings
from diffusionner.storage.encoders import load_encoder, load_tokenizer
from diffusionner.storage.registry import installed_models


def pytest_configure(config: pytest.Config) -> None:
    """Hide the GPU from all tests; `pytest -m gpu` runs those that need one."""
    config.addinivalue_line("markers", "gpu: needs a GPU; only run by `pytest -m gpu`")
    if config.getoption("markexpr") != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Use one thread: the tensors are so small that threads cost more than they save."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def provided() -> Callable[[str], Path]:
    """Return the folder of an installed model by name, or skip the test."""

    def folder(name: str) -> Path:
        found = installed_models()
        if name not in found:
            pytest.skip(f"the model '{name}' is not installed: pip install ./models/{name}")
        return found[name]

    return folder


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers and 32 dimensions whose WordPiece vocabulary is single characters."""
    folder = tmp_path_factory.mktemp("encoder")
    characters = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {
        token: i for i, token in enumerate(special + characters + ["##" + c for c in characters])
    }
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def nested_sentences() -> list[Sentence]:
    """32 sentences of the LitBank excerpt, all with entities, many of them nested."""
    chosen = [s for s in formats.read(EXCERPT) if len(s.entities) > 1]
    return [s for s in chosen if len(s.words) <= 25][:32]


@pytest.fixture
def tiny_settings(encoder_folder: Path, tmp_path: Path) -> Settings:
    """Settings of a run on the excerpt that takes seconds."""
    train = tmp_path / "train.jsonl"
    lines = EXCERPT.read_text(encoding="utf-8").splitlines()[:24]
    train.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return plain_settings(
        {
            "data": {"train": str(train), "dev_from_train": 8},
            "encoder": {
                "name": str(encoder_folder),
                "character_filters": 8,
                "lstm_layers": 1,
                "max_subwords": 128,
            },
            "diffusion": {"spans": 12, "timesteps": 100},
            "decoder": {"heads": 4, "feedforward": 32},
            "training": {
                "output": str(tmp_path / "run"),
                "epochs": 2,
                "frozen_epochs": 1,
                "batch_size": 4,
                "encoder_learning_rate": 1e-3,
                "learning_rate": 1e-3,
            },
            "inference": {"steps": 2, "spans": 12},
        }
    )


@pytest.fixture(scope="session")
def still_encoder(encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny encoder without dropout."""
    folder = tmp_path_factory.mktemp("still") / "encoder"
    shutil.copytree(encoder_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def cli(monkeypatch, capsys) -> Callable[..., Result]:
    """Run `diffusionner ...`, or another command line's `main`, in this process."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object, stdin: bytes = b"", main: Callable[[], None] = main) -> Result:
        monkeypatch.setattr(sys, "argv", ["diffusionner", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        try:
            main()
            status = 0
        except SystemExit as done:
            status = done.code or 0
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


@pytest.fixture
def refused(monkeypatch, capsys) -> Callable[..., str]:
    """Run `diffusionner ...`, assert status 2 and a short message, and return the message."""
    monkeypatch.setenv("COLUMNS", "500")

    def run(*arguments: object, main: Callable[[], None] = main) -> str:
        monkeypatch.setattr(sys, "argv", ["diffusionner", *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            main()
        err = capsys.readouterr().err
        assert done.value.code == 2, err
        assert_short(err)
        return err

    return run


@pytest.fixture
def config(tiny_settings: Settings, tmp_path: Path) -> Path:
    """tiny_settings as a YAML file."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(tiny_settings.to_dict()))
    return path


@pytest.fixture
def folder(tiny_settings: Settings, tmp_path: Path) -> Path:
    """Folder of an untrained model."""
    torch.manual_seed(0)
    transformer = load_encoder(tiny_settings.encoder.name)
    network = DenoisingNetwork(transformer, ["LOC", "PER"], tiny_settings)
    tokenizer = load_tokenizer(tiny_settings.encoder.name, 128)
    folder = tmp_path / "model"
    DiffusionNER(TorchEngine(network), tokenizer, tiny_settings).save_pretrained(folder)
    return folder


@pytest.fixture
def make(tmp_path: Path):
    """Function that writes a file and returns its path."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return write
