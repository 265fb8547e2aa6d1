"""Exported models that start from the candidates of an initializer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exports import own_dev, with_graphs_of

from diffusionner import DiffusionNER
from diffusionner import export as exporting
from diffusionner.batching import EncodedCorpus
from diffusionner.corpus import Sentence
from diffusionner.errors import SettingsError
from diffusionner.export import export, int8
from diffusionner.inference import onnx_engine
from diffusionner.inference.onnx_engine import encoder_inputs
from diffusionner.inference.refining import RefinementTask
from diffusionner.inference.stream import PredictionTask
from diffusionner.refinement import PlacedSpan
from models import assert_same, assert_same_refinements


@pytest.mark.parametrize("number", ["auto", 1, 20, 60])
@pytest.mark.parametrize("steps", [1, 3, 30])
@pytest.mark.parametrize("start", ["candidates", "noise"])
def test_the_same_entities(initialized_pair, sentences, start, steps, number):
    options = {"steps": steps, "spans": number, "start": start}
    expected, found = (model.predict_tokens(sentences, **options) for model in initialized_pair)
    assert sum(map(len, expected)) > 3
    assert_same(found, expected)


def test_the_same_entities_for_other_options(initialized_pair, sentences):
    for options in ({"eta": 0.5, "steps": 4}, {"phi": 1.5}, {"overlap": "nested"}):
        expected, found = (model.predict_tokens(sentences, **options) for model in initialized_pair)
        assert_same(found, expected)


@pytest.mark.parametrize("number", ["auto", 20])
@pytest.mark.parametrize("only", [True, False])
def test_the_same_refinement_of_given_spans(initialized_pair, sentences, only, number):
    items = [(words, [(0, 1), (0, len(words))]) for words in sentences if words]
    pair = [  # refine has no option for the number of candidates
        DiffusionNER(ner.engine, ner.subwords, ner.settings.with_inference({"spans": number}))
        for ner in initialized_pair
    ]
    for options in ({}, {"eta": 0.5, "steps": 4}, {"batch_size": 3}):
        expected, found = (list(ner.refine_pipe(items, only, **options)) for ner in pair)
        assert sum(len(one.entities) for one in expected) > 3
        assert_same_refinements(found, expected)


def test_no_steps_without_the_denoiser(initialized_pair, sentences, monkeypatch):
    model, ner = initialized_pair
    if model.settings.decoder.initializer == "spans":
        with pytest.raises(SettingsError, match="use at least one step"):
            ner.predict_tokens(sentences, steps=0)
        return
    monkeypatch.setattr(ner.engine, "denoiser", None)
    corpus = EncodedCorpus([Sentence(w) for w in sentences], ner.subwords, ner.settings.encoder)
    every, given = range(len(sentences)), [[PlacedSpan(0, 0, 0)] for _ in sentences]
    tasks = [RefinementTask(corpus, every, given=given, only=only) for only in (True, False)]
    for task in (PredictionTask(corpus, every), *tasks):
        for number in ("auto", 20):
            inference = ner.settings.with_inference({"steps": 0, "spans": number}).inference
            expected, found = (
                task.launch(one.engine, np.arange(len(corpus)), inference)()
                for one in initialized_pair
            )
            assert expected.gapped is None and found.gapped is None
            for name, array in vars(expected).items():
                if name == "gapped":
                    continue
                wide = name in ("noisy", "logits")
                shown = expected.slots[..., None] if wide else expected.slots
                assert np.allclose(array * shown, vars(found)[name] * shown, atol=1e-4), name


def test_the_same_scores(initialized_pair, sentences):
    model, ner = initialized_pair
    corpus = EncodedCorpus([Sentence(w) for w in sentences], ner.subwords, ner.settings.encoder)
    batch = corpus.batch(np.arange(len(corpus)))
    with torch.no_grad():
        expected = model.network.prepare(batch.map(torch.from_numpy)).initial.spans
    found = ner.engine.encoder.run(encoder_inputs(batch))["initial"]
    assert found.dtype == np.float32
    assert np.allclose(found, expected.numpy(), atol=1e-3)


@pytest.mark.parametrize("number", ["auto", 20])
def test_entities_do_not_depend_on_the_batch(initialized_pair, sentences, number, monkeypatch):
    """Nor those of short sentences, whose few spans repeat; nor on the number of threads."""
    _, ner = initialized_pair
    words = [word for own in sentences for word in own]
    short = [words[at : at + 3] for at in range(0, 90, 3)]
    everything = [*sentences, *short]
    alone = [ner.predict_tokens([own], spans=number)[0] for own in everything]
    for size in (3, 1000):
        assert_same(ner.predict_tokens(everything, spans=number, batch_size=size), alone)
    monkeypatch.setattr(onnx_engine, "PART", 1)
    monkeypatch.setattr(ner.engine, "threads", 5)
    order = np.random.default_rng(0).permutation(len(everything)).tolist()
    mixed = [everything[i] for i in order]
    assert_same(ner.predict_tokens(mixed, spans=number), [alone[i] for i in order])


def test_the_denoiser_reads_the_scores_of_the_encoder(initialized_pair):
    _, ner = initialized_pair
    names = (
        ["initial", "initial_types"] if ner.settings.decoder.initializer == "types" else ["initial"]
    )
    ner("Ada")  # graphs are opened when they run
    for given in (ner.engine.encoder.outputs, ner.engine.denoiser.inputs):
        assert [name for name in given if name.startswith("initial")] == names


# int8


def test_int8_is_calibrated_on_candidates_too(initialized_pair, sentences):
    _, ner = initialized_pair
    corpus = EncodedCorpus([Sentence(w) for w in sentences], ner.subwords, ner.settings.encoder)
    feed = encoder_inputs(corpus.batch(np.arange(2, 5)))
    encoded = {**feed, **ner.engine.encoder.run(feed)}
    feeds = list(int8._denoiser_feeds(ner.engine, [encoded]))
    start = ner.engine.schedule.candidate_start
    assert [int(one["t"]) for one in feeds] == [1, 50, 100, start]
    spans = ner.engine.coordinates.decode(feeds[-1]["x"], feed["lengths"][:, None])
    best, _ = onnx_engine.best_spans(feeds[-1]["initial"], spans.shape[2])
    assert np.array_equal(spans[:, 0], best)


def test_int8_scores_are_close(
    initialized_pair, initialized_export, sentences, tmp_path, monkeypatch
):
    """F1 of random weights does not survive int8, so any change of it is allowed here."""
    model, ner = initialized_pair
    with_graphs_of(initialized_export, monkeypatch)
    monkeypatch.setitem(exporting.LIMITS, "int8", 100)
    export(model, tmp_path / "int8", own_dev(model, sentences), "int8")
    rounded = DiffusionNER.from_pretrained(tmp_path / "int8")
    corpus = EncodedCorpus([Sentence(w) for w in sentences], ner.subwords, ner.settings.encoder)
    inputs = encoder_inputs(corpus.batch(np.arange(len(corpus))))
    expected, found = (one.engine.encoder.run(inputs)["initial"] for one in (ner, rounded))
    real = expected > -1000
    assert np.array_equal(real, found > -1000)
    assert 1e-4 < np.abs(found - expected)[real].mean() < 0.1 * np.abs(expected)[real].mean()
    alone = [rounded.predict_tokens([words])[0] for words in sentences]
    assert sum(map(len, alone)) > 3
    assert_same(rounded.predict_tokens(sentences), alone)
