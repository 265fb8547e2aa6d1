"""Training in one call: from Python, and from the command line without a config file."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from corpus_files import EXCERPT
from safetensors.torch import load_file

import diffusionner
from diffusionner import DiffusionNER, Sentence, Span, evaluate, formats, train
from diffusionner.errors import CheckpointError, SettingsError
from diffusionner.storage import registry
from diffusionner.training import reporter
from diffusionner.training.api import prepare
from diffusionner.training.plan import (
    TIERS,
    evaluation_interval,
    has_documents,
    has_overlaps,
    held_out_sentences,
    training_plan,
)
from models import lively_model

FEW = [
    Sentence(["Ada", "met", "Charles", "in", "London"], [Span(0, 1, "PER"), Span(4, 5, "LOC")]),
    Sentence(["Nothing", "happened", "here"]),
] * 12


@pytest.fixture
def model(encoder_folder: Path, tmp_path: Path) -> Path:
    """The folder of a model with the types FAC, GPE and PER."""
    folder = tmp_path / "model"
    lively_model(
        encoder_folder, "decoder.initializer=types", "encoder.context=1", "inference.spans=7"
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """40 sentences with nested entities."""
    path = tmp_path / "train.jsonl"
    lines = EXCERPT.read_text(encoding="utf-8").splitlines()[:40]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


# --- From Python --------------------------------------------------------------------------------


def test_train_returns_the_model_in_the_output_folder(model, corpus, tmp_path, capsys):
    output = tmp_path / "run"
    ner = train(corpus, dev=corpus, start=model, output=output, epochs=1, batch_size=10)
    assert ner.folder == output
    assert ner.settings.training.epochs == 1
    assert set(ner.labels) == {s.label for one in formats.read(corpus) for s in one.entities}
    assert evaluate(ner, corpus).sentences == 40
    assert DiffusionNER.from_pretrained(output).labels == ner.labels
    said = capsys.readouterr().err
    assert "data: 40 training sentences" in said and "40 dev sentences" in said
    assert f"start: the model {model}" in said and "learned anew" in said
    assert "epochs=1 batch_size=10 encoder_learning_rate=0.0001" in said
    assert "epoch 1: dev F1" in said


def test_train_takes_sentences(model, tmp_path):
    ner = train(FEW, dev=FEW[:4], start=model, output=tmp_path / "run", epochs=1)
    assert ner.labels == ["LOC", "PER"]
    assert ner.settings.data.train is None
    assert ner.settings.inference.overlap == "flat"


def test_documents_are_denoised_where_there_are_any(model, tmp_path):
    """Unless the setting is given, or the initializer knows no types."""
    of_documents = [dataclasses.replace(s, doc=f"doc {i // 6}") for i, s in enumerate(FEW)]

    def chosen(sentences: list[Sentence], *assignments: str) -> bool:
        run = prepare(model, assignments, sentences, sentences[:4])
        said = any("decoder.beliefs=true" in line for line in run.choices)
        assert said == run.settings.decoder.beliefs
        return said

    assert chosen(of_documents)
    assert not chosen(FEW)
    assert not chosen(of_documents, "decoder.beliefs=false")
    assert not chosen(of_documents, "decoder.initializer=spans")
    assert not chosen(of_documents[:2] + FEW)
    assert not prepare(model, [], of_documents, []).settings.decoder.beliefs, "nothing to choose on"


def test_has_documents():
    def of(*docs: str | None) -> bool:
        return has_documents([Sentence(["x"], doc=doc) for doc in docs])

    assert of("a", "a") and of("a", "a", "b", "b") and of("a", "a", None)
    assert not of() and not of("a") and not of("a", "b", "c") and not of(None, None)
    assert not of("a", "a", None, None) and not of("a", "b", "a", "b")


def test_fine_tune_starts_from_the_model(model, corpus, tmp_path):
    ner = DiffusionNER.from_pretrained(model)
    tuned = ner.fine_tune(
        FEW, output=tmp_path / "run", epochs=1, encoder_learning_rate=0, learning_rate=0
    )
    assert (tuned.folder, tuned.labels) == (tmp_path / "run", ["LOC", "PER"])
    before, after = (load_file(path / "model.safetensors") for path in (model, tmp_path / "run"))
    assert all(
        (before[name] == after[name]).all()
        for name in before
        if before[name].shape == after[name].shape and "types" not in name
    )


def test_a_model_without_a_folder_cannot_be_fine_tuned(encoder_folder):
    with pytest.raises(CheckpointError, match="not loaded from one; call save_pretrained"):
        lively_model(encoder_folder).fine_tune(FEW)


def test_train_is_resumed(model, corpus, tmp_path):
    given = {"dev": corpus, "start": model, "output": tmp_path / "run", "epochs": 1}
    train(corpus, **given)
    with pytest.raises(CheckpointError, match="--resume"):
        train(corpus, **given)
    assert train(corpus, **given, resume=True).folder == tmp_path / "run"


def test_settings_by_keyword(model, corpus):
    with pytest.raises(SettingsError, match="unknown setting 'epoch'; did you mean 'epochs'"):
        train(corpus, start=model, epoch=3)
    with pytest.raises(SettingsError, match="unknown setting 'inference'"):
        train(corpus, start=model, inference=3)
    with pytest.raises(SettingsError, match=r"inference\.overlap='flta' is not valid"):
        train(corpus, start=model, inference={"overlap": "flta"})


def test_the_api_is_exported():
    assert diffusionner.train is train and diffusionner.evaluate is evaluate
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = diffusionner.trian


# --- What is chosen -----------------------------------------------------------------------------


def test_a_model_hands_down_its_architecture(model, corpus):
    run = prepare(model, [f"data.train={corpus}", f"data.dev={corpus}"])
    own = DiffusionNER.from_pretrained(model).settings
    with_beliefs = dataclasses.replace(own.decoder, beliefs=True)  # the corpus has documents
    assert run.settings.decoder == with_beliefs and run.settings.diffusion == own.diffusion
    assert run.settings.encoder.context == 1 and run.settings.encoder.name == str(model)
    assert run.settings.inference.spans == 7
    assert run.settings.inference.phi is None, "thresholds are tuned anew"
    assert run.settings.training.ema == diffusionner.Settings().training.ema


def test_an_encoder_gets_the_recommended_recipe(encoder_folder, corpus):
    run = prepare(encoder_folder, [f"data.train={corpus}", f"data.dev={corpus}"])
    default = diffusionner.Settings()
    assert run.settings.decoder == dataclasses.replace(default.decoder, beliefs=True)
    assert run.settings.encoder.name == str(encoder_folder)


def test_overlap_follows_from_the_data(model, corpus):
    assert has_overlaps(formats.read(corpus))
    assert not has_overlaps(FEW)
    assert has_overlaps([Sentence(["a", "b"], [Span(0, 1, "A"), Span(0, 1, "B")])])
    nested = prepare(model, [f"data.train={corpus}"]).settings
    assert nested.inference.overlap == "nested"
    assert prepare(model, [], FEW).settings.inference.overlap == "flat"
    assert prepare(model, ["inference.overlap=all"], FEW).settings.inference.overlap == "all"


def test_without_dev_a_tenth_is_held_out(model):
    run = prepare(model, [], FEW * 5)
    assert (len(run.data.train), len(run.data.dev)) == (108, 12)
    assert "12 dev sentences held out from the end of the training data" in run.choices[0]
    few = prepare(model, [], FEW[:10])
    assert (len(few.data.train), len(few.data.dev)) == (10, 0)
    assert "the last epoch is kept" in few.choices[0]
    assert len(prepare(model, ["data.dev_from_train=3"], FEW).data.dev) == 3
    assert held_out_sentences(10**6) == 1000


def test_labels_that_only_held_out_sentences_have_are_known(model):
    rare = Sentence(["Paris"], [Span(0, 1, "CITY")])
    assert "CITY" in prepare(model, [], [*FEW, rare]).data.labels


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_plans_train_longer_on_more_data(device):
    sizes = (100, 300, 1_000, 3_000, 14_000, 100_000)
    plans = [training_plan(size, device) for size in sizes]
    assert len({reason for _, reason in plans}) == len(TIERS)
    updates = [
        plan["epochs"] * size / plan["batch_size"]
        for size, (plan, _) in zip(sizes, plans, strict=True)
    ]
    assert updates == sorted(updates)
    assert updates[0] >= 300, "the decoder needs a few hundred updates"


def test_dev_is_evaluated_about_eight_times(model):
    for epochs in (1, 5, 12, 25, 60):
        assert epochs / evaluation_interval(epochs) <= 12
    assert prepare(model, ["training.epochs=40"], FEW).settings.training.evaluate_every == 5
    assert prepare(model, ["training.evaluate_every=3"], FEW).settings.training.evaluate_every == 3


# --- On the command line ------------------------------------------------------------------------


def test_command_without_a_config(model, corpus, cli, tmp_path, monkeypatch):
    monkeypatch.setattr(reporter, "LINE_INTERVAL", 0.0)
    output = tmp_path / "run"
    options = ("--data", corpus, "--dev", corpus, "--from", model, "--output", output)
    result = cli("train", *options, "training.epochs=1", "training.batch_size=1")
    assert result.status == 0, result.err
    assert "best dev F1" in result.out
    lines = result.err.splitlines()
    assert lines[0].startswith("data: 40 training sentences")
    assert lines[1].startswith("start: the model")
    assert lines[2].startswith("training: epochs=1 batch_size=1")
    progress = (
        r"epoch 1/1: 20/\d+ sentences · loss [\d.]+ · [\d.]+ sentences/s · dev F1 - · .* left"
    )
    assert re.fullmatch(progress, lines[3])
    saved = json.loads((output / "config.json").read_text())["settings"]
    assert saved["data"]["train"] == str(corpus)
    again = cli("train", *options, "training.epochs=1", "training.batch_size=1", "--resume")
    assert again.status == 0, again.err


def test_options_override_a_config(config, corpus, cli, tmp_path):
    result = cli("train", config, "--data", corpus, "--output", tmp_path / "b", "training.epochs=1")
    assert result.status == 0, result.err
    assert (tmp_path / "b" / "model.safetensors").exists()


def test_a_command_without_data_is_refused(refused):
    assert "give --data FILE, or a config file" in refused("train", "training.epochs=3")
    assert "give --data FILE, or a config file" in refused("train")


def test_a_model_that_is_not_installed(refused, corpus, monkeypatch):
    monkeypatch.setattr(registry, "installed_models", dict)
    assert "pip install ./models/en" in refused("train", "--data", corpus)
