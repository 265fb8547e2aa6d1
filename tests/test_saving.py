"""Full disks, damaged states and losses that are no numbers: what was good stays good."""

from __future__ import annotations

import errno
import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from diffusionner import DiffusionNER
from diffusionner.cli import main
from diffusionner.errors import TrainingDiverged, WriteError
from diffusionner.files import write_bytes
from diffusionner.storage import checkpoint
from diffusionner.training.objective import DenoisingObjective
from diffusionner.training.trainer import Trainer


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


# --- Permissions ------------------------------------------------------------------------------


@pytest.fixture
def umask() -> Iterator[int]:
    """Permission bits that new files must not have."""
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


def permissions(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


def test_files_have_the_permissions_that_the_umask_says(umask, folder):
    """Though safetensors writes such as only their owner can read."""
    found = permissions(folder)
    assert "model.safetensors" in found and set(found.values()) == {0o666 & ~umask}


def test_files_keep_their_permissions(umask, folder):
    (folder / "model.safetensors").chmod(0o604)
    (folder / "config.json").chmod(0o444)
    before = permissions(folder)
    leftover = folder / ".config.json.partial"  # of a run that was killed
    leftover.touch()
    leftover.chmod(0o600)
    DiffusionNER.from_pretrained(folder).save_pretrained(folder)
    assert permissions(folder) == before


def test_what_a_kill_left_behind_does_not_tell_the_permissions(umask, tmp_path):
    leftover = tmp_path / ".new.partial"
    leftover.touch()
    leftover.chmod(0o600)
    write_bytes(tmp_path / "new", b"content")
    assert permissions(tmp_path) == {"new": 0o640}


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
    with small_files(size), pytest.raises(WriteError, match="existing files are unchanged"):
        ner.save_pretrained(folder)
    assert contents(folder) == before


def test_disk_full_leaves_settings_and_weights_that_belong_together(folder):
    before = contents(folder)
    ner = DiffusionNER.from_pretrained(folder)
    ner.settings = ner.settings.override(["inference.threshold=0.4"])
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
    Trainer(settings, resume=call > 1).run()
    undisturbed = settings.override([f"training.output={output}-undisturbed"])
    Trainer(undisturbed).run()
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


def test_output_folder_that_cannot_be(refused, folder, tmp_path):
    (tmp_path / "none").write_text("no folder")
    target = tmp_path / "none" / "out.jsonl"
    err = refused("predict", "--model", folder, "--output", target, "Ada")
    assert str(target) in err and "cannot be written" in err


# --- States -----------------------------------------------------------------------------------


def test_resuming_from_a_damaged_state(refused, config, tiny_settings):
    Trainer(tiny_settings).run()
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
    Trainer(tiny_settings).run()
    before = contents(Path(tiny_settings.training.output))
    assert "already contains a run; continue it with --resume" in refused("train", config)
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
    loss = DenoisingObjective.loss
    per_epoch = 5  # 16 sentences, some of them two windows, in batches of 4

    def poisoned(self, *args) -> torch.Tensor:
        return loss(self, *args) * (float("nan") if next(calls) == per_epoch + 3 else 1.0)

    monkeypatch.setattr(DenoisingObjective, "loss", poisoned)
    settings = tiny_settings.override([f"training.checkpoint_minutes={minutes}"])
    with pytest.raises(TrainingDiverged) as caught:
        Trainer(settings).run()
    assert f"at update {per_epoch + 3} (epoch 2, batch " in str(caught.value)
    folder = Path(settings.training.output)
    assert f"the last saved state is in {folder}" in str(caught.value)
    assert_finite(folder)
    DiffusionNER.from_pretrained(folder)
    monkeypatch.undo()
    assert Trainer(settings, resume=True).run().best_epoch > 0


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
        Trainer(settings).run()
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
        Trainer(settings).run()
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


def test_a_full_gpu_is_told_in_a_line(config, monkeypatch, refused):
    def fill(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has ...")

    monkeypatch.setattr(Trainer, "run", fill)
    message = refused("train", config)
    assert "Tried to allocate 2 GiB)" in message
    assert "training.batch_size" in message
