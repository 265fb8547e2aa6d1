"""Damaged folders of exported models."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import edit_config

from diffusionner import DiffusionNER
from diffusionner.errors import CheckpointError, DiffusionNERError
from diffusionner.files import file_digest
from diffusionner.storage.config import DENOISER_FILE, ENCODER_FILE, WEIGHTS

onnx = pytest.importorskip("onnx")
helper, numpy_helper = onnx.helper, onnx.numpy_helper


def truncate(name: str, share: float = 0.5) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return damage


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def copy_encoder(folder: Path) -> None:
    shutil.copy(folder / ENCODER_FILE, folder / DENOISER_FILE)


def without(*keys: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        def change(config: dict[str, Any]) -> None:
            place = config
            for key in keys[:-1]:
                place = place[key]
            del place[keys[-1]]

        edit_config(folder, change, without=("digest",))

    return damage


def changed(**values: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        edit_config(folder, lambda config: config.update(values), without=("digest",))

    return damage


def numbered(**values: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        edit_config(folder, lambda config: config["tokenizer"].update(values), without=("digest",))

    return damage


DAMAGES = {
    "half an encoder": (truncate(ENCODER_FILE), "encoder.onnx is not the file that was written"),
    "empty encoder": (truncate(ENCODER_FILE, 0), "encoder.onnx is not the file that was written"),
    "half a denoiser": (truncate(DENOISER_FILE), "denoiser.onnx is not the file that was written"),
    "encoder as denoiser": (copy_encoder, "denoiser.onnx is not the file that was written"),
    "no denoiser": (remove(DENOISER_FILE), "denoiser.onnx is missing or damaged"),
    "no weights": (remove(WEIGHTS), "model.safetensors is missing or damaged"),
    "half the weights": (truncate(WEIGHTS), "model.safetensors is not the file that was written"),
    "no tokenizer": (remove("tokenizer.json"), "tokenizer.json is missing or damaged"),
    "half a tokenizer": (truncate("tokenizer.json"), "tokenizer.json is not the file"),
    "no config": (remove("config.json"), "there is no config.json"),
    "half a config": (truncate("config.json"), "config.json cannot be read"),
    "no labels": (without("labels"), "config.json lacks labels"),
    "no settings": (without("settings"), "config.json lacks settings"),
    "no tokenizer's numbers": (without("tokenizer"), "config.json: 'tokenizer' needs limit, pre"),
    "no prefix": (without("tokenizer", "prefix"), "found: limit, suffix, pad, unknown. Export"),
    "other numbers": (changed(tokenizer=[1, 2]), "found: not a table. Export the model again"),
    "a foreign key": (numbered(colour=3), "unknown, colour. Export the model again"),
    "a word for a number": (numbered(limit="many"), 'tokenizer.limit is "many", expected a number'),
    "a lone prefix": (numbered(prefix=2), "tokenizer.prefix is 2, expected a list of numbers"),
    "a negative one": (numbered(suffix=[3, -1]), "tokenizer.suffix is [3, -1], expected a list"),
    "other labels": (changed(labels=["A", "B"]), "'self_test' in config.json is damaged"),
    "later version": (changed(version=99), "has version 99, this release reads"),
    "another model": (changed(format="bert"), "is not a DiffusionNER model"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_reported(exported, tmp_path, name):
    damage, message = DAMAGES[name]
    folder = tmp_path / "exported"
    shutil.copytree(exported, folder)
    damage(folder)
    with pytest.raises(CheckpointError) as caught:
        DiffusionNER.from_pretrained(folder)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def save(folder: Path, model: Any) -> None:
    """Replace the encoder's graph, with a new digest, as an attacker would."""
    (folder / ENCODER_FILE).write_bytes(model.SerializeToString())

    def change(config: dict[str, Any]) -> None:
        config["files"][ENCODER_FILE] = file_digest(folder / ENCODER_FILE)

    edit_config(folder, change, without=("digest",))


def read_elsewhere(model: Any) -> None:
    weight = next(one for one in model.graph.initializer if one.external_data)
    weight.external_data[0].value = "../../secret"


def read_part(model: Any) -> None:
    weight = next(one for one in model.graph.initializer if one.external_data)
    weight.external_data.add(key="offset", value="0")


def read_constant(model: Any) -> None:
    tensor = onnx.TensorProto(dims=[2], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="model.safetensors")
    model.graph.node.append(helper.make_node("Constant", [], ["read"], value=tensor))


def read_unknown(model: Any) -> None:
    rename(model, "no.such.tensor")


