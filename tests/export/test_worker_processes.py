"""Models in worker processes: pickled as their folder, or inherited by a fork."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys

import pytest
import torch

from diffusionner import DiffusionNER
from diffusionner.errors import CheckpointError
from models import assert_same

TEXTS = ["Ada Lovelace met Charles Babbage .", "He left London .", "Ada ."]
# Parent and child each run the model and, with torch, something that it divides among threads.
FORK = """
import multiprocessing, sys
import torch
from diffusionner import DiffusionNER

def find(texts):
    if hasattr(ner.engine, "network"):
        torch.rand(10**6).exp().sum()
    return [len(entities) for entities in ner.pipe(texts)]

torch.set_num_threads(2)
ner = DiffusionNER.from_pretrained(sys.argv[1], "cpu")
texts = ["Ada Lovelace met Charles Babbage ."] * 40
expected = find(texts)
with multiprocessing.get_context("fork").Pool(1) as pool:
    assert pool.map_async(find, [texts]).get(20) == [expected]
"""


@pytest.mark.parametrize("name", ["model", "exported"])
def test_a_pool_of_spawned_processes(project, name):
    ner = DiffusionNER.from_pretrained(project / name, "cpu")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert_same(pool.map(ner, TEXTS), [ner(text) for text in TEXTS])


@pytest.mark.parametrize("name", ["model", "exported"])
def test_a_pool_of_forked_processes(project, name):
    """After the parent has used its threads, which the children lack."""
    command = [sys.executable, "-c", FORK, str(project / name)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_pickle_has_no_weights_but_the_settings(project, monkeypatch):
    monkeypatch.chdir(project)
    ner = DiffusionNER.from_pretrained("model", "cpu", precision="bf16")
    ner.settings = ner.settings.override(["inference.seed=7"])
    pickled = pickle.dumps(ner)
    assert len(pickled) < 20_000
    monkeypatch.chdir("/")
    again = pickle.loads(pickled)
    assert again.settings == ner.settings and again.folder == project / "model"
    assert next(again.engine.running.parameters()).dtype == torch.bfloat16
    assert_same([again(TEXTS[0])], [ner(TEXTS[0])])


def test_models_in_memory_cannot_be_pickled(rich, project):
    with pytest.raises(CheckpointError, match=r"made or changed in memory; save it with save_pre"):
        pickle.dumps(rich)
    ner = DiffusionNER.from_pretrained(project / "model", "cpu")
    with torch.no_grad():
        next(ner.network.parameters()).mul_(2)
    with pytest.raises(CheckpointError, match="made or changed in memory"):
        pickle.dumps(ner)
