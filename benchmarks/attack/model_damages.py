"""Random damages of model folders, for `python -m benchmarks attack-models`."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from diffusionner.files import file_digest, to_json
from diffusionner.storage.config import ENCODER_FILE, WEIGHTS, config_bytes

DEEP = "[" * 1_000_000 + "]" * 1_000_000
HUGE = 2**40  # bytes of a sparse file
# JSON, written as it is: some of these are no JSON, or cannot be read as such.
VALUES = (
    "null", "true", "false", "0", "1", "-1", "2", "7", "0.5", "-0.5", "1e-30", "1e10", "1e308",
    "1e400", "10000000", "10000000000", str(2**70), "9" * 5000, "NaN", "-Infinity", '"NaN"', '""',
    '"1e10"', '"\\ud800"', json.dumps("x" * 1_000_000), "[]", "{}", "[null]", '{"a": 1}', DEEP,
)  # fmt: skip
_MARK = "@damage@"


class Folder:
    """A copy of a model's folder, of which only the damaged file takes space."""

    def __init__(self, source: Path, other: Path, target: Path, draw: random.Random) -> None:
        self.source, self.other, self.path, self.draw = source, other, target, draw
        target.mkdir()
        for file in source.iterdir():
            if file.is_file():
                (target / file.name).symlink_to(file.resolve())

    @property
    def names(self) -> list[str]:
        """Files that loading reads."""
        config = json.loads((self.source / "config.json").read_text(encoding="utf-8"))
        return ["config.json", *config["files"]]

    def own(self, name: str) -> Path:
        """Return a file as one that can be changed without changing the original."""
        path = self.path / name
        path.unlink()
        shutil.copyfile(self.source / name, path)
        return path

    def replace(self, name: str) -> Path:
        """Return the path of a file that was removed."""
        (self.path / name).unlink()
        return self.path / name

    def hide(self, old: bool) -> None:
        """Hide the damage from the digests: new ones, as an attacker would write them.

        old: no digests and no self-test, as in a model that was saved before there were any.
        """
        path = self.path / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict) or not isinstance(config.get("files"), dict):
            return
        names = [name for name in config.pop("files") if (self.path / name).is_file()]
        config.pop("digest", None)
        path.unlink()
        if old:
            config.pop("self_test", None)
            path.write_bytes(to_json(config))
        else:
            config["files"] = {name: file_digest(self.path / name) for name in names}
            path.write_bytes(config_bytes(config))


def flip_bytes(folder: Folder) -> str:
    name = folder.draw.choice(folder.names)
    path = folder.own(name)
    content = bytearray(path.read_bytes())
    for _ in range(folder.draw.choice((1, 1, 16, 4096))):
        content[folder.draw.randrange(len(content))] ^= 1 << folder.draw.randrange(8)
    path.write_bytes(content)
    return name


def truncate(folder: Folder) -> str:
    name = folder.draw.choice(folder.names)
    path = folder.own(name)
    os.truncate(path, folder.draw.choice((0, 7, folder.draw.randrange(path.stat().st_size))))
    return name


