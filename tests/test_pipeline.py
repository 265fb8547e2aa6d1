"""The DiffusionNER object, with random weights that predict many entities."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from diffusionner import DiffusionNER, Entity
from diffusionner.corpus import Sentence
from diffusionner.errors import SettingsError
from diffusionner.inference import stream
from diffusionner.inference.stream import batch_size
from diffusionner.model.encoder import SentenceEncoder
from diffusionner.settings import Settings
from models import LABELS, assert_same, lively_model, spans


@pytest.fixture(scope="module")
def build(encoder_folder: Path) -> Callable[..., DiffusionNER]:
    return partial(lively_model, encoder_folder)


@pytest.fixture(scope="module")
def ner(build: Callable[..., DiffusionNER]) -> DiffusionNER:
    return build()


@pytest.fixture(scope="module")
def contextual(build: Callable[..., DiffusionNER]) -> DiffusionNER:
    return build("encoder.context=2")


TEXTS = [
    "Ada Lovelace met Charles Babbage in London. They spoke of engines! Did they?",
    "One word",
    "The wife of the rich merchant of Venice, who sold spices, left.\n\nNobody saw her again.",
    "",
    "No. 5 went to Dr. Smith's house on 4th St. at 10.30 a.m.",
    "Rome",
    " \t\n ",
    "He lived in New York (U.S.A.) until 1999; then he moved to St. Petersburg.",
    "Call me Ishmael. Some years ago - never mind how long precisely - I went to sea.",
]


# --- Offsets ----------------------------------------------------------------------------------

ODD_TEXTS = {
    "emoji": "👩‍👩‍👧‍👦 visited 🇫🇷 Paris 😀😀 with 👍🏽 Zoë.",
    "combining marks": "Zoe\u0308 and Jose\u0301 met in Malmo\u0308. A\u030angstro\u0308m stayed.",
    "line ends": "First line\r\nsecond line.\r\n\r\nNew paragraph\rold Mac line.\n",
    "tabs": "\tAda\tLovelace\t\tmet  Charles \u00a0Babbage\u3000here\t",
    "right to left": "ذهب محمد إلى القاهرة. وصل אברהם ל-ירושלים اليوم؟",
    "no spaces": "王先生住在北京。李女士住在東京。กรุงเทพมหานคร",
    "byte order mark": "\ufeffAda met \u200eCharles\u200f in Lon\u00addon.",
    "control characters": "Ada\x00 met\x07 Charles\x1b[31m in London\x7f.",
    "lone surrogate": "Ada \ud83d met Charles",
    "one word": "London",
    "one letter": "x",
    "punctuation": "?!... -- ''",
    "astral": "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 met 𝓐𝓭𝓪",
    "very long word": "a" * 5000 + " met Ada",
}


@pytest.mark.parametrize("name", ODD_TEXTS)
def test_offsets_are_exact(ner, name):
    text = ODD_TEXTS[name]
    entities = ner(text)
    assert entities
    for entity in entities:
        assert 0 <= entity.start < entity.end <= len(text)
        assert text[entity.start : entity.end] == entity.text
        assert entity.text == entity.text.strip()
        assert entity.label in LABELS
        assert 0 <= entity.score <= 1
        assert all(type(value) is int for value in entity[:2]) and type(entity.score) is float


@pytest.mark.parametrize("text", ["", " ", "\n\t \r\n", "\u200b\ufeff"])
def test_texts_without_words(ner, text):
    assert ner(text) == []
    assert list(ner.pipe([text, "Ada", text]))[::2] == [[], []]


def test_ten_thousand_words(ner):
    """A single endless sentence is read to its end."""
    text = " ".join(["Ada", "met", "the", "wife", "of", "Charles"] * 1667)
    entities = ner(text, steps=1, spans=8, batch_size=64)
    for entity in entities:
        assert text[entity.start : entity.end] == entity.text
    starts = [entity.start for entity in entities]
    assert starts == sorted(starts)
    for tenth in range(10):
        low, high = tenth * len(text) // 10, (tenth + 1) * len(text) // 10
        assert any(low <= start < high for start in starts)


def test_word_offsets(ner):
    words = ["Ada", "met", "the", "wife", "of", "Charles", "👩‍👩‍👧‍👦", "\u200b", "x y"]
    (entities,) = ner.predict_tokens([words])
    assert len(entities) > 1
    assert max(entity.end for entity in entities) <= len(words)
    for entity in entities:
        assert entity.text == " ".join(words[entity.start : entity.end])


def test_words_and_text_agree(ner):
    text = "Ada Lovelace met Charles Babbage in London"
    words = text.split()
    (by_word,) = ner.predict_tokens([words])
    starts = [len(" ".join(words[:i])) + (i > 0) for i in range(len(words))]
    ends = [start + len(word) for start, word in zip(starts, words, strict=True)]
    expected = [(starts[e.start], ends[e.end - 1], e.label) for e in by_word]
    assert spans(ner(text)) == expected


def test_entities_are_in_reading_order(ner):
    for entities in ner.pipe(TEXTS):
        assert entities == sorted(entities, key=lambda e: (e.start, -e.end))


# --- Streaming --------------------------------------------------------------------------------


def test_pipe_equals_single_calls(ner):
    together = list(ner.pipe(TEXTS))
    assert sum(map(len, together)) > 20
    assert_same(together, [ner(text) for text in TEXTS])


@pytest.mark.parametrize("fixture", ["ner", "contextual"])
def test_pipe_is_lazy(request, monkeypatch, fixture):
    """Input may be endless: it is read at most a few chunks ahead."""
    monkeypatch.setattr(stream, "BUFFERED_BATCHES", 2)
    model = request.getfixturevalue(fixture)
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield f"Person {taken} left."

    results = model.pipe(endless(), batch_size=3)
    assert taken == 0, "nothing is read before the first result is requested"
    for number in range(1, 20):
        entities = next(results)
        assert all(f"Person {number} left."[e.start : e.end] == e.text for e in entities)
        assert number <= taken <= number + 24 + model.settings.encoder.context
    results.close()


def test_pipe_takes_many_texts(ner):
    with pytest.raises(TypeError, match="call the model"):
        ner.pipe("Ada met Charles.")
    assert list(ner.pipe([])) == []
    assert len(list(ner.pipe(text for text in TEXTS))) == len(TEXTS)


@pytest.mark.parametrize("given", [["Ada met Bob.", "Bob"], None, b"Ada", 1, {"text": "Ada"}])
def test_texts_must_be_strings(ner, given):
    with pytest.raises(TypeError, match=r"one text, not .* use pipe for many"):
        ner(given)
    with pytest.raises(TypeError, match=r"text 1 is a \w+, not a string"):
        list(ner.pipe(["Ada", given]))


def test_words_must_be_strings(ner):
    with pytest.raises(TypeError, match="words of sentence 1"):
        ner.predict_tokens([["Ada"], ["Ada", 1]])


def test_an_error_in_the_input_reaches_the_caller(ner):
    def broken() -> Iterator[str]:
        yield "Ada"
        raise RuntimeError("disk gone")

    with pytest.raises(RuntimeError, match="disk gone"):
        list(ner.pipe(broken()))


# --- Independence of batches ------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 3, 64])
@pytest.mark.parametrize("fixture", ["ner", "contextual"])
def test_entities_do_not_depend_on_the_batch_size(request, nested_sentences, fixture, batch_size):
    model = request.getfixturevalue(fixture)
    sentences = [s.words for s in nested_sentences[:20]]
    docs = [f"doc {i // 7}" if i < 18 else None for i in range(20)]
    expected = model.predict_tokens(sentences, docs, batch_size=8)
    assert sum(map(len, expected)) > 80
    assert_same(model.predict_tokens(sentences, docs, batch_size=batch_size), expected)


def test_entities_do_not_depend_on_the_order(ner, nested_sentences):
    sentences = [s.words for s in nested_sentences[:20]]
    expected = ner.predict_tokens(sentences)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(3)).tolist()
    shuffled = ner.predict_tokens([sentences[i] for i in order], batch_size=4)
    assert_same(shuffled, [expected[i] for i in order])


def test_entities_do_not_depend_on_the_order_of_documents(contextual, nested_sentences):
    documents = [[s.words for s in nested_sentences[i : i + 4]] for i in range(0, 20, 4)]

    def predict(order: list[int]) -> dict[int, list[list[Entity]]]:
        sentences = [words for number in order for words in documents[number]]
        docs = [f"doc {number}" for number in order for _ in documents[number]]
        found = contextual.predict_tokens(sentences, docs, batch_size=3)
        return {number: found[4 * i : 4 * i + 4] for i, number in enumerate(order)}

    expected, shuffled = predict([0, 1, 2, 3, 4]), predict([3, 1, 4, 0, 2])
    for number in range(5):
        assert_same(shuffled[number], expected[number])


@pytest.mark.parametrize("fixture", ["ner", "contextual"])
def test_chunks_keep_context(request, monkeypatch, nested_sentences, fixture):
    """A document may be longer than several chunks and have empty sentences."""
    model = request.getfixturevalue(fixture)
    sentences = [s.words for s in nested_sentences[:24]]
    sentences[5:5] = [[], []]
    docs = ["a"] * 15 + [None] * 2 + ["b"] * 9
    expected = model.predict_tokens(sentences, docs, batch_size=100)
    monkeypatch.setattr(stream, "BUFFERED_BATCHES", 1)
    assert_same(model.predict_tokens(sentences, docs, batch_size=2), expected)
    assert_same(model.predict_tokens(sentences, docs, batch_size=1), expected)


def test_texts_are_streamed_with_their_context(contextual, monkeypatch):
    expected = list(contextual.pipe(TEXTS, batch_size=100))
    monkeypatch.setattr(stream, "BUFFERED_BATCHES", 1)
    assert_same(list(contextual.pipe(TEXTS, batch_size=1)), expected)
    assert_same([contextual(text) for text in TEXTS], expected)


def test_context_is_used(contextual, ner, nested_sentences):
    """Only that of the same document, and only by a model with encoder.context."""
    sentences = [s.words for s in nested_sentences[:3]]
    alone = contextual.predict_tokens(sentences)
    apart = contextual.predict_tokens(sentences, ["a", "b", "c"])
    together = contextual.predict_tokens(sentences, ["a", "a", "a"])
    assert_same(alone, apart)
    assert [[e.score for e in x] for x in together] != [[e.score for e in x] for x in alone]
    assert_same(ner.predict_tokens(sentences), ner.predict_tokens(sentences, ["a", "a", "a"]))


def test_predict_sentences_equals_predict_tokens(contextual, nested_sentences):
    sentences = [Sentence(s.words, doc=f"doc {i // 5}") for i, s in enumerate(nested_sentences)]
    calls: list[tuple[int, int]] = []
    found = contextual.predict_sentences(sentences, progress=lambda *call: calls.append(call))
    by_tokens = contextual.predict_tokens([s.words for s in sentences], [s.doc for s in sentences])
    assert [[tuple(span) for span in one] for one in found] == [spans(one) for one in by_tokens]
    assert calls[-1][0] == calls[-1][1] >= len(sentences)  # windows


def test_a_flat_list_of_words_is_an_error(ner):
    with pytest.raises(TypeError, match="each a list of words"):
        ner.predict_tokens(["Ada", "left"])


# --- Sentences longer than the encoder --------------------------------------------------------


def test_long_sentences_are_read_to_the_end(ner, nested_sentences):
    words = [word for s in nested_sentences for word in s.words][:300]
    limit = ner.settings.encoder.max_subwords
    assert len("".join(words)) > 5 * limit  # the tokenizer's subwords are characters
    (entities,) = ner.predict_tokens([words])
    middles = [(e.start + e.end) / 2 for e in entities]
    for start in range(0, 300, 30):
        assert any(start <= middle < start + 30 for middle in middles), start
    bounds = [(e.start, e.end) for e in entities]
    assert len(bounds) == len(set(bounds)), "entities of two windows are merged"
    for entity in entities:
        assert entity.text == " ".join(words[entity.start : entity.end])
    assert_same(ner.predict_tokens([["Ada"], words, ["x"]], batch_size=2)[1:2], [entities])


def test_entities_can_lie_across_the_edge_of_a_window(ner, nested_sentences):
    words = [word for s in nested_sentences for word in s.words][:300]
    (entities,) = ner.predict_tokens([words], spans=60)
    covered = {position for e in entities for position in range(e.start + 1, e.end)}
    assert len(covered) > 250


# --- Options ----------------------------------------------------------------------------------


def test_automatic_batch_size(ner):
    sizes = []
    for engine in (SimpleNamespace(prefetch=0), SimpleNamespace(prefetch=8)):
        for given in ("auto", 5):
            inference = ner.settings.with_inference({"batch_size": given}).inference
            sizes.append(batch_size(engine, inference))
    assert sizes == [32, 5, 256, 5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stepz": 3}, "did you mean 'inference.steps'"),
        ({"steps": 101}, "inference.steps=101 exceeds diffusion.timesteps=100"),
        ({"steps": -1}, "nearest valid value is 0"),
        ({"steps": 0}, "needs decoder.initializer=types"),
        ({"threshold": 3.5}, "nearest valid value is 1"),
        ({"overlap": "neste"}, "did you mean 'nested'"),
        ({"spans": "many"}, "expected int"),
        ({"eta": -0.1}, "nearest valid value is 0"),
        ({"batch_size": 2.5}, "expected int"),
        ({"batch_size": 0}, "nearest valid value is 1"),
        ({"batch_size": "large"}, "expected int"),
    ],
)
def test_invalid_options_are_errors_at_once(ner, options, message):
    """Also if the result is a generator that has not been started."""
    for call in (
        lambda: ner("Ada", **options),
        lambda: ner.pipe(["Ada"], **options),
        lambda: ner.predict_tokens([["Ada"]], **options),
        lambda: ner.refine_pipe([("Ada", [(0, 1)])], only=True, **options),
        lambda: ner.predict_sentences([Sentence(["Ada"])], **options),
    ):
        with pytest.raises(SettingsError, match=message):
            call()


def test_threshold_filters_by_score(ner):
    everything = ner(TEXTS[0])
    middle = sorted(e.score for e in everything)[len(everything) // 2]
    some = ner(TEXTS[0], threshold=middle)
    assert 0 < len(some) < len(everything)
    assert some == [e for e in everything if e.score >= middle - 1e-6]
    assert some == ner(TEXTS[0], phi=3 * middle)
    assert ner(TEXTS[0], threshold=None) == everything  # None is the default of the model


def test_overlap_policies(ner, nested_sentences):
    def overlapping(a: Entity, b: Entity) -> bool:
        return a.start < b.end and b.start < a.end

    def crossing(a: Entity, b: Entity) -> bool:
        return a.start < b.start < a.end < b.end

    words = [word for s in nested_sentences for word in s.words][:300]
    everything, nested, flat = (
        ner.predict_tokens([words], overlap=policy)[0] for policy in ("all", "nested", "flat")
    )
    assert any(crossing(a, b) for a in everything for b in everything)
    assert not any(crossing(a, b) for a in nested for b in nested)
    assert any(overlapping(a, b) for a in nested for b in nested if a is not b)
    assert not any(overlapping(a, b) for a in flat for b in flat if a is not b)
    assert set(flat) < set(everything) and set(nested) < set(everything)


def test_seed_spans_and_eta_matter(ner):
    expected = ner(TEXTS[2])
    assert ner(TEXTS[2]) == expected
    assert ner(TEXTS[2], seed=1) != expected
    assert len(ner(TEXTS[2], spans=1)) == 2  # one in each of two sentences
    assert ner(TEXTS[2], steps=20, eta=1.0) != ner(TEXTS[2], steps=20)
    assert ner(TEXTS[2], steps=20, eta=1.0) == ner(TEXTS[2], steps=20, eta=1.0)


# --- Folders ----------------------------------------------------------------------------------


def test_save_and_load(contextual, tmp_path):
    folder = tmp_path / "a" / "new" / "model"
    contextual.save_pretrained(folder)
    again = DiffusionNER.from_pretrained(folder)
    assert list(again.pipe(TEXTS)) == list(contextual.pipe(TEXTS))
    assert again.settings == contextual.settings
    assert again.labels == LABELS
    again.save_pretrained(str(tmp_path / "twice"))
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    second = {path.name: path.read_bytes() for path in (tmp_path / "twice").iterdir()}
    assert first == second


def test_a_model_folder_contains_no_code(ner, tmp_path):
    """JSON, safetensors and text only, so that loading a model never runs code from it."""
    ner.save_pretrained(tmp_path)
    names = {path.name for path in tmp_path.rglob("*")}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert {Path(name).suffix for name in names} <= {".json", ".safetensors", ".txt"}
    text = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert text["format"] == "diffusionner"
    for path in tmp_path.iterdir():
        if path.suffix == ".json":
            assert "auto_map" not in path.read_text(encoding="utf-8")


def test_a_model_folder_is_self_contained(build, encoder_folder, tmp_path, monkeypatch):
    """It needs neither the encoder it was made from nor the working directory."""
    model = build(f"encoder.name={os.path.relpath(encoder_folder)}")
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert DiffusionNER.from_pretrained("../model")(TEXTS[0]) == model(TEXTS[0])


def test_attributes(ner):
    assert isinstance(ner.settings, Settings)
    assert ner.labels == LABELS
    assert ner.tokenizer.tokenize("Ada") == ["a", "##d", "##a"]
    assert isinstance(ner.encoder, SentenceEncoder) and isinstance(ner.encoder, torch.nn.Module)
    assert not ner.network.training
    assert ner.settings.inference.steps == 2
