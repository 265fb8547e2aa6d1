"""Every visible character is in a word of a window, or is reported as unread."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diffusionner import DiffusionNER
from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.corpus import Coverage
from diffusionner.errors import DataError
from diffusionner.inference.coverage import measure_coverage
from diffusionner.storage.encoders import load_tokenizer
from diffusionner.text import MAX_WORD, split_words
from diffusionner.word_limits import WordLimits
from models import lively_model, lively_settings

INVISIBLE = regex.compile(r"[\s\p{Cc}\uFFF9-\uFFFB[\p{DI}--\p{L}]]", regex.V1)
LONG = "x" * 250


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    ner = lively_model(encoder_folder, "encoder.max_subwords=110")
    ner.subwords.word_limits = WordLimits(12, 2, 6)
    return ner


def measure(ner: DiffusionNER, content: str | list[str]) -> Coverage:
    return measure_coverage(content, ner.subwords, ner.settings.encoder)


pieces = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["a" * 300, "." * 140, "我" * 120, "e\u0301" * 90, "http://a.org/" + "b" * 99]),
    st.sampled_from([" ", "\n", "\n\n", "\t", ". ", ", ", "\u200b", "\ufeff", "\ud800", "🇩🇪" * 60]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(pieces, max_size=12).map("".join))
@example("\ud800")
@example("a\u0301" + "\u0301" * 300)
def test_every_visible_character_is_read_or_reported(ner, text):
    coverage = measure(ner, text)
    seen = bytearray(len(text))
    for start, end in split_words(text):
        inside = [w for w in coverage.windows if w[0] <= start and end <= w[1]]
        assert inside, "every word is in a window"
        seen[start:end] = b"\1" * (end - start)
    for start, end in coverage.unread:
        assert 0 <= start < end <= len(text)
        seen[start:end] = b"\1" * (end - start)
    for place, character in enumerate(text):
        assert seen[place] or INVISIBLE.match(character), (place, character)
    sentences = coverage.sentences
    assert all(any(s <= a and b <= e for s, e in sentences) for a, b in coverage.windows)


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Mn", "Me", "Mc"]), max_size=400))
def test_text_is_read_completely(ner, text):
    """Only half a character and pathological clusters cannot be read."""
    assert measure(ner, text * 2).unread == []


def test_long_words_are_cut_and_read(ner):
    text = f"see {LONG} now"
    words = [end - start for start, end in split_words(text)]
    assert words == [3, MAX_WORD, MAX_WORD, 50, 3]
    coverage = ner(text, strict=True).coverage
    assert coverage.unread == [] and coverage.sentences == [(0, len(text))]


def test_what_cannot_be_read_is_named(ner):
    with pytest.raises(DataError) as caught:
        ner("half \ud800 a character", strict=True)
    assert "characters 5 to 6 ('\\ud800') cannot be read by the model; remove" in str(caught.value)
    assert ner("half \ud800 a character").coverage.unread == [(5, 6)]
    cluster = "a" + "\u0301" * 300
    assert ner(f"one {cluster} two").coverage.sentences == [(0, 309)]


def test_words_of_the_caller_are_not_cut_but_reported(ner):
    (found,) = ner.predict_tokens([["see", LONG, "." * 120, "now"]])
    assert found.coverage.unread == [(1, 2), (2, 3)], "an unknown word, and too many subwords"
    assert found.coverage.sentences == [(0, 4)]
    with pytest.raises(DataError, match=r"words 1 to 2 \('xxx"):
        ner.predict_tokens([["see", LONG]], strict=True)
    assert ner.predict_tokens([["see", "x"]], strict=True)[0].coverage.unread == []


def test_a_word_longer_than_a_window(encoder_folder):
    tokenizer: SubwordTokenizer = load_tokenizer(encoder_folder, limit=64)
    encoder = lively_settings(encoder_folder, "encoder.max_subwords=16").encoder
    coverage = measure_coverage("b " + "." * 40 + " c", tokenizer, encoder)
    assert coverage.unread == [(16, 42)], "fourteen subwords fit"


def test_where_a_text_was_split(ner):
    text = "Ada met Charles. " + " ".join(f"w{i}" for i in range(20))
    coverage = ner(text).coverage
    assert coverage.sentences == [(0, 16), (17, len(text))]
    assert coverage.windows[0] == (0, 16)
    assert len(coverage.windows) > 4 and coverage.windows[-1][1] == len(text)


def test_empty_text(ner):
    assert ner("", strict=True).coverage == ([], [], [])
    assert ner(" \n\u200b").coverage == ([], [], [])
    assert ner.predict_tokens([[]], strict=True)[0].coverage == ([], [], [])


def test_pipe_and_gliner_take_strict(ner):
    assert len(list(ner.pipe(["Ada.", "Bob."], strict=True))) == 2
    results = ner.pipe(["Ada.", "\ud800"], strict=True)
    next(results)
    with pytest.raises(DataError, match="input 1: characters 0 to 1"):
        next(results)
    with pytest.raises(DataError, match="cannot be read"):
        ner.predict_entities("\ud800", strict=True)


def test_copies_do_not_carry_the_tokenizer(ner):
    found = ner("Ada met Charles.")
    for same in (pickle.loads(pickle.dumps(found)), copy.copy(found)):
        assert same == found and same.text == found.text and same.labels == found.labels
        with pytest.raises(AttributeError, match="ask for the coverage before"):
            same.coverage  # noqa: B018
        assert getattr(same, "coverage", None) is None


def test_predict_strict(cli, refused, folder):
    assert cli("predict", "Ada met Charles.", "--model", folder, "--strict").status == 0
    err = refused("predict", "Ada \ud800", "--model", folder, "--strict", "--output", "-")
    assert "text 1: characters 4 to 5" in err


def test_predict_strict_skips_lines(cli, folder, tmp_path):
    lines = [{"text": "Ada."}, {"text": "x" + "\u0301" * 300}, {"text": "Bob."}]
    source = tmp_path / "in.jsonl"
    source.write_text("\n" + "\n".join(map(json.dumps, lines)))
    result = cli("predict", "--input", source, "--model", folder, "--strict", "--output", "-")
    assert result.status == 1 and f"{source}:3: characters 0 to 301" in result.err
    assert "bad records skipped: 1" in result.err
    assert [json.loads(line)["text"] for line in result.out.splitlines()] == ["Ada.", "Bob."]


def test_lone_surrogates_in_words(ner):
    words = ["Ada", "\ud800", "met", "Bob\udc00"]
    other, found = ner.predict_tokens([["Ada", "met"], words])
    assert found.coverage.unread == [(1, 2), (3, 4)]
    alone = ner.predict_tokens([["Ada", "met"]])[0]
    assert [entity[:3] for entity in other] == [entity[:3] for entity in alone]
    assert ner.predict_tokens([["\ud800" * 300]])[0].coverage.unread == [(0, 1)]
    with pytest.raises(DataError, match="words 1 to 2"):
        ner.predict_tokens([words], strict=True)
