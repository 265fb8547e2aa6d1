"""A run that is killed at any moment and resumed ends bit-identical to an uninterrupted one.

Every run is its own process, forked from a server that has already loaded torch, and is killed by
SIGKILL, so that nothing can clean up.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from diffusionner import DiffusionNER, files
from diffusionner.errors import CheckpointError
from diffusionner.settings import Settings
from diffusionner.storage import checkpoint
from diffusionner.training.reporter import Reporter
from diffusionner.training.trainer import Trainer

KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def processes() -> Iterator[multiprocessing.context.BaseContext]:
    """Context whose processes start in milliseconds, with one thread each."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["diffusionner.training.trainer", "torch.utils.tensorboard"])
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    yield context
    if before is None:
        del os.environ["OMP_NUM_THREADS"]
    else:
        os.environ["OMP_NUM_THREADS"] = before


@pytest.fixture
def settings(tiny_settings: Settings) -> Settings:
    """Dropout, a frozen phase, averaged weights, an initializer, and a dev F1 that changes.

    The state is saved after every update.
    """
    settings = tiny_settings.override(
        [
            f"data.dev={tiny_settings.data.train}",
            "decoder.initializer=spans",
            "inference.start=candidates",
            "training.checkpoint_minutes=0",
            "training.learning_rate=5e-3",
            "training.ema=0.5",
            "training.matches_per_entity=0",
            "training.tune_threshold=false",
            "inference.phi=0",
            "inference.overlap=all",
        ]
    )
    assert settings.encoder.dropout and settings.decoder.dropout and settings.training.frozen_epochs
    return settings


@pytest.fixture(scope="module")
def folders() -> list[Path]:
    return []


@pytest.fixture
def uninterrupted(processes, settings: Settings, folders: list[Path]) -> Path:
    """Folder of the same run without interruption, which all tests share."""
    if not folders:
        folder = Path(f"{settings.training.output}-uninterrupted")
        finish(processes, settings.override([f"training.output={folder}"]))
        assert progress_of(folder)["best_epoch"] > 1
        folders.append(folder)
    return folders[0]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def on_call(number: int, function: Callable, then: Callable[..., object]) -> Callable:
    """Return the function with its n-th call (from 1) replaced by `then`."""
    calls = iter(range(1, 10**6))

    def counted(*args, **kwargs):
        return (then if next(calls) == number else function)(*args, **kwargs)

    return counted