def read_another(model: Any) -> None:
    weights = [one.name for one in model.graph.initializer if one.external_data]
    rename(model, next(name for name in weights[1:] if name.endswith("LayerNorm.bias")))


def rename(model: Any, name: str) -> None:
    """Let the graph read another tensor."""
    weight = next(one for one in model.graph.initializer if one.external_data and one.dims[1:])
    for node in model.graph.node:
        node.input[:] = [name if one == weight.name else one for one in node.input]
    weight.name = name


def loop_forever(model: Any) -> None:
    boolean, number = onnx.TensorProto.BOOL, onnx.TensorProto.INT64
    inputs = [("count", number), ("go", boolean)]
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["still"])],
        "forever",
        [helper.make_tensor_value_info(name, kind, []) for name, kind in inputs],
        [helper.make_tensor_value_info("still", boolean, [])],
    )
    model.graph.initializer.append(helper.make_tensor("yes", boolean, [], [True]))
    model.graph.node.append(helper.make_node("Loop", ["", "yes"], [], body=body))


def add_function(model: Any) -> None:
    function = helper.make_function("", "Other", [], [], [], model.opset_import)
    model.functions.append(function)


GRAPHS: dict[str, tuple[Callable[[Any], object], str]] = {
    "weights elsewhere": (read_elsewhere, "has weights in another file"),
    "part of the weights": (read_part, "has weights in another file"),
    "a constant elsewhere": (read_constant, "has weights in another file"),
    "an unknown weight": (read_unknown, "lacks 'no.such.tensor', which a graph beside it reads"),
    "another weight": (read_another, "encoder.onnx is missing, truncated or damaged"),
    "loop": (loop_forever, "has a loop or a branch"),
    "function": (add_function, "has a function"),
    "vendor": (lambda m: setattr(m.graph.node[0], "domain", "example.com"), "of 'example.com'"),
    "opset": (lambda m: setattr(m.opset_import[0], "version", 99), "is missing, truncated or dam"),
    "output": (lambda m: setattr(m.graph.output[0], "name", "other"), "encoder.onnx is missing"),
    "input": (lambda m: setattr(m.graph.input[0], "name", "other"), "encoder.onnx is missing"),
    "weights": (lambda m: negate(m), "fails its self-test"),
}


def negate(model: Any) -> None:
    """Negate the states of words."""
    node = next(node for node in model.graph.node if node.output[0] == "states")
    model.graph.node.append(helper.make_node("Neg", ["unnegated"], ["states"]))
    node.output[0] = "unnegated"


@pytest.mark.parametrize("name", GRAPHS)
def test_replaced_graphs(exported, tmp_path, name):
    change, message = GRAPHS[name]
    folder = Path(shutil.copytree(exported, tmp_path / "exported"))
    model = onnx.load(folder / ENCODER_FILE, load_external_data=False)
    change(model)
    (folder / ENCODER_FILE).write_bytes(model.SerializeToString())
    with pytest.raises(CheckpointError):
        DiffusionNER.from_pretrained(folder)
    save(folder, model)
    with pytest.raises(CheckpointError) as caught:
        DiffusionNER.from_pretrained(folder)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_changed_byte_of_a_graph(exported, tmp_path):
    folder = Path(shutil.copytree(exported, tmp_path / "exported"))
    content = bytearray((folder / DENOISER_FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / DENOISER_FILE).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"denoiser\.onnx is not the file that was written"):
        DiffusionNER.from_pretrained(folder)


def test_exports_without_digests_are_refused(exported, tmp_path):
    folder = Path(shutil.copytree(exported, tmp_path / "exported"))
    edit_config(folder)
    with pytest.raises(CheckpointError, match=r"no digests of .*export the model again"):
        DiffusionNER.from_pretrained(folder)


def test_a_folder_without_its_encoder_is_refused(exported, tmp_path):
    shutil.copytree(exported, tmp_path / "exported")
    (tmp_path / "exported" / ENCODER_FILE).unlink()
    for backend in (None, "onnx", "torch"):
        with pytest.raises(DiffusionNERError):
            DiffusionNER.from_pretrained(tmp_path / "exported", backend=backend)


def test_the_command_line_reports_damage(refused, exported, tmp_path):
    shutil.copytree(exported, tmp_path / "exported")
    truncate(ENCODER_FILE)(tmp_path / "exported")
    err = refused("predict", "Ada", "--model", tmp_path / "exported")
    assert "encoder.onnx is not the file that was written with its config.json" in err
