"""Exported models find the same entities as torch, without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from corpus_files import put

from diffusionner import DiffusionNER, Entity, formats
from diffusionner.batching import EncodedCorpus
from diffusionner.corpus import Sentence
from diffusionner.diffusion import Candidates, ReverseStart
from diffusionner.errors import SettingsError
from diffusionner.export import export
from diffusionner.inference import onnx_engine
from diffusionner.inference.onnx_engine import OnnxEngine
from diffusionner.storage.config import GRAPHS, WEIGHTS
from models import LABELS, assert_same, assert_same_refinements

TEXTS = [
    "Ada Lovelace met Charles Babbage in London. They spoke of engines! Did they?",
    "",
    "Zoe\u0308 went to 北京 👍🏽, on the 4th.\r\n\r\nNobody saw her.",
    "Rome",
]


# The same entities


@pytest.mark.parametrize("number", ["auto", 1, 7, 40])
@pytest.mark.parametrize("eta", [0.0, 0.5])
@pytest.mark.parametrize("steps", [1, 5])
def test_the_same_entities(pair, sentences, docs, steps, eta, number):
    options = {"steps": steps, "eta": eta, "spans": number}
    expected, found = (model.predict_tokens(sentences, docs, **options) for model in pair)
    assert sum(map(len, expected)) > 3
    assert_same(found, expected)


def assert_same_candidates(
    found: Candidates[np.ndarray], expected: Candidates[np.ndarray], slots: np.ndarray
) -> None:
    """Compare all spans of the slots [B, K], also those that are no entities."""
    assert found.left.shape[:2] == expected.left.shape[:2]
    count = slots.shape[1]
    for step in range(found.left.shape[1]):
        for name, values in vars(found).items():
            if values is None:
                assert getattr(expected, name) is None
                continue
            own = np.zeros((*slots.shape, *values.shape[3:]), values.dtype)
            own[:, : values.shape[2]] = values[:, step]
            other = vars(expected)[name][:, step, :count]
            if name in ("summed_probability", "type_probability"):
                assert np.allclose(own[slots], other[slots], atol=1e-4), name
            elif name in ("slots", "is_entity"):
                assert np.array_equal(own, other), name
            else:
                assert np.array_equal(own[slots], other[slots]), name


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("chosen", [slice(1), slice(3), slice(None)])
def test_the_same_candidates(pair, sentences, chosen, average):
    model, ner = pair
    corpus = EncodedCorpus([Sentence(w) for w in sentences], ner.subwords, ner.settings.encoder)
    batch = corpus.batch(np.arange(len(corpus))[chosen])
    slots = np.arange(23) < 1 + np.arange(len(batch.lengths))[:, None] * 5 % 23
    options = {"steps": 5, "eta": 0.5, "average_steps": average}
    inference = ner.settings.with_inference(options).inference
    expected, found = (
        one.engine.launch(batch, ReverseStart(slots), inference)() for one in (model, ner)
    )
    assert found.left.shape[1] == (5 if average else 1)
    assert_same_candidates(found, expected, slots)


def test_the_same_refinement_of_given_spans(pair, sentences, docs):
    items = [
        (words, [(i, len(words)) for i in range(min(number, len(words)))], doc)
        for number, (words, doc) in enumerate(zip(sentences, docs, strict=True))
    ]
    for options in ({}, {"steps": 5, "timestep": 60}, {"steps": 5, "eta": 0.5}, {"batch_size": 2}):
        expected, found = (list(model.refine_pipe(items, True, **options)) for model in pair)
        assert sum(len(one.entities) for one in expected) > 3 and not expected[0].entities
        assert_same_refinements(found, expected)


def test_a_model_without_an_initializer_has_no_candidates(ner):
    with pytest.raises(SettingsError, match=r"needs decoder\.initializer=spans"):
        ner.predict_tokens([["Ada"]], start="candidates")
    assert "initial" not in ner.engine.encoder.outputs + ner.engine.denoiser.inputs


def test_the_same_entities_in_texts(pair):
    expected, found = (list(model.pipe(TEXTS)) for model in pair)
    assert found[1] == [] and all(found[::2])
    assert_same(found, expected)
    for text, entities in zip(TEXTS, found, strict=True):
        assert all(text[e.start : e.end] == e.text for e in entities)
        assert all(type(e.start) is type(e.end) is int and type(e.score) is float for e in entities)


def test_the_same_entities_for_other_options(pair, sentences):
    for options in ({"seed": 3}, {"phi": 2.0}, {"overlap": "flat"}, {"overlap": "nested"}):
        expected, found = (model.predict_tokens(sentences, **options) for model in pair)
        assert_same(found, expected)
    corpus = [Sentence(words) for words in sentences]
    expected, found = (model.predict_sentences(corpus) for model in pair)
    assert found == expected


@pytest.mark.parametrize("number", ["auto", 30])
def test_entities_do_not_depend_on_the_batch(pair, sentences, docs, number):
    _, ner = pair
    expected = ner.predict_tokens(sentences, docs, spans=number)
    for size in (1, 3, 100):
        again = ner.predict_tokens(sentences, docs, spans=number, batch_size=size)
        assert_same(again, expected)
    alone = [ner.predict_tokens([words], spans=number)[0] for words in sentences]
    order = np.random.default_rng(0).permutation(len(sentences)).tolist()
    shuffled = ner.predict_tokens([sentences[i] for i in order], spans=number, batch_size=4)
    assert_same(shuffled, [alone[i] for i in order])


def test_threads_share_a_batch(pair, sentences, monkeypatch):
    """The result does not depend on their number or on where the batch is cut."""
    _, ner = pair
    corpus = EncodedCorpus([Sentence(w) for w in sentences], ner.subwords, ner.settings.encoder)
    batch = corpus.batch(np.arange(len(corpus)))
    slots = np.arange(23) < 1 + np.arange(len(corpus))[:, None] * 5 % 23
    given = np.zeros((*slots.shape, 2), dtype=np.int64)
    starts = [ReverseStart(slots), ReverseStart(slots[:, :0], True, given, slots)]
    inference = ner.settings.inference
    expected = [ner.engine.launch(batch, start, inference)() for start in starts]
    monkeypatch.setattr(onnx_engine, "PART", 1)
    for threads in (1, 3, 100):
        monkeypatch.setattr(ner.engine, "threads", threads)
        for start, candidates in zip(starts, expected, strict=True):
            found = ner.engine.launch(batch, start, inference)()
            assert found.is_entity.any()
            assert_same_candidates(found, candidates, slots)


def test_words_without_characters(pair):
    for model in pair:
        found = model.predict_tokens([[""], ["", "Ada", ""]])
        assert all(0 <= e.start < e.end <= 3 for entities in found for e in entities)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="not on this system")
def test_no_more_threads_than_available_cores(exported, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        engine = DiffusionNER.from_pretrained(exported).engine
    finally:
        os.sched_setaffinity(0, allowed)
    assert engine.threads == 1
    assert DiffusionNER.from_pretrained(exported).engine.threads == len(allowed)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert DiffusionNER.from_pretrained(exported).engine.threads == 7


def test_attributes(rich_pair):
    torch_ner, ner = rich_pair
    assert isinstance(ner.engine, OnnxEngine)
    assert ner.labels == LABELS
    assert ner.settings == torch_ner.settings
    bare = {"backend": None, "files": None, "hf": None, "caches": {}}
    assert replace(ner.subwords, **bare) == replace(torch_ner.subwords, **bare)


# Without torch


BLOCK = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "accelerate", "tensorboard"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing())
"""


