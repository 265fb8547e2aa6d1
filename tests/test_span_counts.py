"""spans="auto": as many noisy spans as a sentence needs, whatever stands beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from corpora import put
from diffusionner.diffusion.span_counts import LEAST, MOST, fewest, span_counts
from diffusionner.inference.predictor import Task, predict
from plain import plain_encoder, plain_inference

from diffusionner import DiffusionNER
from diffusionner.batching import Batch, EncodedCorpus
from diffusionner.corpus import Sentence, Span
from diffusionner.data.ceiling import F1Ceiling, Window, WindowSplitter
from diffusionner.errors import SettingsError
from diffusionner.settings import InferenceSettings, Settings
from diffusionner.storage.encoders import load_tokenizer
from models import assert_same, everything, lively_model, written


def own_count(words: int) -> int:
    return int(span_counts(np.array([words]), "auto", "noise")[0])


# The rule


@pytest.mark.parametrize("start", ["noise", "candidates"])
def test_counts_grow_with_the_sentence_within_bounds(start):
    counts = span_counts(np.arange(1, 600), "auto", start)
    assert counts.dtype == np.int64
    assert counts[0] == LEAST == fewest("auto") and counts[-1] == MOST
    assert (np.diff(counts) >= 0).all() and len(np.unique(counts)) > 20
    within = (counts > LEAST) & (counts < MOST)
    assert (2 * counts[within] > np.arange(1, 600)[within]).all()


def test_crowded_sentences_get_several_spans_for_each_entity():
    words = np.arange(1, 97)
    assert (span_counts(words, "auto", "noise") >= 3 * (words // 2)).all()
    assert (span_counts(words, "auto", "candidates") > words // 2).all(), "one, and some to spare"


def test_a_number_is_everyones():
    assert span_counts(np.array([1, 700, 3]), 20, "noise").tolist() == [20, 20, 20]
    assert fewest(20) == 20


class Recording:
    """An engine that finds nothing but notes what it was given."""

    labels = ("A",)
    subword_step, ahead = 1, 2

    def __init__(self) -> None:
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []

    def find(
        self,
        batch: Batch[np.ndarray],
        settings: InferenceSettings,
        slots: np.ndarray,
        given: np.ndarray | None = None,
        start: int | None = None,
    ) -> Callable[[], np.ndarray]:
        assert slots.dtype == bool and (given is None or given.shape == (*slots.shape, 2))
        self.seen.append((batch.lengths, slots))
        return lambda: np.full((*slots[:, None].shape, 5), -1.0)


@pytest.fixture(scope="module")
def corpus(encoder_folder: Path) -> EncodedCorpus:
    """Sentences of 1 to 60 words, and one of several windows."""
    sentences = [Sentence(["w"] * n) for n in (1, 5, 9, 30, 60, 250)]
    tokenizer = load_tokenizer(encoder_folder, limit=128)
    return EncodedCorpus(sentences, tokenizer, plain_encoder(max_subwords=102))


@pytest.mark.parametrize("batch_size", [1, 3, 100])
@pytest.mark.parametrize("spans", ["auto", 7])
def test_every_window_gets_its_own_number(corpus, spans, batch_size):
    engine = Recording()
    options = plain_inference(spans=spans, batch_size=batch_size)
    assert predict(engine, Task(corpus, range(6)), options, everything(["A"])) == [[]] * 6
    assert sum(len(lengths) for lengths, _ in engine.seen) == len(corpus) > 6
    for lengths, slots in engine.seen:
        counts = slots.sum(1)
        assert counts.tolist() == span_counts(lengths, spans, "noise").tolist()
        assert slots.shape[1] == counts.max(), "no more than the batch needs"
        assert (np.sort(~slots, 1) == ~slots).all(), "the first ones"


def test_given_spans_are_not_counted(corpus):
    engine = Recording()
    given = [[(0, 1)] * number for number in (3, 0, 1, 25, 70, 0)]
    task = Task(corpus, range(6), given, 20)
    predict(engine, task, plain_inference(batch_size=100), everything(["A"]))
    ((lengths, slots),) = engine.seen
    for length, number in ((1, 3), (5, 0), (9, 1), (30, 25), (60, 70)):
        assert slots[lengths == length].sum() == number


# The same entities in any company


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return lively_model(encoder_folder, "inference.spans=auto")


@pytest.fixture(scope="module")
def sentences(nested_sentences: list[Sentence]) -> list[list[str]]:
    """From one word to several windows: counts from the least to more than twice as many."""
    words = [word for s in nested_sentences for word in s.words]
    lengths = (1, 2, 6, 7, 11, 14, 18, 22)
    cut = [words[10 * n : 10 * n + length] for n, length in enumerate(lengths)]
    return [*cut, words[100:250], *(s.words for s in nested_sentences[:6])]


@pytest.mark.parametrize(("steps", "eta"), [(1, 0.0), (4, 0.0), (4, 0.5)])
def test_a_sentence_alone_and_in_any_batch(ner, sentences, steps, eta):
    options = {"steps": steps, "eta": eta}
    alone = [ner.predict_tokens([words], **options)[0] for words in sentences]
    assert len({own_count(len(words)) for words in sentences}) > 5
    assert all(alone)
    for size in (2, 5, 100):
        assert_same(ner.predict_tokens(sentences, batch_size=size, **options), alone)


def test_any_order(ner, sentences):
    expected = ner.predict_tokens(sentences)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(sentences)).tolist()
        shuffled = ner.predict_tokens([sentences[i] for i in order], batch_size=4)
        assert_same(shuffled, [expected[i] for i in order])


def test_it_is_as_if_the_number_were_given(ner, sentences):
    for words in sentences:
        if len(words) > 30:  # its windows have numbers of their own
            continue
        count = own_count(len(words))
        (expected,) = ner.predict_tokens([words], spans=count)
        assert_same(ner.predict_tokens([words]), [expected])
        assert len(expected) <= count


def test_the_number_matters(ner, sentences):
    assert ner.predict_tokens(sentences, spans=3) != ner.predict_tokens(sentences)


# Settings


def test_auto_is_the_default_and_can_be_said(tmp_path):
    assert Settings().inference.spans == "auto"
    numbered = Settings().override(["inference.spans=20"])
    assert numbered.inference.spans == 20
    assert numbered.override(["inference.spans=auto"]) == Settings()
    assert numbered.with_inference({"spans": "auto"}) == Settings()
    assert numbered.with_inference({"spans": "20"}) == numbered  # from the command line
    put(tmp_path, {"a.yaml": "inference: {spans: auto}", "b.yaml": "inference: {spans: 20}"})
    assert Settings.load(tmp_path / "a.yaml") == Settings()
    assert Settings.load(tmp_path / "b.yaml") == numbered
    assert Settings.from_dict(json.loads(json.dumps(Settings().to_dict()))) == Settings()


@pytest.mark.parametrize("value", ["automatic", "Auto", "", "a", "auto,20", 2.5, True, None, []])
def test_what_is_neither_a_number_nor_auto(value):
    with pytest.raises(SettingsError) as caught:
        Settings.from_dict({"inference": {"spans": value}})
    assert f"inference.spans={value!r} is not valid" in str(caught.value)
    assert "expected int or auto, at least 1" in str(caught.value)


@pytest.mark.parametrize("value", [0, -3, "0"])
def test_too_few_spans(value):
    with pytest.raises(SettingsError) as caught:
        Settings.from_dict({"inference": {"spans": value}})
    assert "expected int or auto, at least 1 (the nearest valid value is 1)" in str(caught.value)


def test_training_needs_a_number():
    with pytest.raises(SettingsError, match=r"diffusion\.spans='auto' .*expected int"):
        Settings.from_dict({"diffusion": {"spans": "auto"}})


# The command line


@pytest.fixture
def predicted(cli, folder: Path) -> Callable[..., list[dict]]:
    def run(*options: object) -> list[dict]:
        arguments = ("--model", folder, "--threshold", 0, "--output", "-", *options)
        result = cli("predict", "Ada met the wife of Charles.", *arguments)
        assert result.status == 0, result.err
        return result.records[0]["entities"]

    return run


def test_predict_takes_numbers_and_auto(predicted, folder):
    ner = DiffusionNER.from_pretrained(folder)  # whose own number is 12
    for spans in (20, "auto", 1):
        expected = ner("Ada met the wife of Charles.", spans=spans, threshold=0)
        assert predicted("--spans", spans) == [written(e) for e in expected]


@pytest.mark.parametrize("command", ["predict", "evaluate"])
@pytest.mark.parametrize("value", ["automatic", "0", "2.5", "-1", ""])
def test_rubbish_is_refused(refused, folder, tmp_path, command, value):
    put(tmp_path, {"gold.jsonl": '{"tokens": ["Ada"], "entities": []}\n'})
    what = ["Ada"] if command == "predict" else ["--data", tmp_path / "gold.jsonl"]
    err = refused(command, *what, "--model", folder, f"--spans={value}")
    assert f"inference.spans={value!r} is not valid; expected int or auto" in err


# What `data check` says


def crowded(words: int, spans: int) -> tuple[Sentence, list[Span]]:
    pairs = list(combinations(range(words + 1), 2))[:spans]
    return Sentence(["w"] * words), [Span(start, end, "A") for start, end in pairs]


@pytest.mark.parametrize(("words", "spans"), [(5, 12), (5, 15), (6, 21), (20, 26), (20, 40)])
def test_ceiling(words, spans):
    sentence, entities = crowded(words, spans)
    ceiling = F1Ceiling()
    window = Window(0, words, 0, words)
    chosen = plain_inference(overlap="all")
    assert chosen.spans == "auto"
    assert ceiling.add(sentence, entities, [window], chosen) == []
    found = min(spans, own_count(words))
    assert ceiling.reachable == found
    assert +ceiling.lost == ({"spans": spans - found} if spans > found else {})
    assert ceiling.f1 == pytest.approx(2 * found / (found + spans))
    numbered = F1Ceiling()
    given = plain_inference(overlap="all", spans=own_count(words))
    numbered.add(sentence, entities, [window], given)
    assert numbered.to_dict() == ceiling.to_dict()


def test_ceiling_of_several_windows(encoder_folder):
    """Each window gets as many as the words it reads ask for, as in prediction."""
    settings = plain_encoder(max_subwords=22)
    tokenizer = load_tokenizer(encoder_folder, limit=128)
    sentence = Sentence(["w"] * 45)
    entities = [Span(i, i + n, "A") for n in (1, 2, 3, 4) for i in range(46 - n)]
    ((_, _, windows),) = WindowSplitter(settings, tokenizer).split([sentence])
    engine = Recording()
    corpus = EncodedCorpus([sentence], tokenizer, settings)
    options = plain_inference(overlap="all")
    predict(engine, Task(corpus, [0]), options, everything(["A"]))
    given = sum(int(slots.sum()) for _, slots in engine.seen)
    assert given == sum(window.span_count(options) for window in windows) < len(entities)
    ceiling = F1Ceiling()
    assert ceiling.add(sentence, entities, windows, options) == []
    assert ceiling.reachable == given


def test_check_names_the_number_of_the_window(cli, tmp_path):
    sentence, entities = crowded(5, 15)
    record = {"tokens": sentence.words, "entities": [span._asdict() for span in entities]}
    put(tmp_path, {"a.jsonl": json.dumps(record) + "\n"})
    settings = ("inference.overlap=all", "inference.start=noise", "diffusion.spans=15")
    result = cli("data", "check", tmp_path / "a.jsonl", *settings)
    expected = f"15 spans in a window with {own_count(5)} noisy spans (inference.spans)"
    assert expected in result.out + result.err
    enough = cli("data", "check", tmp_path / "a.jsonl", *settings, "inference.spans=15")
    assert "in a window that gets" not in enough.out + enough.err
