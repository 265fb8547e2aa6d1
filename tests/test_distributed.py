"""Training with two processes on the CPU gives the same result as with one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from diffusionner import DiffusionNER, formats
from diffusionner.batching import EncodedCorpus
from diffusionner.corpus import Sentence
from diffusionner.settings import Settings
from diffusionner.storage.encoders import load_tokenizer
from diffusionner.training.trainer import Outcome, Trainer


@pytest.fixture
def settings(
    tiny_settings: Settings,
    nested_sentences: list[Sentence],
    still_encoder: Path,
    tmp_path: Path,
) -> Settings:
    """No dropout (it differs between processes), a frozen epoch and a full one, odd sizes."""
    short = [s for s in nested_sentences if len("".join(s.words)) < 100]
    formats.write(tmp_path / "train.jsonl", short[:13])
    formats.write(tmp_path / "dev.jsonl", short[:11])
    formats.write(tmp_path / "test.jsonl", short[2:13])
    return tiny_settings.override(
        [
            f"encoder.name={still_encoder}",
            "encoder.dropout=0",
            "decoder.dropout=0",
            f"data.train={tmp_path / 'train.jsonl'}",
            f"data.dev={tmp_path / 'dev.jsonl'}",
            f"data.test={tmp_path / 'test.jsonl'}",
            "training.epochs=1",
            "training.frozen_epochs=1",
            "training.clip=0",
            "training.ema=0.5",
            # so that even this model predicts entities and scores can differ
            "training.matches_per_entity=0",
            "training.tune_threshold=false",
            "inference.phi=0",
            "inference.overlap=all",
        ]
    )


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def launch(settings: Settings, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `diffusionner train` in two processes."""
    config = folder / "two.yaml"
    config.write_text(yaml.safe_dump(settings.to_dict()))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    command += ["--master_addr", "127.0.0.1", "--master_port", str(free_port())]
    command += ["-m", "diffusionner", "train", str(config)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


@dataclass
class Runs:
    """The same run with one process and with two."""

    outcome: Outcome
    folders: tuple[Path, Path]
    printed: str

    def tensors(self, name: str) -> list[dict[str, torch.Tensor]]:
        return [load_file(folder / f"{name}.safetensors") for folder in self.folders]

    def logs(self) -> list[list[dict]]:
        lines = [(folder / "log.jsonl").read_text().splitlines() for folder in self.folders]
        return [[json.loads(line) for line in log] for log in lines]


@pytest.fixture(scope="module")
def finished() -> list[Runs]:
    return []


@pytest.fixture
def runs(settings: Settings, tmp_path: Path, finished: list[Runs]) -> Runs:
    """The runs, which all tests share."""
    if not finished:
        outcome = Trainer(settings).run()
        two = settings.override([f"training.output={tmp_path / 'two'}"])
        done = launch(two, tmp_path)
        assert done.returncode == 0, done.stderr
        folders = (Path(settings.training.output), Path(two.training.output))
        finished.append(Runs(outcome, folders, done.stdout))
    return finished[0]


def test_batches_are_uneven(settings):
    """The runs include a batch in which one process has no sentence."""
    tokenizer = load_tokenizer(settings.encoder.name, 128)
    corpus = EncodedCorpus(formats.read(settings.data.train), tokenizer, settings.encoder)
    sizes = sorted(len(b) for b in corpus.shuffled_batches(4, settings.training.seed, 0))
    assert sizes == [1, 4, 4, 4]


# The bias of attention keys has no effect: its gradient is rounding error, which Adam amplifies.
IDLE = (".key.bias", ".key_value.bias")


@pytest.mark.parametrize("name", ["state", "model"])
def test_weights_agree(runs, name):
    """Measured: at most 4e-7, while the weights themselves move by 1e-2."""
    one, two = runs.tensors(name)
    assert one.keys() == two.keys()
    weights = [key for key in one if not key.startswith("optimizer.") and not key.endswith(IDLE)]
    far = {key: float((one[key] - two[key]).abs().max()) for key in weights}
    assert max(far.values()) < 1e-5, max(far.items(), key=lambda item: item[1])
    assert max(far.values()) > 0, "identical weights: the processes did not share the work"


def test_gradients_agree(runs):
    """Compare Adam's moments, since its updates hide the size of gradients."""
    one, two = runs.tensors("state")
    moments = [key for key in one if key.startswith("optimizer.")]
    assert len(moments) > 100
    for key in moments:
        torch.testing.assert_close(two[key], one[key], rtol=1e-3, atol=1e-6, msg=key)


def test_scores_agree(runs, settings):
    one, two = runs.logs()
    assert [record["step"] for record in one] == [record["step"] for record in two] == [4, 4, 8, 8]
    for key in ("f1", "best"):
        assert [r[key] for r in one if key in r] == [r[key] for r in two if key in r]
    outcome = runs.outcome
    assert f"best dev F1 {100 * outcome.best_f1:.2f} in epoch {outcome.best_epoch}" in runs.printed
    reports = [json.loads((folder / "test.json").read_text()) for folder in runs.folders]
    assert reports[0] == reports[1]
    assert outcome.test.to_dict().items() <= reports[0].items()
    assert outcome.test.micro.predicted > 0


def test_models_predict_the_same(runs, settings):
    sentences = formats.read(settings.data.dev)
    one, two = (DiffusionNER.from_pretrained(folder, "cpu") for folder in runs.folders)
    assert one.predict_sentences(sentences) == two.predict_sentences(sentences)


def test_logged_losses_agree(runs):
    one, two = ([r["loss"] for r in log if "loss" in r] for log in runs.logs())
    assert one == pytest.approx(two, rel=1e-4)
