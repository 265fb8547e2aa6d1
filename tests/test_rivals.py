"""The rivals learn, and the whole package treats them as the main method."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from services import running

import reproduce.cli
from benchmarks.cli import main
from benchmarks.throughput import ENCODER, TEXT, WORDS
from diffusionner import DiffusionNER, formats
from diffusionner.corpus import Sentence
from diffusionner.errors import SettingsError
from diffusionner.evaluation.scorer import score
from diffusionner.export import export
from diffusionner.service.worker import Predictor
from diffusionner.settings import Settings
from diffusionner.training.trainer import Trainer
from models import assert_same, by_heart, spans

EPOCHS = {"crf": 60, "biaffine": 40, "queries": 80, "autoregressive": 60}


@pytest.fixture(scope="module")
def few(nested_sentences: list[Sentence]) -> list[Sentence]:
    return nested_sentences[:8]


@pytest.fixture(scope="module", params=EPOCHS)
def learned(
    request, still_encoder: Path, few: list[Sentence], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Settings, float]:
    """A run that has learned a few nested sentences by heart, and its F1."""
    folder = tmp_path_factory.mktemp(request.param)
    settings = by_heart(few, still_encoder, folder).override(
        [
            f"method={request.param}",
            f"training.epochs={EPOCHS[request.param]}",
            "training.evaluate_every=20",
            "training.matches_per_entity=1",
            "diffusion.spans=12",
            "decoder.layers=1",
        ]
    )
    return settings, Trainer(settings).run().best_f1


@pytest.fixture(scope="module")
def ner(learned: tuple[Settings, float]) -> DiffusionNER:
    return DiffusionNER.from_pretrained(learned[0].training.output, "cpu")


# --- What is learned, kept and found again ----------------------------------------------------


def test_learns_nested_sentences_by_heart(learned, ner, few):
    settings, f1 = learned
    assert f1 == 1.0
    found = ner.predict_sentences(few)
    assert score([s.entities for s in few], found).micro.f1 == 1.0
    assert any(len(s.entities) > 1 for s in few)
    config = json.loads((Path(settings.training.output) / "config.json").read_text())
    assert config["settings"]["method"] == settings.method == ner.settings.method


def test_scores_are_probabilities(ner, few):
    for entities in ner.predict_tokens([s.words for s in few], threshold=0.0, overlap="all"):
        assert all(0 <= e.score <= 1 for e in entities)


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_saved_and_loaded(ner, few, tmp_path, precision):
    ner.save_pretrained(tmp_path / "copy", precision)
    again = DiffusionNER.from_pretrained(tmp_path / "copy", "cpu")
    words = [s.words for s in few]
    ours, theirs = ner.predict_tokens(words), again.predict_tokens(words)
    if precision == "float32":
        assert_same(theirs, ours)
    else:
        assert [spans(e) for e in theirs] == [spans(e) for e in ours]


@torch.no_grad()
def test_a_sentence_alone_and_in_any_batch(ner, nested_sentences):
    words = [s.words for s in nested_sentences] + [["Alone"]]
    options = {"threshold": 0.0, "overlap": "all"}
    alone = [ner.predict_tokens([one], **options)[0] for one in words]
    assert sum(map(len, alone)) > len(words)
    for size in (2, 100):
        assert_same(ner.predict_tokens(words, batch_size=size, **options), alone)


def test_bf16(ner, few, learned):
    rounded = DiffusionNER.from_pretrained(learned[0].training.output, "cpu", precision="bf16")
    assert score([s.entities for s in few], rounded.predict_sentences(few)).micro.f1 > 0.9


def test_commands(learned, few, cli, tmp_path):
    folder, corpus = learned[0].training.output, tmp_path / "few.jsonl"
    formats.write(corpus, few * 3)
    result = cli("evaluate", "--model", folder, "--data", corpus, "--json", tmp_path / "s.json")
    assert result.status == 0, result.err
    lines = "".join(json.dumps({"tokens": s.words}) + "\n" for s in few).encode()
    result = cli("predict", "--model", folder, "--input", "-", "--output", "-", stdin=lines)
    gold = [[tuple(e) for e in s.entities] for s in few]
    found = [[(e["start"], e["end"], e["label"]) for e in r["entities"]] for r in result.records]
    assert list(map(sorted, found)) == list(map(sorted, gold))
    calibrated = tmp_path / "calibrated"
    result = cli("calibrate", calibrated, "--model", folder, "--data", corpus)
    assert result.status == 0, result.err
    assert DiffusionNER.from_pretrained(calibrated, "cpu").calibration is not None
    result = cli("evaluate", "--model", folder, "--data", corpus, "--steps", "5")
    assert result.status == 2 and "steps=5 applies to denoising only" in result.err


@pytest.mark.parametrize("learned", ["crf", "autoregressive"], indirect=True)
def test_speed_measurement(learned, few, cli, tmp_path):
    corpus, path = tmp_path / "few.jsonl", tmp_path / "bench.json"
    formats.write(corpus, few)
    whole = learned[0].method == "crf"  # the rest takes as long again
    result = cli(
        "speed", "--quick", "--seconds", "0.05", "--device", "cpu", "--data", corpus,
        "--model", learned[0].training.output, "--json", path,
        *(["--scaling"] if whole else ["--no-train"]), main=main,
    )  # fmt: skip
    assert result.status == 0, result.err
    record = json.loads(path.read_text())
    measured = {(p["what"], p["steps"], p["spans"]) for p in record["throughput"]}
    assert measured == {(what, None, None) for what in (ENCODER, WORDS, TEXT)}
    assert record["agreement"] and all(one["holds"] for one in record["agreement"])
    assert record["stages"] == []
    assert len(record["training"]) == len(record["scaling"]) == whole


def test_service(ner):
    with running(Predictor(ner)) as client:
        assert client.entities("Some text.").is_success
        refused = client.post("/v1/steps", json={"text": "Some text."})
        assert refused.status_code == 422
        assert (
            f"method {ner.settings.method} has no denoising steps"
            in refused.json()["error"]["message"]
        )
        assert client.entities("Some text.", steps=2).status_code == 422
        (model,) = client.get("/v1/models").json()["models"]
        assert (model["method"], model["steps"], model["spans"]) == (
            ner.settings.method,
            None,
            None,
        )


def test_what_only_denoising_has(ner, few, tmp_path):
    words = [s.words for s in few]
    for ask in (
        lambda: ner.steps("Some text."),
        lambda: ner.refine(words[0], [(0, 1)]),
        lambda: ner("Some text.", spans=60),
        lambda: export(ner, tmp_path / "onnx", few),
    ):
        with pytest.raises(SettingsError, match=f"denoising only.* is {ner.settings.method};"):
            ask()


def test_a_rival_is_trained_by_the_command(config, cli, tmp_path):
    output = tmp_path / "rival"
    result = cli(
        "train", config, "method=crf", f"training.output={output}", main=reproduce.cli.main
    )
    assert result.status == 0, result.err
    settings = DiffusionNER.from_pretrained(output).settings
    assert settings.method == "crf" and settings.options["levels"] >= 1
    given = ("--model", output, "--data", config.with_name("train.jsonl"))
    result = cli("evaluate", *given, main=reproduce.cli.main)
    assert result.status == 0, result.err
