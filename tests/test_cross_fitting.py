"""Candidates of unseen documents, and belief networks that are fitted on them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from diffusionner import Sentence, Span, formats
from diffusionner.storage.beliefs import read_beliefs
from reproduce.cli import fit_beliefs as command
from reproduce.cross_fitting import PARTS, CorpusSplits, first_documents, number_documents

ROOT = Path(__file__).parent.parent
SMALL = [
    "training.epochs=2", "encoder.context=0", "diffusion.spans=4", "decoder.layers=0",
    "encoder.character_filters=0", "inference.batch_size=8",
]  # fmt: skip


def corpus(documents: int) -> list[Sentence]:
    return [
        Sentence(
            [name, "met", "Ada", str(number)],
            [Span(0, 1, "PER"), Span(2, 3, "PER")],
            f"doc {number}",
        )
        for number in range(documents)
        for name in ("Charles", "London")
    ]


def test_documents_are_numbered():
    docs = ["a", "a", "b", None, None, "a"]
    sentences = [Sentence(["x"], doc=doc) for doc in docs]
    assert number_documents(sentences) == [0, 0, 1, 2, 3, 4]
    assert first_documents(sentences, 2) == sentences[:3]
    assert first_documents(sentences, None) == sentences
    assert number_documents([]) == []


def test_each_half_reads_the_other():
    splits = CorpusSplits("conll03", corpus(5), corpus(1), corpus(2))
    assert splits.learned("whole") == splits.train
    assert splits.read("whole") == {"dev": splits.dev, "test": splits.test}
    for part in PARTS[1:]:
        learned, (read,) = splits.learned(part), splits.read(part).values()
        assert not {s.doc for s in learned} & {s.doc for s in read}
        assert sorted(s.doc for s in learned + read) == sorted(s.doc for s in splits.train)
    assert splits.learned("first") == list(*splits.read("second").values())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for split, documents in (("train", 8), ("dev", 3), ("test", 3)):
        for name in ("conll03", "litbank"):
            path = tmp_path / "data" / name / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            formats.write(path, corpus(documents))
    return tmp_path / "data"


def test_fits_measures_and_writes_a_network(
    encoder_folder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    work, written = tmp_path / "work", tmp_path / "beliefs.safetensors"

    def run() -> str:
        command(
            ["conll03", "litbank"], str(encoder_folder), data, documents=6, seeds=1, fits=1,
            parallel=1, split="test", changes=SMALL, configs=ROOT / "configs", work=work,
            write=written,
        )  # fmt: skip
        return capsys.readouterr().out

    table = run()
    lines = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert [line[:3] for line in lines[2:6]] == [
        ["| CoNLL03", "", "initializer alone"],
        ["| CoNLL03", "this corpus", "1"],
        ["| CoNLL03", "this corpus", "2"],
        ["| CoNLL03", "this corpus", "5"],
    ]
    assert sum(line[1] == "other corpora" for line in lines) == 6
    assert f"{written}: fitted on conll03, litbank" in table
    assert np.abs(read_beliefs(written).output).max() > 0
    # The models of six documents; a half has never seen what it reads.
    logs = sorted(work.glob("*/log.jsonl"))
    assert len(logs) == 6
    sizes = {path.name.rsplit("-", 2)[-1] for path in work.glob("*.npz")}
    assert sizes == {"dev.npz", "test.npz", "first.npz", "second.npz"}
    before = {path: path.stat().st_mtime_ns for path in logs}
    assert run() == table  # nothing is trained again
    assert {path: path.stat().st_mtime_ns for path in logs} == before
    assert all(json.loads(line) for line in logs[0].read_text().splitlines())
