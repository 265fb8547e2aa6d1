"""The reverse process from the initializer's candidates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from diffusionner import DiffusionNER
from diffusionner.batching import EncodedCorpus
from diffusionner.corpus import Sentence
from diffusionner.diffusion import span_slots
from diffusionner.diffusion.sampler import MIN_CANDIDATE_SCORE
from diffusionner.errors import SettingsError
from diffusionner.model.initializer import best_spans
from diffusionner.model.network import DenoisingNetwork
from diffusionner.model.tensors import batch_to_device
from diffusionner.settings import Settings
from models import LABELS, assert_same, lively_model, refined, shifted, written

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return lively_model(
        encoder_folder,
        "decoder.initializer=spans",
        "inference.start=candidates",
        "inference.spans=auto",
    )


@pytest.fixture(scope="module")
def sentences(nested_sentences: list[Sentence]) -> list[list[str]]:
    """From one word, with a single span, to several windows."""
    words = [word for s in nested_sentences for word in s.words]
    short = [words[at : at + n] for n in (1, 2, 3) for at in range(0, 36, 3)]
    return [*short, words[100:250], *(s.words for s in nested_sentences[:8])]


@contextmanager
def watched(network: DenoisingNetwork) -> Iterator[list[tuple[str, torch.Tensor | None]]]:
    """Record calls of encoder and decoder, with the mask of slots that the decoder gets."""
    calls: list[tuple[str, torch.Tensor | None]] = []
    hooks = [
        network.encoder.transformer.register_forward_hook(
            lambda *_: calls.append(("encoder", None))
        ),
        network.decoder.register_forward_hook(
            lambda _module, inputs, _output: calls.append(("decoder", inputs[3]))
        ),
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("number", ["auto", 20])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("shift", [0.0, 2.0])  # with 2, more spans of short sentences are likely
def test_entities_do_not_depend_on_the_batch(ner, sentences, steps, number, shift):
    options = {"steps": steps, "spans": number}
    with shifted(ner, shift):
        alone = [ner.predict_tokens([words], **options)[0] for words in sentences]
        assert sum(map(len, alone)) > len(sentences)
        for size in (3, 1000):
            assert_same(ner.predict_tokens(sentences, batch_size=size, **options), alone)
        order = np.random.default_rng(0).permutation(len(sentences)).tolist()
        mixed = ner.predict_tokens([sentences[i] for i in order], batch_size=7, **options)
        assert_same(mixed, [alone[i] for i in order])


@pytest.mark.parametrize("steps", [1, 2, 30])  # 30: more than a fifth of T
@pytest.mark.parametrize("number", ["auto", 20])
def test_the_sentence_is_encoded_once(ner, sentences, steps, number):
    with watched(ner.network) as calls:
        ner.predict_tokens(sentences[-3:], steps=steps, spans=number)
    assert [name for name, _ in calls] == ["encoder"] + ["decoder"] * steps


def test_candidates_need_no_noise(ner, sentences):
    expected = ner.predict_tokens(sentences, seed=0)
    assert ner.predict_tokens(sentences, seed=1) == expected
    noise = [ner.predict_tokens(sentences, start="noise", seed=seed) for seed in (0, 1)]
    assert noise[0] != noise[1] and noise[0] != expected
    fresh = [ner.predict_tokens(sentences, eta=1.0, steps=3, seed=seed) for seed in (0, 1)]
    assert fresh[0] != fresh[1], "but eta adds noise"


def test_noise_has_more_spans_than_training(ner, sentences):
    training = ner.settings.diffusion.spans
    expected = ner.predict_tokens(sentences, start="noise", spans=round(2.5 * training))
    assert ner.predict_tokens(sentences, start="noise") == expected
    assert ner.predict_tokens(sentences, start="noise", spans=training) != expected
    _, (trajectory,) = ner.steps("Ada met Charles.")
    assert {len(step.spans) for step in trajectory.steps} == {training}, "few enough to draw"


def scores_of(ner: DiffusionNER, sentences: list[list[str]]) -> torch.Tensor:
    """Return the initializer's score of every span, [B, M, M]."""
    corpus = EncodedCorpus([Sentence(w) for w in sentences], ner.subwords, ner.settings.encoder)
    batch = batch_to_device(corpus.batch(np.arange(len(sentences))), CPU)
    with torch.no_grad():
        scores: torch.Tensor = ner.network.prepare(batch).initial.spans
    return scores


