"""BERT without transformers: the same weights and states, without its slow import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import edit_config
from transformers import AutoTokenizer, BertModel

from diffusionner import DiffusionNER
from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.errors import CheckpointError, SettingsError
from diffusionner.model.bert import Bert, is_supported
from diffusionner.storage.checkpoint import tokenizer_files
from diffusionner.storage.encoders import load_encoder
from models import lively_model

TEXT = "Ada Lovelace met Charles Babbage in London ."


@pytest.fixture
def folder(encoder_folder, tmp_path) -> Path:
    lively_model(encoder_folder).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def change_encoder(folder: Path, **changes: object) -> None:
    edit_config(folder, lambda config: config["encoder_config"].update(changes))


def found(ner: DiffusionNER) -> list[tuple[object, ...]]:
    return [(e.start, e.end, e.label, e.score) for e in ner(TEXT)]


def test_states_equal_those_of_transformers(encoder_folder):
    theirs = load_encoder(str(encoder_folder)).eval()
    ours = Bert(theirs.config.to_dict()).eval()
    ours.load_state_dict(theirs.state_dict())  # the same names
    ids = torch.randint(5, 60, (3, 17), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(17) < torch.tensor([17, 9, 1])[:, None]
    with torch.inference_mode():
        expected = theirs(input_ids=ids, attention_mask=mask.long()).last_hidden_state[mask]
        for given in (mask.long(), mask[:, None, None]):
            states = ours(input_ids=ids, attention_mask=given).last_hidden_state[mask]
            assert torch.allclose(states, expected, atol=1e-6)
    assert expected.std() > 0.1


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "roberta"},
        {"hidden_act": "relu"},
        {"position_embedding_type": "relative_key"},
        {"is_decoder": True},
    ],
)
def test_unsupported_configurations(encoder_folder, changes):
    config = load_encoder(str(encoder_folder)).config.to_dict()
    assert is_supported(config) and not is_supported(config | changes)


def test_an_unsupported_model_is_loaded_by_transformers(folder):
    before = found(DiffusionNER.from_pretrained(folder, "cpu"))
    change_encoder(folder, hidden_act="relu")
    ner = DiffusionNER.from_pretrained(folder, "cpu")
    assert isinstance(ner.encoder.transformer, BertModel) and found(ner) != before


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("encoder_config", {"vocab_size": 10**15}),
        ("encoder_config", {"num_attention_heads": 7}),
        ("encoder_config", {"hidden_size": None}),
        ("decoder", {"feedforward": 10**15}),
    ],
)
def test_impossible_sizes_are_refused(folder, part, changes):
    def change(config: dict[str, Any]) -> None:
        (config["settings"] if part == "decoder" else config)[part] |= changes

    edit_config(folder, change)
    with pytest.raises((CheckpointError, SettingsError), match=r"config\.json"):
        DiffusionNER.from_pretrained(folder, "cpu")


def test_both_find_the_same_entities(folder, monkeypatch):
    ner = DiffusionNER.from_pretrained(folder, "cpu")
    assert isinstance(ner.encoder.transformer, Bert)
    monkeypatch.setattr("diffusionner.model.bert.is_supported", lambda _: False)
    theirs = DiffusionNER.from_pretrained(folder, "cpu")
    assert isinstance(theirs.encoder.transformer, BertModel)
    assert found(ner) == [(*rest, pytest.approx(score)) for *rest, score in found(theirs)] != []


def test_slow_packages_are_not_imported(folder):
    code = (
        "import sys; from diffusionner import DiffusionNER; "
        f"DiffusionNER.from_pretrained({str(folder)!r}, 'cpu')({TEXT!r}); "
        "print([m for m in ('transformers', 'accelerate', 'sympy') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_loaded_model_can_be_saved_without_its_folder(folder, tmp_path):
    ner = DiffusionNER.from_pretrained(folder, "cpu")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    for file in folder.iterdir():
        file.unlink()
    ner.save_pretrained(tmp_path / "copy")
    assert {file.name: file.read_bytes() for file in (tmp_path / "copy").iterdir()} == before
    assert ner.tokenizer.tokenize("ada") == ["a", "##d", "##a"]


def test_the_tokenizer_equals_that_of_transformers(encoder_folder):
    theirs = SubwordTokenizer.from_hf(AutoTokenizer.from_pretrained(encoder_folder), 128)
    ours = SubwordTokenizer.read(encoder_folder, 128)
    for name in ("limit", "prefix", "suffix", "pad", "unknown"):
        assert getattr(ours, name) == getattr(theirs, name)
    words = ["Ada", "1,000", "naïve", "—", "日本"]
    pairs = zip(ours.subwords_of_each(words), theirs.subwords_of_each(words), strict=True)
    assert all((one == other).all() for one, other in pairs)
    assert tokenizer_files(ours).keys() <= tokenizer_files(theirs).keys()


def test_a_tokenizer_in_other_files_is_loaded_by_transformers(folder):
    """Older versions have no file that names the special tokens."""
    expected = found(DiffusionNER.from_pretrained(folder, "cpu"))
    edit_config(folder)
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"the tokenizer in .* cannot be read"):
        DiffusionNER.from_pretrained(folder, "cpu")
    (folder / "tokenizer_config.json").unlink()
    assert found(DiffusionNER.from_pretrained(folder, "cpu")) == expected