def overwrite(folder: Folder) -> str:
    """Zeros, or bytes from elsewhere in the file, in the place of a block."""
    name = folder.draw.choice(folder.names)
    path = folder.own(name)
    content = bytearray(path.read_bytes())
    size = min(4096, len(content) // 2)
    at, source = (folder.draw.randrange(len(content) - size) for _ in range(2))
    block = bytes(size) if folder.draw.random() < 0.5 else content[source : source + size]
    content[at : at + size] = block
    path.write_bytes(content)
    return name


def swap_files(folder: Folder) -> str:
    """A file of another model, or another file of the same one."""
    name = folder.draw.choice(folder.names)
    source = folder.other / name
    if not source.exists() or folder.draw.random() < 0.2:
        source = folder.source / folder.draw.choice(folder.names)
    shutil.copyfile(source, folder.replace(name))
    return f"{name} is {source.name} of {source.parent.name}"


def special_file(folder: Folder) -> str:
    name = folder.draw.choice(folder.names)
    path = folder.replace(name)
    kind = folder.draw.choice(("pipe", "folder", "endless", "huge", "missing", "loop"))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "huge":
        shutil.copyfile(folder.source / name, path)
        os.truncate(path, HUGE)
    return f"{name}: {kind}"


def change_json(folder: Folder) -> str:
    """A value anywhere in config.json, or in one of the tokenizer's files."""
    found = [name for name in folder.names if name.endswith(".json")]
    name = folder.draw.choice(["config.json"] * 4 + found)
    path = folder.own(name)
    values = json.loads(path.read_text(encoding="utf-8"))
    parent, key, trail = _random_place(values, folder.draw)
    choice = folder.draw.random()
    if choice < 0.1:
        del parent[key]
        after = "removed"
    elif choice < 0.3 and type(parent[key]) in (int, float):
        parent[key] *= folder.draw.choice((-1, 0.5, 2, 1000, 1e9))
        after = f"{parent[key]:g}"
    else:
        parent[key] = _MARK
        after = folder.draw.choice(VALUES)
    text = json.dumps(values, ensure_ascii=False).replace(json.dumps(_MARK), after)
    path.write_text(text, encoding="utf-8")
    return f"{name}: {trail} = {after[:30]}"


def _random_place(values: Any, draw: random.Random) -> tuple[Any, Any, str]:
    """Choose a value in nested dictionaries and lists; each level is as likely as the next."""
    parent, trail = values, ""
    while True:
        key = draw.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        trail += f".{key}"
        inner = parent[key]
        if not isinstance(inner, dict | list) or not inner or draw.random() < 0.2:
            return parent, key, trail
        parent = inner


def change_labels(folder: Folder) -> str:
    path = folder.own("config.json")
    config = json.loads(path.read_text(encoding="utf-8"))
    labels = config["labels"]
    at = folder.draw.randrange(len(labels))
    kind = folder.draw.choice(("repeat", "empty", "null", "number", "more", "less", "order"))
    if kind == "more":
        labels.append("NEW")
    elif kind == "less":
        labels.pop(at)
    elif kind == "order":
        labels.reverse()
    else:
        values: dict[str, Any] = {"repeat": labels[at - 1], "empty": "", "null": None, "number": 3}
        labels[at] = values[kind]
    path.write_text(json.dumps(config), encoding="utf-8")
    return kind


def change_tensor(folder: Folder) -> str:
    """One tensor of the weights: other numbers, another type, another shape, or none at all."""
    tensors = load_file(folder.source / WEIGHTS)
    name = folder.draw.choice(sorted(tensors))
    tensor = tensors[name]
    floats = tensor.float()
    changes: dict[str, Callable[[], torch.Tensor]] = {
        "NaN": lambda: _with(floats, float("nan")),
        "infinite": lambda: _with(floats, float("inf")),
        "absurd": lambda: _with(floats, 1e30),
        "scaled": lambda: floats * 1000,
        "zeroed": lambda: floats * 0,
        "int64": lambda: floats.long(),
        "bool": lambda: floats.bool(),
        "complex": lambda: floats.to(torch.complex64),
        "float64": lambda: floats.double(),
        "transposed": lambda: tensor.t().contiguous() if tensor.dim() == 2 else tensor[None],
        "shortened": lambda: tensor[:-1].clone(),
        "empty": lambda: tensor[:0].clone(),
    }
    kind = folder.draw.choice([*changes, "removed", "added"])
    if kind == "removed":
        del tensors[name]
    elif kind == "added":
        tensors["surprise"] = torch.zeros(3)
    else:
        tensors[name] = changes[kind]()
    save_file(tensors, folder.replace(WEIGHTS), {"format": "pt"})
    return f"{name}: {kind}"


def _with(tensor: torch.Tensor, value: float) -> torch.Tensor:
    changed = tensor.clone()
    changed.view(-1)[-1] = value
    return changed


def change_graph(folder: Folder) -> str:
    """Another program in the place of the encoder's graph."""
    import onnx
    from onnx import helper

    model = onnx.load(folder.source / ENCODER_FILE, load_external_data=False)
    graph = model.graph
    kind = folder.draw.choice(("renamed", "opset", "domain", "elsewhere", "loop", "type", "empty"))
    if kind == "renamed":
        folder.draw.choice(graph.output).name = "other"
    elif kind == "opset":
        model.opset_import[0].version = folder.draw.choice((1, 9, 99))
    elif kind == "domain":
        folder.draw.choice(graph.node).domain = "example.com"
    elif kind == "elsewhere":
        weight = folder.draw.choice([one for one in graph.initializer if one.external_data])
        place = folder.draw.choice(("../../secret", "/dev/zero", "model.bin"))
        weight.external_data[0].value = place
    elif kind == "loop":
        condition = helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, [])
        count = helper.make_tensor_value_info("count", onnx.TensorProto.INT64, [])
        same = helper.make_node("Identity", ["go"], ["still"])
        result = helper.make_tensor_value_info("still", onnx.TensorProto.BOOL, [])
        body = helper.make_graph([same], "forever", [count, condition], [result])
        graph.initializer.append(helper.make_tensor("yes", onnx.TensorProto.BOOL, [], [True]))
        graph.node.insert(0, helper.make_node("Loop", ["", "yes"], [], body=body))
    elif kind == "type":
        graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    else:
        del graph.node[:]
    folder.replace(ENCODER_FILE).write_bytes(model.SerializeToString())
    return kind


Damage = Callable[[Folder], str]
OF_ALL: tuple[Damage, ...] = (
    flip_bytes, truncate, overwrite, swap_files, special_file, change_json, change_json,
    change_json, change_labels,
)  # fmt: skip
OF_TORCH: tuple[Damage, ...] = (*OF_ALL, change_tensor, change_tensor, change_tensor)
OF_ONNX: tuple[Damage, ...] = (*OF_ALL, change_graph, change_graph)
