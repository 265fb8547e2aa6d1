"""Candidates of unseen documents, and belief networks that are fitted on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diffusionner import Sentence, Settings, Span, formats
from diffusionner.batching import EncodedCorpus
from diffusionner.diffusion import Schedule
from diffusionner.diffusion.beliefs import CandidateSet, softmax
from diffusionner.errors import DataError, SettingsError
from diffusionner.storage.beliefs import read_beliefs
from models import lively_model
from reproduce.belief_fitting import LabelledSet, fit_beliefs, label_candidates
from reproduce.cli import fit_beliefs as command
from reproduce.cross_fitting import (
    PARTS,
    CorpusSplits,
    FoldRun,
    first_documents,
    number_documents,
    read_candidates,
)

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
    assert number_documents(sentences).tolist() == [0, 0, 1, 2, 3, 0]
    assert first_documents(sentences, 2) == [*sentences[:3], sentences[5]]
    assert first_documents(sentences, None) == sentences
    assert len(number_documents([])) == 0


def test_each_half_reads_the_other():
    splits = CorpusSplits("conll03", corpus(5), corpus(1), corpus(2))
    assert splits.learned("whole") == splits.train
    assert splits.read("whole") == {"dev": splits.dev, "test": splits.test}
    for part in PARTS[1:]:
        learned, (read,) = splits.learned(part), splits.read(part).values()
        assert not {s.doc for s in learned} & {s.doc for s in read}
        assert sorted(s.doc for s in learned + read) == sorted(s.doc for s in splits.train)
    assert splits.learned("first") == list(*splits.read("second").values())


def test_candidates_of_other_sentences_are_not_reused(tmp_path: Path):
    """With another document in the other half, a half learns the same but reads more."""
    runs = [
        FoldRun(CorpusSplits("x", corpus(n), corpus(1), corpus(1)), "first", Settings(), tmp_path)
        for n in (3, 4)
    ]
    assert runs[0].model == runs[1].model
    assert runs[0].candidates_file("first") != runs[1].candidates_file("first")


def test_gold_types_of_candidates(encoder_folder: Path):
    ner = lively_model(encoder_folder, "decoder.initializer=types", "inference.start=candidates")
    types = frozenset(["PER"])
    sentences = [
        Sentence(["Ada", "left"], [Span(0, 1, "PER")], "a"),
        Sentence(["London", "is", "large"], [Span(0, 1, "GPE")], "a"),
        Sentence(["Paris", "is", "large"], [Span(0, 1, "PER")], "b", types=types),
    ]
    encoded = EncodedCorpus(sentences, ner.subwords, ner.settings.encoder)
    columns = read_candidates(ner, sentences)
    sets = label_candidates(columns, encoded, sentences, ner.labels)
    assert [len(set(one.candidates.sentence[0])) for one in sets] == [2, 1]
    gold = {(0, 0, 0): "PER", (1, 0, 0): "GPE", (2, 0, 0): "PER"}
    seen = 0
    for one in sets:
        c = one.candidates
        for *span, type_id in zip(c.sentence[0], c.left[0], c.right[0], one.types[0], strict=True):
            other = len(ner.labels) if span[0] < 2 else -1  # there it may be of another type
            label = gold.get(tuple(span))
            assert type_id == (other if label is None else ner.labels.index(label))
            seen += label is not None
    assert seen == 3


def test_fits_documents_with_different_types():
    random = np.random.default_rng(0)

    def document(types: int, count: int) -> LabelledSet:
        logits = random.normal(size=(1, count, types + 1)).astype(np.float32)
        numbers = [np.arange(count)[None]] * 6
        there = np.ones((1, count), dtype=bool)
        candidates = CandidateSet(logits, softmax(logits), *numbers, there)
        return LabelledSet(candidates, random.integers(0, types + 1, (1, count)))

    documents = [document(types, count) for types in (1, 2, 5) for count in (1, 3, 4)]
    first, again = (fit_beliefs(documents, Schedule("cosine", 100), 0) for _ in range(2))
    for one, other in zip(first.weights(), again.weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.abs(first.weights().output).max() > 0


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
        ["| CoNLL03, 3 test documents", "", "0 (initializer alone)"],
        ["| CoNLL03, 3 test documents", "this corpus", "1"],
        ["| CoNLL03, 3 test documents", "this corpus", "2"],
        ["| CoNLL03, 3 test documents", "this corpus", "5"],
    ]
    assert sum(line[1] == "other corpora" for line in lines) == 6
    assert f"{written}: fitted on conll03, litbank" in table
    assert np.abs(read_beliefs(written).output).max() > 0
    assert len(list(work.glob("*/log.jsonl"))) == 6
    with np.load(next(work.glob("litbank-first-*.npz"))) as arrays:
        assert set(arrays["sentence"]) == set(range(6))  # of the three documents it did not learn
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*")}
    assert run() == table
    after = {path: path.stat().st_mtime_ns for path in work.rglob("*")}
    assert after == before, "nothing is trained or read again"


@pytest.mark.parametrize(
    ("corpora", "changes", "message"),
    [
        (["conll30"], [], "unknown corpus 'conll30'; .*conll03"),
        (["genia"], [], "GENIA: no .*train_dev.jsonl"),
        (["conll03"], ["decoder.initializer=spans"], "beliefs need decoder.initializer=types"),
    ],
)
def test_errors_before_anything_is_trained(
    encoder_folder: Path, data: Path, tmp_path: Path, corpora, changes, message
):
    with pytest.raises(SettingsError, match=message):
        command(corpora, str(encoder_folder), data, changes=changes, work=tmp_path / "work")
    few = CorpusSplits("conll03", corpus(1), corpus(1), corpus(1))
    with pytest.raises(DataError, match="conll03: cross-fitting needs two training documents"):
        few.check()