def without_torch(folder: Path, program: str) -> str:
    """Run a program as if torch and its companions were not installed; return its output."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join(os.path.abspath(entry) for entry in entries if entry)
    done = subprocess.run(
        [sys.executable, "-c", BLOCK + program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_predicting_without_torch(project, ner, sentences):
    put(project, {"words.json": json.dumps(sentences)})
    program = """
import json
from diffusionner import DiffusionNER
ner = DiffusionNER.from_pretrained("exported")
words = json.load(open("words.json", encoding="utf-8"))
given = [one.entities for one in ner.refine_pipe(((w, [(0, 1)]) for w in words if w), only=True)]
sys.modules["scipy"] = None
ner("Ada met Charles.", start="noise", steps=2)
ner.steps("Ada met Charles.")
print(json.dumps([ner.predict_tokens(words), list(ner.pipe(json.loads(input()))), given]))
"""
    program = program.replace("input()", repr(json.dumps(TEXTS)))
    tokens, texts, given = (
        [[Entity(*e) for e in entities] for entities in part]
        for part in json.loads(without_torch(project, program))
    )
    assert_same(tokens, ner.predict_tokens(sentences))
    assert_same(texts, list(ner.pipe(TEXTS)))
    items = ((words, [(0, 1)]) for words in sentences if words)
    assert_same(given, [one.entities for one in ner.refine_pipe(items, only=True)])


def test_the_command_line_without_torch(project, ner):
    program = """