def train_and_die(settings: Settings, place: str, number: int) -> None:
    """Train, resuming if there is a state, and die at the n-th time a place is reached."""
    update, select, save_file, replace = (
        Trainer._update, Trainer._select, checkpoint.save_file, os.replace,
    )  # fmt: skip

    def half_a_file(tensors, path, metadata) -> None:
        save_file(tensors, path, metadata)
        os.truncate(path, os.path.getsize(path) // 2)
        die()

    def after_an_update(*args) -> None:
        update(*args)
        die()

    def after_a_selection(*args) -> None:
        select(*args)
        die()

    def after_a_move(*args) -> None:
        replace(*args)
        die()

    def state_moved(source, target) -> None:
        """Count only moves of the state."""
        (moved if str(target).endswith("state.safetensors") else replace)(source, target)

    def config_next(source, target) -> None:
        """Die when all files of the model but config.json are in place."""
        (last if Path(target).name == "config.json" else replace)(source, target)

    moved = on_call(number, replace, after_a_move)
    last = on_call(number, replace, lambda *_: die())
    if place == "before an update":
        Trainer._update = on_call(number, update, lambda *_: die())
    elif place == "before the state is saved":
        Trainer._update = on_call(number, update, after_an_update)
    elif place == "in the middle of a file":
        checkpoint.save_file = on_call(number, save_file, half_a_file)
    elif place == "before a file is moved":
        files.os.replace = on_call(number, replace, lambda *_: die())
    elif place == "after the state is moved":
        files.os.replace = state_moved
    elif place == "between model and state":
        Trainer._select = on_call(number, select, after_a_selection)
    elif place == "between weights and config":
        files.os.replace = config_next
    elif place == "between model and log":
        Reporter.epoch = on_call(number, Reporter.epoch, lambda *_: die())
    else:
        raise ValueError(place)
    go_on(settings)


def go_on(settings: Settings) -> None:
    Trainer(settings, resume=(Path(settings.training.output) / "state.safetensors").exists()).run()


def kill(processes, settings: Settings, place: str, number: int) -> None:
    process = processes.Process(target=train_and_die, args=(settings, place, number))
    process.start()
    process.join()
    assert process.exitcode == KILLED, place


def finish(processes, settings: Settings) -> None:
    process = processes.Process(target=go_on, args=(settings,))
    process.start()
    process.join()
    assert process.exitcode == 0


def progress_of(folder: Path) -> dict:
    with safe_open(folder / "state.safetensors", "pt") as file:
        return json.loads(file.metadata()["progress"])


def assert_same_run(folder: Path, reference: Path) -> None:
    for name in ("model.safetensors", "state.safetensors"):
        ours, theirs = load_file(folder / name), load_file(reference / name)
        assert ours.keys() == theirs.keys()
        different = [key for key in ours if not torch.equal(ours[key], theirs[key])]
        assert not different, f"{name}: {different}"
    ours, theirs = progress_of(folder), progress_of(reference)
    assert ours.pop("seconds") > 0 and theirs.pop("seconds") > 0
    assert ours == theirs
    configs = [json.loads((f / "config.json").read_text()) for f in (folder, reference)]
    for config in configs:
        config["settings"]["training"].pop("output")
        config["settings"].pop("data")
        config.pop("digest")  # of these, too
    assert configs[0] == configs[1]


def log_lines(folder: Path) -> list[tuple[int, int | None]]:
    """Return (step, epoch or None) of every line; a torn line would not parse."""
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [(record["step"], record.get("epoch")) for record in map(json.loads, lines)]


def assert_clean_log(folder: Path, reference: Path) -> None:
    lines = log_lines(folder)
    assert [line for line, count in Counter(lines).items() if count > 1] == []
    assert set(lines) == set(log_lines(reference))


# --- Killed at critical places ----------------------------------------------------------------

# Place and number of times it is reached, for each process in turn; an epoch has eight updates.
DEATHS = [
    [
        ("before the state is saved", 1),
        ("before an update", 1),
        ("before the state is saved", 4),
        ("in the middle of a file", 2),
    ],
    [
        ("in the middle of a file", 9),  # the model of the first epoch
        ("before a file is moved", 2),  # a part of it
        ("after the state is moved", 3),
    ],
    [("between weights and config", 1), ("after the state is moved", 1)],
]


@pytest.mark.parametrize("deaths", DEATHS, ids=lambda deaths: f"{deaths[0][0]} {deaths[0][1]}")
def test_killed_while_saving(processes, settings, uninterrupted, deaths):
    folder = Path(settings.training.output)
    for place, number in deaths:
        kill(processes, settings, place, number)
        if (folder / "model.safetensors").exists():
            DiffusionNER.from_pretrained(folder)  # complete at any time
    finish(processes, settings)
    assert_same_run(folder, uninterrupted)
    assert_clean_log(folder, uninterrupted)


def test_killed_between_selection_and_state(processes, settings, uninterrupted):
    """The epoch is evaluated again after resuming, selects the same model and is logged once."""
    for place in ("between model and log", "between model and state"):
        kill(processes, settings, place, 1)
    finish(processes, settings)
    assert_same_run(Path(settings.training.output), uninterrupted)
    assert_clean_log(Path(settings.training.output), uninterrupted)


# --- Killed at random times -------------------------------------------------------------------


def test_killed_at_random_moments(processes, settings, uninterrupted):
    """Repeatedly, a random time after a random number of saved states."""
    moments = random.Random(7)
    folder = Path(settings.training.output)
    state = folder / "state.safetensors"
    kills = 0
    while True:
        process = processes.Process(target=go_on, args=(settings,))
        process.start()
        wait_for_states(process, state, moments.randint(1, 5))
        process.join(moments.uniform(0, 0.03))
        process.kill()
        process.join()
        kills += process.exitcode == KILLED
        if process.exitcode == 0:
            break
        assert kills < 40, "no progress"
    assert kills >= 2
    assert_same_run(folder, uninterrupted)
    assert_clean_log(folder, uninterrupted)


def wait_for_states(process, state: Path, number: int) -> None:
    """Wait until the state has been replaced that many times or the process has ended."""

    def written() -> int:
        return state.stat().st_mtime_ns if state.exists() else 0

    last = written()
    while process.is_alive() and number:
        time.sleep(0.002)
        if written() != last:
            last = written()
            number -= 1


# --- Errors -----------------------------------------------------------------------------------


@pytest.fixture
def interrupted(processes, settings: Settings) -> Settings:
    """A run with its own dev file that was killed after three updates."""
    corpus = Path(settings.data.train)
    dev = corpus.with_name("dev.jsonl")
    dev.write_text("\n".join(corpus.read_text().splitlines()[-5:]) + "\n")
    settings = settings.override([f"data.dev={dev}"])
    kill(processes, settings, "after the state is moved", 3)
    return settings


@pytest.mark.parametrize(
    "change",
    ["training.learning_rate=2e-3", "training.epochs=5", "diffusion.spans=13", "training.seed=1"],
)
def test_resuming_with_other_settings_is_an_error(interrupted, change):
    with pytest.raises(CheckpointError, match="other settings or data; resume with the same"):
        Trainer(interrupted.override([change]), resume=True).run()
    assert progress_of(Path(interrupted.training.output))["step"] == 3


@pytest.mark.parametrize("which", ["train", "dev"])
def test_resuming_with_other_data_is_an_error(interrupted, which):
    path = Path(getattr(interrupted.data, which))
    path.write_text(path.read_text().replace('"PER"', '"FAC"', 1))
    with pytest.raises(CheckpointError, match="other settings or data"):
        Trainer(interrupted, resume=True).run()


def test_moved_runs_and_corpora_can_be_resumed(interrupted):
    """Paths are not part of the run."""
    folder, corpus = Path(interrupted.training.output), Path(interrupted.data.train)
    folder.rename(folder.with_name("moved"))
    corpus.rename(corpus.with_name("moved.jsonl"))
    moved = interrupted.override(
        [
            f"training.output={folder.with_name('moved')}",
            f"data.train={corpus.with_name('moved.jsonl')}",
        ]
    )
    assert Trainer(moved, resume=True).run().best_epoch > 0


def test_nothing_to_resume(settings):
    with pytest.raises(CheckpointError, match="nothing to resume"):
        Trainer(settings, resume=True).run()
