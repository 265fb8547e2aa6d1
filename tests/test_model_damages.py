"""Damaged model folders: refused with one clear error before they cost time or memory."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from folders import edit_config
from safetensors.torch import load_file, save_file

from benchmarks.cli import main
from diffusionner import DiffusionNER
from diffusionner.batching import Batch
from diffusionner.diffusion import Candidates
from diffusionner.errors import DiffusionNERError
from diffusionner.files import file_digest
from diffusionner.inference import self_test
from diffusionner.storage.config import WEIGHTS, config_bytes, read_config
from models import lively_model

DEEP = "[" * 1_000_000 + "]" * 1_000_000


@pytest.fixture(scope="module")
def sound(encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "model"
    lively_model(encoder_folder).save_pretrained(folder)
    return folder


@pytest.fixture
def model(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "model"))


def refusal(folder: Path) -> str:
    """Return the message of a refusal that takes less than a second of CPU time."""
    started = time.process_time()
    with pytest.raises(DiffusionNERError) as caught:
        DiffusionNER.from_pretrained(folder, "cpu")
    assert time.process_time() - started < 1
    message = str(caught.value)
    assert "\n" not in message and len(message) < 1000 and folder.name in message
    return message


def seal(folder: Path) -> None:
    """Write digests of the files as they are, as an attacker would."""
    config = json.loads((folder / "config.json").read_text())
    config.pop("digest", None)
    config["files"] = {name: file_digest(folder / name) for name in config["files"]}
    (folder / "config.json").write_bytes(config_bytes(config))


# --- Files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json", "tokenizer_config.json"])
def test_a_changed_byte_is_noticed(model, name):
    content = bytearray((model / name).read_bytes())
    content[-3] ^= 1
    (model / name).write_bytes(content)
    assert f"{name} is not the file that was written with its config.json" in refusal(model)


def test_a_changed_config_is_noticed(model):
    edit_config(model, lambda c: c["settings"]["inference"].update(phi=1.5), without=())
    assert "config.json was changed or damaged after it was written" in refusal(model)
    edit_config(model, without=("digest",))  # on purpose, as the message says
    assert DiffusionNER.from_pretrained(model).settings.inference.phi == 1.5


def test_the_layout_of_config_json_does_not_matter(model):
    edit_config(model, without=())  # without line breaks
    DiffusionNER.from_pretrained(model)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def circular(path: Path) -> None:
    path.symlink_to(path)


def huge(path: Path) -> None:
    path.write_bytes(b"{")
    os.truncate(path, 2**40)


@pytest.mark.parametrize(
    "name", ["config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"]
)
@pytest.mark.parametrize("kind", [pipe, endless, circular, huge, Path.mkdir])
@pytest.mark.parametrize("old", [False, True], ids=["with digests", "without"])
def test_special_files_are_not_read(model, name, kind, old):
    if old:
        edit_config(model)
    (model / name).unlink()
    kind(model / name)
    refusal(model)


def test_links_to_files_are_followed(model, tmp_path):
    """The cache of the Hugging Face hub consists of them."""
    shutil.copytree(model, tmp_path / "elsewhere")
    for file in model.iterdir():
        file.unlink()
        file.symlink_to(tmp_path / "elsewhere" / file.name)
    DiffusionNER.from_pretrained(model)


def test_digests_name_files_of_the_folder_only(model):
    for name in ("../secret", "/etc/passwd", "./config.json"):
        edit_config(model, lambda c, name=name: c["files"].update({name: {}}), without=("digest",))
        assert "refers to a file elsewhere" in refusal(model)
        edit_config(model, lambda c, name=name: c["files"].pop(name), without=("digest",))


@pytest.mark.parametrize("text", [DEEP, "", "{", "[]", "nul", "9" * 5000, "\ufeff{}", "\\x80"])
def test_config_that_is_not_json(model, text):
    (model / "config.json").write_text(text)
    refusal(model)


def test_a_save_that_was_killed_before_its_last_move(model, tmp_path, encoder_folder):
    """The weights were moved, their config.json was not: the model is complete, and new."""
    new = lively_model(encoder_folder, "inference.phi=1.25")
    torch.nn.init.normal_(new.network.decoder.left.output.weight)
    new.save_pretrained(tmp_path / "new")
    (tmp_path / "new" / "config.json").rename(model / ".config.json.partial")
    assert DiffusionNER.from_pretrained(model).settings.inference.phi == 0  # nothing was moved yet
    shutil.copy(tmp_path / "new" / WEIGHTS, model / WEIGHTS)
    assert DiffusionNER.from_pretrained(model).settings.inference.phi == 1.25


# --- Values -----------------------------------------------------------------------------------

VALUES: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "null label": ("'labels' must", lambda c: c["labels"].__setitem__(0, None)),
    "empty label": ("'labels' must", lambda c: c["labels"].__setitem__(0, "")),
    "no labels": ("'labels' must", lambda c: c["labels"].clear()),
    "repeated label": ("'labels' must", lambda c: c["labels"].__setitem__(0, c["labels"][1])),
    "text as labels": ("'labels' must", lambda c: c.update(labels="PER")),
    "no settings": ("expected sections", lambda c: c.update(settings=None)),
    "zero heads": ("decoder.heads=0", lambda c: c["settings"]["decoder"].update(heads=0)),
    "NaN as text": ("'NaN'", lambda c: c["settings"]["diffusion"].update(scale="NaN")),
    "infinite": ("not a finite", lambda c: c["settings"]["diffusion"].update(scale=float("inf"))),
    "timesteps": ("1 to 10000", lambda c: c["settings"]["diffusion"].update(timesteps=10**10)),
    "decoder layers": ("0 to 100", lambda c: c["settings"]["decoder"].update(layers=10**7)),
    "many lstms": ("does not match", lambda c: c["settings"]["encoder"].update(lstm_layers=100)),
    "a true number": ("layers=True", lambda c: c["settings"]["decoder"].update(layers=True)),
    "long text": ("start='xxx", lambda c: c["settings"]["inference"].update(start="x" * 10**6)),
    "no encoder": ("name a model_type", lambda c: c.update(encoder_config=[])),
    "null as encoder": ("name a model_type", lambda c: c.update(encoder_config=None)),
    "a decoder": ("has is_decoder", lambda c: _encoder(c, is_decoder=True)),
    "zero encoder heads": ("heads is 0", lambda c: _encoder(c, num_attention_heads=0)),
    "true encoder heads": ("heads is True", lambda c: _encoder(c, num_attention_heads=True)),
    "encoder layers": ("larger network", lambda c: _encoder(c, num_hidden_layers=10**6)),
    "more layers": ("than the weights file", lambda c: _encoder(c, num_hidden_layers=10**7)),
    "huge size": ("larger network", lambda c: _encoder(c, intermediate_size=10**6)),
    "negative size": ("vocab_size is -5", lambda c: _encoder(c, vocab_size=-5)),
    "text as size": ("hidden_size is 32", lambda c: _encoder(c, hidden_size="32")),
    "epsilon as text": ("no network", lambda c: _encoder(c, layer_norm_eps="1e-12")),
    "epsilon": ("layer_norm_eps is 7", lambda c: _encoder(c, layer_norm_eps=7)),
    "another architecture": ("config.json", lambda c: _encoder(c, model_type="gpt2")),
    "no architecture": ("name a model_type", lambda c: _encoder(c, model_type=["bert"])),
    "version 1": ("config.json", lambda c: c.update(version=1, settings={"decoder": [1]})),
}


def _encoder(config: dict[str, Any], **changes: object) -> None:
    config["encoder_config"] |= changes


@pytest.mark.parametrize("name", VALUES)
def test_values_that_no_model_has(model, name):
    message, change = VALUES[name]
    edit_config(model, change)
    assert message in refusal(model)


@pytest.mark.parametrize("sums", [[float("nan")], ["NaN"], [True], [-1.0], [7.0], [1, 10**400]])
def test_a_damaged_calibration(model, sums):
    thresholds = dict.fromkeys(read_config(model)["labels"], 0.5)
    values = {"sums": sums, "probabilities": [0.5] * len(sums), "thresholds": thresholds}
    edit_config(model, lambda c: c.update(calibration=values))
    refusal(model)


# --- Weights ----------------------------------------------------------------------------------


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


NAME = "decoder.left.output.weight"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30, -1e5])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_weights_that_are_no_numbers(sound, tmp_path, value, precision):
    DiffusionNER.from_pretrained(sound).save_pretrained(tmp_path / "model", precision)
    name = "decoder.left.words.weight"
    if precision == "int8":
        name = next(n for n in load_file(tmp_path / "model" / WEIGHTS) if n.endswith(".scale"))

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = tensors[name].float()
        tensors[name].view(-1)[1] = value

    change_weights(tmp_path / "model", change)
    seal(tmp_path / "model")
    assert f"'{name}' has weights that are absurdly large" in refusal(tmp_path / "model")


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.long(), lambda t: t.bool(), lambda t: t.to(torch.complex64),
        lambda t: t.to(torch.int8), lambda t: t[:, :-1].clone(), lambda t: t[0].clone(),
        lambda t: t[:0].clone(),
    ],
    ids=["int64", "bool", "complex", "int8", "shorter", "flat", "empty"],
)  # fmt: skip
def test_tensors_of_another_kind(model, change):
    change_weights(model, lambda tensors: tensors.update({NAME: change(tensors[NAME])}))
    seal(model)
    assert f"1 tensors differ, first '{NAME}'" in refusal(model)


def test_a_header_that_is_too_long(model):
    content = (model / WEIGHTS).read_bytes()
    (model / WEIGHTS).write_bytes((10**8).to_bytes(8, "little") + content[8:])
    assert "its header is too long" in refusal(model)


def test_the_tokenizer_of_another_model(model):
    path = model / "tokenizer.json"
    values = json.loads(path.read_text())
    values["model"]["vocab"]["more"] = 10**6
    path.write_text(json.dumps(values))
    seal(model)
    assert "has 1000001 subwords, but the encoder 141" in refusal(model)


# --- Self-test --------------------------------------------------------------------------------


def test_weights_that_changed_before_they_were_written(model):
    change_weights(model, lambda tensors: tensors[NAME].neg_())
    seal(model)
    message = refusal(model)
    assert "fails its self-test: for '" in message and "when it was saved, and" in message
    edit_config(model, without=("digest", "self_test"))
    DiffusionNER.from_pretrained(model)  # a model like any other


def test_labels_in_another_order(model):
    edit_config(model, lambda c: c["labels"].append(c["labels"].pop(0)), without=("digest",))
    assert "fails its self-test" in refusal(model)


def test_rounded_models_have_their_own_self_test(sound, tmp_path):
    ner = DiffusionNER.from_pretrained(sound)
    ner.save_pretrained(tmp_path, "int8")
    tests = [read_config(folder)["self_test"] for folder in (sound, tmp_path)]
    assert tests[0]["sums"] != tests[1]["sums"]
    found = DiffusionNER.from_pretrained(tmp_path)
    expected = self_test.record_torch(found.network, found.subwords, found.settings)
    compared = [(a, b) for a, b in zip(expected["sums"], tests[1]["sums"], strict=True) if b]
    assert compared and np.allclose(*zip(*compared, strict=True), atol=2e-3)


def answering(*found: tuple[int, int, int, float, float]) -> SimpleNamespace:
    """An engine with the labels A and B that finds (first, last, type, sum, probability)."""

    def launch(batch: Batch, *given: object) -> Callable[[], Candidates]:
        shape = len(batch.lengths), 1, len(found)
        columns = (np.broadcast_to(x, shape) for x in zip(*found, strict=True))
        left, right, types, sums, probability = columns
        slots = np.broadcast_to(np.arange(len(batch.lengths))[:, None, None] == 0, shape)
        noisy = np.stack([left, right], -1)
        candidates = Candidates(left, right, types, sums, probability, types < 2, slots, noisy)
        return lambda: candidates

    return SimpleNamespace(labels=["A", "B"], beliefs=None, subword_multiple=1, launch=launch)


def test_words_whose_label_is_nearly_another_are_left_out(sound):
    ner = DiffusionNER.from_pretrained(sound)
    engine = answering(
        (0, 1, 0, 2.8, 0.95),  # clearly A
        (3, 4, 0, 1.9, 0.52),  # nearly no entity
        (6, 7, 2, 2.6, 0.99), (7, 7, 1, 2.55, 0.9),  # nearly B, by another span
        (9, 9, 1, 2.5, 0.9),  # clearly B, but not for the other engine
    )  # fmt: skip
    other = answering((0, 1, 0, 2.78, 0.95), (9, 9, 0, 2.5, 0.9))
    found = self_test.record(engine, [engine], ner.subwords, ner.settings)
    assert found["labels"][:10] == ["A", "A", None, "A", "A", None, None, None, None, "B"]
    assert found["sums"][:10] == [2.8, 2.8, 0.0, None, None, 0.0, 2.6, None, 0.0, 2.5]
    found = self_test.record(engine, [engine, other], ner.subwords, ner.settings)
    assert found["sums"][:10] == [2.8, 2.8, 0.0, None, None, 0.0, None, None, 0.0, None]


def test_a_model_that_cannot_read_a_sentence(model):
    """Weights that are numbers, and give none."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if "LayerNorm" in name or "norms" in name:
                tensor.fill_(6e4)

    change_weights(model, change)
    seal(model)
    refusal(model)