from diffusionner.cli import main
import sys
text = "Ada Lovelace met Charles Babbage in London."
common = ["--model", "exported", "--spans", "9"]
for arguments in (
    ["predict", text, "--output", "predicted.jsonl", *common],
    ["evaluate", "--data", "dev.jsonl", "--json", "scores.json", "--model", "exported"],
):
    sys.argv = ["diffusionner", *arguments]
    try:
        main()
    except SystemExit as done:
        assert not done.code, done.code
assert "torch" not in sys.modules
"""
    without_torch(project, program)
    (record,) = map(json.loads, (project / "predicted.jsonl").read_text().splitlines())
    expected = ner("Ada Lovelace met Charles Babbage in London.", spans=9)
    assert expected
    assert_same([[Entity(**e) for e in record["entities"]]], [expected])
    assert json.loads((project / "scores.json").read_text())["micro"]["f1"] == 1


def test_a_torch_model_without_torch_is_refused(project):
    program = """
from diffusionner import DiffusionNER
from diffusionner.errors import CheckpointError
for path in ("model", "nowhere"):
    try:
        DiffusionNER.from_pretrained(path)
    except CheckpointError as error:
        print(error)
"""
    first, second = without_torch(project, program).splitlines()
    assert "'model' is not an exported model, and others need the package 'torch'" in first
    assert "no model in 'nowhere'" in second


# The command line


def test_predict(cli, project, exported):
    arguments = ("--spans", 9, "--steps", 3, "--output", "-")
    text = "Ada Lovelace met Charles Babbage in London."
    found, expected = (
        cli("predict", text, "--model", model, *arguments).records[0]["entities"]
        for model in (exported, project / "model")
    )
    assert expected
    assert_same([[Entity(**e) for e in found]], [[Entity(**e) for e in expected]])
    shown = cli("predict", text, "--model", exported, "--device", "cpu")
    assert shown.status == 0 and "Lovelace" in shown.out


def test_export_reports_f1(cli, recorded, project, tmp_path):
    arguments = ("--model", project / "model", "--dev", project / "dev.jsonl")
    result = cli("export", tmp_path / "a" / "new", *arguments, "--format", "jsonl")
    assert result.status == 0, result.err
    assert "100.00 before, 100.00 after" in result.out
    assert {path.name for path in (tmp_path / "a" / "new").iterdir()} == {
        "config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS, *GRAPHS,
    }  # fmt: skip


def test_an_exported_model_is_exported_again(cli, recorded, project, exported, tmp_path):
    arguments = ("--model", exported, "--dev", project / "dev.jsonl")
    result = cli("export", tmp_path / "again", *arguments)
    assert result.status == 0, result.err
    for name in GRAPHS:
        assert (tmp_path / "again" / name).read_bytes() == (exported / name).read_bytes()


def test_exports_are_reproducible(recorded, rich, project, exported, tmp_path):
    export(rich, tmp_path / "again", formats.read(project / "dev.jsonl"))
    for path in exported.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name
