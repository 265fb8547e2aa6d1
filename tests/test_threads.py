"""`--threads` reaches every library that computes, in every process."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import textwrap

import pytest

from diffusionner.cli import annotate, calibrate, evaluate, export, predict, serve, train
from diffusionner.threads import available_threads

COMPUTING = [
    predict.predict, train.train, evaluate.evaluate, calibrate.calibrate, annotate.annotate,
    export.export, serve.serve,
]  # fmt: skip

# Runs a command up to the loading of a model, and prints what the libraries then use.
SCRIPT = """
    import json, os, subprocess, sys
    import diffusionner.cli
    from diffusionner.cli import options
    assert not {"torch", "numpy", "tokenizers"} & set(sys.modules), "loaded before the option"

    def load_model(model, device):
        import torch
        child = [sys.executable, "-c", "import torch; print(torch.get_num_threads())"]
        print(json.dumps({
            "torch": torch.get_num_threads(),
            "child": int(subprocess.check_output(child)),
            "rayon": os.environ.get("RAYON_NUM_THREADS"),
            "wait": os.environ.get("OMP_WAIT_POLICY"),
        }))
        sys.exit()

    options.load_model = load_model
    diffusionner.cli.main()
"""


def used(*arguments: str, **environment: str) -> dict[str, object]:
    variables = {
        k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "MKL_", "RAYON_"))
    }
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), "predict", "Ada.", *arguments]
    done = subprocess.run(
        command, env={**variables, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_threads_reach_the_libraries():
    """Torch uses no more threads than there are cores, so this tries one."""
    expected = {"torch": 1, "child": 1, "rayon": "1", "wait": "passive"}
    assert used("--threads", "1", OMP_NUM_THREADS="2", MKL_NUM_THREADS="2") == expected


def test_the_environment_counts_without_the_option():
    found = used(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="active")
    assert found == {"torch": 1, "child": 1, "rayon": None, "wait": "active"}


@pytest.mark.parametrize("command", COMPUTING, ids=lambda command: command.__name__)
def test_commands_that_compute_have_the_option(command):
    assert "threads" in inspect.signature(command).parameters


@pytest.mark.parametrize(("value", "threads"), [("3", 3), ("4,2", 4), ("0", None), ("x", None)])
def test_available_threads(monkeypatch, value, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = available_threads()
    assert 1 <= cores <= (os.cpu_count() or 1)
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert available_threads() == (threads or cores)


def test_threads_are_bounded(cli):
    result = cli("predict", "Ada.", "--threads", "99999")
    assert result.status == 2 and "--threads" in result.err and "256" in result.err
