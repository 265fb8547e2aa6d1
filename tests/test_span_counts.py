"""spans="auto": the number of noisy spans depends on the sentence, not on its batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from corpus_files import put
from plain import plain_encoder, plain_inference

from diffusionner import DiffusionNER
from diffusionner.batching import Batch, EncodedCorpus
from diffusionner.corpus import Sentence, Span
from diffusionner.data.ceiling import F1Ceiling, Window, WindowSplitter
from diffusionner.diffusion import Candidates, ReverseStart, min_spans, span_slots
from diffusionner.diffusion.sampler import MAX_SPANS, MIN_SPANS
from diffusionner.errors import SettingsError
from diffusionner.inference.refining import RefinementTask
from diffusionner.inference.stream import PredictionTask, predict
from diffusionner.refinement import PlacedSpan
from diffusionner.settings import InferenceSettings, Settings
from diffusionner.storage.encoders import load_tokenizer
from models import assert_same, everything, lively_model, written


def span_counts(words: np.ndarray, spans: int | str, start: str) -> np.ndarray:
    return span_slots(words, spans, start).sum(1)


def own_count(words: int) -> int:
    return int(span_counts(np.array([words]), "auto", "noise")[0])


# The rule


@pytest.mark.parametrize("start", ["noise", "candidates"])
def test_counts_grow_with_the_sentence_within_bounds(start):
    counts = span_counts(np.arange(1, 600), "auto", start)
    assert counts[0] == MIN_SPANS == min_spans("auto") and counts[-1] == MAX_SPANS
    assert (np.diff(counts) >= 0).all() and len(np.unique(counts)) > 20
    within = (counts > MIN_SPANS) & (counts < MAX_SPANS)
    assert (2 * counts[within] > np.arange(1, 600)[within]).all()


def test_crowded_sentences_get_several_spans_for_each_entity():
    words = np.arange(1, 97)
    assert (span_counts(words, "auto", "noise") >= 3 * (words // 2)).all()
    assert (span_counts(words, "auto", "candidates") > words // 2).all(), "one for each, and more"


@pytest.mark.parametrize("start", ["noise", "candidates"])
def test_a_number_is_that_of_a_typical_sentence(start):
    words = np.array([1, 3, 40, 41, 60, 400])
    assert span_counts(words, 20, start).tolist() == [20, 20, 20, 20, 30, 200]
    assert min_spans(20) == 20


class Recording:
    """Engine that finds nothing and records the slots of each batch."""

    subword_multiple, prefetch, beliefs, label_groups = 1, 2, None, 1

    def __init__(self) -> None:
        self.labels = ["A"]
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []

    def launch(
        self,
        batch: Batch[np.ndarray],
        start: ReverseStart[np.ndarray],
        settings: InferenceSettings,
    ) -> Callable[[], Candidates[np.ndarray]]:
        slots = start.slots
        assert slots.dtype == bool
        if start.given is not None:
            assert start.given_slots is not None
            assert start.given.shape == (*start.given_slots.shape, 2)
            slots = np.concatenate([start.given_slots, slots], 1)
        self.seen.append((batch.lengths, slots))
        blank = np.zeros((len(slots), 1, slots.shape[1]), dtype=np.int64)
        noisy = np.zeros((*blank.shape, 2), dtype=np.int64)
        none = blank.astype(bool)
        return lambda: Candidates(blank, blank, blank, blank + 0.0, blank + 0.0, none, none, noisy)


@pytest.fixture(scope="module")
def corpus(encoder_folder: Path) -> EncodedCorpus:
    """Sentences of 1 to 60 words, and one of several windows."""
    sentences = [Sentence(["w"] * n) for n in (1, 5, 9, 30, 60, 250)]
    tokenizer = load_tokenizer(encoder_folder, limit=128)
    return EncodedCorpus(sentences, tokenizer, plain_encoder(max_subwords=102))


@pytest.mark.parametrize("batch_size", [1, 3, 100])
@pytest.mark.parametrize("spans", ["auto", 7])
def test_every_window_has_its_own_number_of_spans(corpus, spans, batch_size):
    engine = Recording()
    options = plain_inference(spans=spans, batch_size=batch_size)
    assert predict(engine, PredictionTask(corpus, range(6)), options, everything(["A"])) == [[]] * 6
    assert sum(len(lengths) for lengths, _ in engine.seen) == len(corpus) > 6
    for lengths, slots in engine.seen:
        counts = slots.sum(1)
        assert counts.tolist() == span_counts(lengths, spans, "noise").tolist()
        assert slots.shape[1] == counts.max(), "as narrow as possible"
        assert (np.sort(~slots, 1) == ~slots).all(), "a sentence has the first slots"


def test_given_spans_determine_the_number(corpus):
    engine = Recording()
    numbers = (1, 0, 1, 25, 60, 0)
    given = [[PlacedSpan(word, word, word) for word in range(number)] for number in numbers]
    task = RefinementTask(corpus, range(6), given=given, only=True, timestep=20)
    predict(engine, task, plain_inference(batch_size=100), everything(["A"]))
    ((lengths, slots),) = engine.seen
    for length, number in zip((1, 5, 9, 30, 60), numbers, strict=False):
        assert slots[lengths == length].sum() == number


# Independence of the batch


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return lively_model(encoder_folder, "inference.spans=auto")


@pytest.fixture(scope="module")
def sentences(nested_sentences: list[Sentence]) -> list[list[str]]:
    """From one word to several windows, with many different numbers of spans."""
    words = [word for s in nested_sentences for word in s.words]
    lengths = (1, 2, 6, 7, 11, 14, 18, 22)
    cut = [words[10 * n : 10 * n + length] for n, length in enumerate(lengths)]
    return [*cut, words[100:250], *(s.words for s in nested_sentences[:6])]


@pytest.mark.parametrize(("steps", "eta"), [(1, 0.0), (4, 0.0), (4, 0.5)])
@pytest.mark.parametrize("spans", ["auto", 16])
def test_entities_do_not_depend_on_the_batch(ner, sentences, spans, steps, eta):
    """A sentence of several windows also has more than 16 spans."""
    options = {"spans": spans, "steps": steps, "eta": eta}
    alone = [ner.predict_tokens([words], **options)[0] for words in sentences]
    assert len({own_count(len(words)) for words in sentences}) > 5
    assert all(alone)
    for size in (2, 5, 100):
        assert_same(ner.predict_tokens(sentences, batch_size=size, **options), alone)


def test_entities_do_not_depend_on_the_order(ner, sentences):
    expected = ner.predict_tokens(sentences)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(sentences)).tolist()
        shuffled = ner.predict_tokens([sentences[i] for i in order], batch_size=4)
        assert_same(shuffled, [expected[i] for i in order])


def test_auto_equals_giving_the_number(ner, sentences):
    for words in sentences:
        if len(words) > 30:  # several windows, each with its own number
            continue
        count = own_count(len(words))
        (expected,) = ner.predict_tokens([words], spans=count)
        assert_same(ner.predict_tokens([words]), [expected])
        assert len(expected) <= count


def test_the_number_of_spans_matters(ner, sentences):
    assert ner.predict_tokens(sentences, spans=3) != ner.predict_tokens(sentences)


# Settings


def test_auto_is_the_default_and_can_be_set(tmp_path):
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
def test_values_that_are_neither_a_number_nor_auto(value):
    with pytest.raises(SettingsError) as caught:
        Settings.from_dict({"inference": {"spans": value}})
    assert f"inference.spans={value!r} is not valid" in str(caught.value)
    assert "expected int or auto, 1 to 10000" in str(caught.value)


@pytest.mark.parametrize("value", [0, -3, "0"])
def test_too_few_spans(value):
    with pytest.raises(SettingsError) as caught:
        Settings.from_dict({"inference": {"spans": value}})
    assert "expected int or auto, 1 to 10000 (the nearest valid value is 1)" in str(caught.value)


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
def test_invalid_values_on_the_command_line(refused, folder, tmp_path, command, value):
    put(tmp_path, {"gold.jsonl": '{"tokens": ["Ada"], "entities": []}\n'})
    what = ["Ada"] if command == "predict" else ["--data", tmp_path / "gold.jsonl"]
    err = refused(command, *what, "--model", folder, f"--spans={value}")
    assert f"inference.spans={value!r} is not valid; expected int or auto" in err


# The F1 ceiling of `data check`


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
    """Each window has as many spans as in prediction."""
    settings = plain_encoder(max_subwords=22)
    tokenizer = load_tokenizer(encoder_folder, limit=128)
    sentence = Sentence(["w"] * 45)
    entities = [Span(i, i + n, "A") for n in (1, 2, 3, 4) for i in range(46 - n)]
    ((_, _, windows),) = WindowSplitter(settings, tokenizer).split([sentence])
    engine = Recording()
    corpus = EncodedCorpus([sentence], tokenizer, settings)
    options = plain_inference(overlap="all")
    predict(engine, PredictionTask(corpus, [0]), options, everything(["A"]))
    given = sum(int(slots.sum()) for _, slots in engine.seen)
    assert given == sum(window.span_count(options) for window in windows) < len(entities)
    ceiling = F1Ceiling()
    assert ceiling.add(sentence, entities, windows, options) == []
    assert ceiling.reachable == given


def test_data_check_reports_windows_with_too_many_entities(cli, tmp_path):
    sentence, entities = crowded(5, 15)
    record = {"tokens": sentence.words, "entities": [span._asdict() for span in entities]}
    put(tmp_path, {"a.jsonl": json.dumps(record) + "\n"})
    settings = ("inference.overlap=all", "inference.start=noise", "diffusion.spans=15")
    result = cli("data", "check", tmp_path / "a.jsonl", *settings)
    expected = f"15 spans in a window with {own_count(5)} noisy spans (inference.spans)"
    assert expected in result.out + result.err
    enough = cli("data", "check", tmp_path / "a.jsonl", *settings, "inference.spans=15")
    assert "in a window with" not in enough.out + enough.err