def test_starting_from_candidates_equals_giving_them(ner, sentences):
    """At the timestep assigned to candidates."""
    words = sentences[-4:]
    scores = scores_of(ner, words)
    given = [
        [(left, right + 1) for left, right in own] for own in best_spans(scores, 9)[0].tolist()
    ]
    assert ner.network.schedule.candidate_start == 20
    for steps in (1, 3):
        expected = ner.predict_tokens(words, spans=9, steps=steps)
        found = [one.entities for one in refined(ner, words, given, timestep=20, steps=steps)]
        # Those that lie beside all given spans are left out.
        assert sum(map(len, found)) > 4
        for few, many in zip(found, expected, strict=True):
            assert_same([few], [[e for e in many if e[:2] in {f[:2] for f in few}]])
        later = refined(ner, words, given, timestep=30, steps=steps)
        assert [one.entities for one in later] != found


def test_auto_denoises_likely_candidates(ner, sentences):
    words = sentences[-8:]
    scores = scores_of(ner, words)
    likely = (scores >= MIN_CANDIDATE_SCORE).sum((1, 2)).numpy()
    lengths = np.array([len(one) for one in words])
    expected = np.minimum(likely, span_slots(lengths, "auto", "candidates").sum(1))
    with watched(ner.network) as calls:
        ner.predict_tokens(words, batch_size=100, steps=1)
        ner.predict_tokens(words, batch_size=100, steps=1, spans=60)
    (_, few), (_, many) = (call for call in calls if call[0] == "decoder")
    assert sorted(few.sum(1).tolist()) == sorted(expected.tolist())
    assert few.sum(1).min() >= 1 and few.shape[1] == few.sum(1).max() < 60, "as narrow as possible"
    assert many is None, "a fixed number needs no mask"


def test_auto_denoises_at_least_one_span(ner, sentences):
    with shifted(ner, -100), watched(ner.network) as calls:
        found = ner.predict_tokens(sentences[-8:], batch_size=100, steps=1)
        ner.predict_tokens(sentences, batch_size=100, steps=1)
    assert calls[1][1].tolist() == [[True]] * 8
    assert sum(map(len, found)) > 1
    assert all(slots.any(1).all() for _, slots in calls[1::2])


# Settings and folders


def test_candidates_need_an_initializer(encoder_folder, refused, tmp_path):
    message = r"inference\.start=candidates needs decoder\.initializer=spans"
    with pytest.raises(SettingsError, match=message):
        Settings().override(["decoder.initializer=none"])
    assert Settings().override(["decoder.initializer=none", "inference.start=noise"])
    plain = lively_model(encoder_folder)
    with pytest.raises(SettingsError, match=message):
        plain.predict_tokens([["Ada"]], start="candidates")
    with pytest.raises(SettingsError, match=r"inference\.start='candidate' is not valid"):
        plain.predict_tokens([["Ada"]], start="candidate")
    plain.save_pretrained(tmp_path / "plain")
    err = refused("predict", "Ada", "--model", tmp_path / "plain", "--start", "candidates")
    assert "inference.start=candidates needs decoder.initializer=spans" in err


def test_save_and_load(ner, sentences, cli, tmp_path):
    ner.save_pretrained(tmp_path / "model")
    again = DiffusionNER.from_pretrained(tmp_path / "model", device="cpu")
    assert again.settings == ner.settings and again.labels == LABELS
    for options in ({}, {"start": "noise"}, {"spans": 20, "steps": 3}):
        expected = ner.predict_tokens(sentences, **options)
        assert again.predict_tokens(sentences, **options) == expected
    text = "Ada met the wife of Charles Babbage."
    for start in ("noise", "candidates"):
        arguments = ("--model", tmp_path / "model", "--start", start, "--output", "-")
        result = cli("predict", text, *arguments)
        expected = [written(e) for e in ner(text, start=start)]
        assert result.status == 0 and result.records[0]["entities"] == expected
