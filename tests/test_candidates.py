"""The reverse process from the initializer's candidates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusionner.diffusion.span_counts import LEAST_SCORE, span_counts

from diffusionner import DiffusionNER
from diffusionner.batching import EncodedCorpus
from diffusionner.corpus import Sentence
from diffusionner.errors import SettingsError
from diffusionner.model.initializer import candidates
from diffusionner.model.network import DenoisingNetwork
from diffusionner.settings import Settings
from models import LABELS, assert_same, lively_model, written

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
    """From one word, of which there is a single span, to several windows."""
    words = [word for s in nested_sentences for word in s.words]
    short = [words[at : at + n] for n in (1, 2, 3) for at in range(0, 36, 3)]
    return [*short, words[100:250], *(s.words for s in nested_sentences[:8])]


@contextmanager
def shifted(ner: DiffusionNER, shift: float) -> Iterator[None]:
    """All scores of the initializer are so much higher."""
    bias = ner.network.decoder.initializer.project.bias
    with torch.no_grad():
        bias[-1] += shift
    try:
        yield
    finally:
        with torch.no_grad():
            bias[-1] -= shift


@contextmanager
def watched(network: DenoisingNetwork) -> Iterator[list[tuple[str, torch.Tensor | None]]]:
    """Calls of encoder and decoder in turn, with the slots that the decoder is given."""
    calls: list[tuple[str, torch.Tensor | None]] = []
    hooks = [
        network.encoder.transformer.register_forward_hook(
            lambda *_: calls.append(("encoder", None))
        ),
        network.decoder.register_forward_hook(
            lambda _module, given, _found: calls.append(("decoder", given[3]))
        ),
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("number", ["auto", 20])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("shift", [0.0, 2.0])  # more of the few spans of short ones are likely
def test_a_sentence_alone_and_in_any_batch(ner, sentences, steps, number, shift):
    options = {"steps": steps, "spans": number}
    with shifted(ner, shift):
        alone = [ner.predict_tokens([words], **options)[0] for words in sentences]
        assert sum(map(len, alone)) > len(sentences)
        for size in (3, 1000):
            assert_same(ner.predict_tokens(sentences, batch_size=size, **options), alone)
        order = np.random.default_rng(0).permutation(len(sentences)).tolist()
        mixed = ner.predict_tokens([sentences[i] for i in order], batch_size=7, **options)
        assert_same(mixed, [alone[i] for i in order])


@pytest.mark.parametrize("steps", [1, 2, 30])  # 30: more than a fifth of all
@pytest.mark.parametrize("number", ["auto", 20])
def test_the_sentence_is_encoded_once(ner, sentences, steps, number):
    with watched(ner.network) as calls:
        ner.predict_tokens(sentences[-3:], steps=steps, spans=number)
    assert [name for name, _ in calls] == ["encoder"] + ["decoder"] * steps


def test_nothing_is_random(ner, sentences):
    expected = ner.predict_tokens(sentences, seed=0)
    assert ner.predict_tokens(sentences, seed=1) == expected
    noise = [ner.predict_tokens(sentences, start="noise", seed=seed) for seed in (0, 1)]
    assert noise[0] != noise[1] and noise[0] != expected
    fresh = [ner.predict_tokens(sentences, eta=1.0, steps=3, seed=seed) for seed in (0, 1)]
    assert fresh[0] != fresh[1], "but eta adds noise"


def scores_of(ner: DiffusionNER, sentences: list[list[str]]) -> torch.Tensor:
    """What the initializer says of every span, [B, M, M]."""
    corpus = EncodedCorpus([Sentence(w) for w in sentences], ner.subwords, ner.settings.encoder)
    batch = to_tensors(corpus.batch(np.arange(len(sentences))), CPU)
    with torch.no_grad():
        scores: torch.Tensor = ner.network.encode(batch).initial.spans
    return scores


def test_it_is_as_if_the_candidates_were_given(ner, sentences):
    """At the timestep whose noisy spans they are taken for."""
    words = sentences[-4:]
    scores = scores_of(ner, words)
    given = [
        [(left, right + 1) for left, right in own] for own in candidates(scores, 9)[0].tolist()
    ]
    assert ner.network.schedule.candidate_start == 20
    for steps in (1, 3):
        expected = ner.predict_tokens(words, from_spans=given, timestep=20, steps=steps)
        assert_same(ner.predict_tokens(words, spans=9, steps=steps), expected)
        later = ner.predict_tokens(words, from_spans=given, timestep=30, steps=steps)
        assert later != expected
    # What is given comes first.
    other = ner.predict_tokens(words, from_spans=[[(0, 1)]] * 4)
    assert_same(other, ner.predict_tokens(words, from_spans=[[(0, 1)]] * 4, start="noise"))


def test_auto_denoises_what_is_likely(ner, sentences):
    words = sentences[-8:]
    scores = scores_of(ner, words)
    good = (scores >= LEAST_SCORE).sum((1, 2))
    expected = np.minimum(
        good.numpy(), span_counts(np.array(list(map(len, words))), "auto", "candidates")
    )
    with watched(ner.network) as calls:
        ner.predict_tokens(words, batch_size=100, steps=1)
        ner.predict_tokens(words, batch_size=100, steps=1, spans=60)
    (_, few), (_, many) = (call for call in calls if call[0] == "decoder")
    assert sorted(few.sum(1).tolist()) == sorted(expected.tolist())
    assert few.sum(1).min() >= 1 and few.shape[1] == few.sum(1).max() < 60, "no wider than needed"
    assert many is None, "a fixed number needs no mask"


def test_auto_denoises_one_span_at_least(ner, sentences):
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


def test_saved_and_loaded_again(ner, sentences, cli, tmp_path):
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