@pytest.mark.parametrize(
    "damaged",
    [
        [], 3, True, "text", {}, {"words": []}, {"words": ["a"] * 10**4}, {"words": [3]},
        {"words": ["x" * 10**5]}, {"words": ["a"], "labels": ["NONE"]},
        {"words": ["a"], "sums": ["2"]},
    ],
)  # fmt: skip
def test_a_damaged_self_test(model, damaged):
    edit_config(model, lambda config: config.update(self_test=damaged), without=("digest",))
    assert "'self_test' in config.json is damaged" in refusal(model)


def test_models_saved_before_load_as_before(sound, model):
    edit_config(model)
    text = "Ada Lovelace met Charles Babbage in London."
    one, other = (DiffusionNER.from_pretrained(folder)(text) for folder in (sound, model))
    assert one == other and one


@pytest.mark.parametrize("name", ["en", "bio"])
def test_shipped_models_pass_in_low_precision(provided, name):
    """And have a self-test to pass."""
    folder = provided(name)
    stored = read_config(folder)["self_test"]
    assert len({label for label in stored["labels"] if label}) >= 2
    assert sum(x or 0 for x in stored["sums"]) > 10
    DiffusionNER.from_pretrained(folder, "cpu", precision="bf16")


# --- At random --------------------------------------------------------------------------------


def test_random_damages(encoder_folder, sound, tmp_path, cli):
    """A few of `python -m benchmarks attack-models`."""
    other = tmp_path / "other"
    lively_model(encoder_folder, "decoder.layers=1").save_pretrained(other)
    options = ("--model", sound, "--other", other, "--no-onnx", "--damages", 40, "--seed", 1)
    result = cli("attack-models", *options, main=main)
    assert result.status == 0, result.out
    assert sum(map(int, result.out.splitlines()[-1].split()[1:4])) == 40
