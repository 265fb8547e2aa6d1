"""Varied copies of sentences: entities stay on their words."""

from __future__ import annotations

from random import Random

import pytest

from diffusionner import formats
from diffusionner.corpus import Discontinuous, Sentence, Span
from diffusionner.data import variation
from diffusionner.errors import DataError

NEWS = Sentence(
    "In Old Rome , Mr. Fox met Ada .".split(),
    [Span(1, 3, "place"), Span(2, 3, "place"), Span(4, 6, "person"), Span(7, 8, "person")],
    types=("person", "place"),
)
BOOK = Sentence(["Ada", "slept", "."], [Span(0, 1, "person")], types=("person",))
CORPUS = [NEWS, NEWS, NEWS, BOOK, BOOK] * 100


def texts(sentence: Sentence) -> list[tuple[str, str]]:
    return [(" ".join(sentence.words[e.start : e.end]), e.label) for e in sentence.entities]


def letters(sentence: Sentence) -> set[str]:
    """Return the names without spaces and capitals, which splitting and joining change."""
    return {text.replace(" ", "").lower() for text, _ in texts(sentence)}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (variation.in_lower_case, "in old rome , mr. fox met ada ."),
        (variation.in_upper_case, "IN OLD ROME , MR. FOX MET ADA ."),
        (variation.in_title_case, "In Old Rome , Mr. Fox Met Ada ."),
        (variation.without_capitals_and_punctuation, "in old rome mr. fox met ada"),
    ],
)
def test_capitals_and_punctuation(change, expected):
    varied = change(NEWS)
    assert " ".join(varied.words) == expected
    assert [text.lower() for text, _ in texts(varied)] == ["old rome", "rome", "mr. fox", "ada"]
    assert varied.types == NEWS.types


def test_split_and_joined_words_keep_their_entities(monkeypatch):
    monkeypatch.setattr(variation, "_DAMAGE", 0)
    monkeypatch.setattr(variation, "_SPLIT", 0.5)
    monkeypatch.setattr(variation, "_JOIN", 0.5)
    numbers = set()
    for seed in range(50):
        varied = variation.damaged(NEWS, Random(seed))
        varied.check()
        numbers.add(len(varied.words))
        assert "".join(varied.words) == "".join(NEWS.words)
        assert letters(varied) == letters(NEWS)
    assert min(numbers) < len(NEWS.words)


def test_characters_are_confused(monkeypatch):
    monkeypatch.setattr(variation, "_DAMAGE", 1)
    varied = variation.damaged(NEWS, Random(0))
    assert "".join(varied.words) != "".join(NEWS.words)
    assert len(varied.entities) == len(NEWS.entities)


def test_entities_without_words_disappear():
    sentence = Sentence(
        ["a", "b", "c"],
        [Span(1, 2, "x")],
        discontinuous=[Discontinuous(((0, 1), (2, 3)), "y")],
    )
    varied = variation.rewritten(sentence, [["a"], [], ["c", "d"]])
    assert (varied.words, varied.entities, varied.discontinuous) == (["a", "c", "d"], [], [])
    kept = variation.rewritten(sentence, [["a"], ["b", "b"], ["c", "d"]])
    assert kept.entities == [Span(1, 3, "x")]
    assert kept.discontinuous == [Discontinuous(((0, 1), (3, 5)), "y")]


def test_corpus_comes_first_and_copies_have_its_types():
    varied = list(variation.vary(CORPUS, 1.0, seed=3))
    assert varied[: len(CORPUS)] == CORPUS
    copies = varied[len(CORPUS) :]
    assert {copy.types for copy in copies} == {NEWS.types, BOOK.types}
    for copy in copies:
        copy.check()
        assert {e.label for e in copy.entities} <= set(copy.types or ())
    assert any(len(copy.words) > 20 and copy.words[0].islower() for copy in copies)  # a stretch
    assert any("|" in copy.words and copy.doc for copy in copies)  # a row of a table
    assert max(len(copy.words) for copy in copies) <= 250


def test_seed_and_share():
    first, again, other = (list(variation.vary(CORPUS, 0.3, seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert list(variation.vary(CORPUS, 0.0)) == CORPUS
    with pytest.raises(DataError, match="from 0 to 1"):
        list(variation.vary(CORPUS, 1.5))


def test_corpus_without_entities():
    sentences = [Sentence(["Nobody", "came", "."])] * 50
    assert all(not s.entities for s in variation.vary(sentences, 1.0))


def test_command(tmp_path, cli, refused):
    source, target = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    formats.write(source, CORPUS)
    result = cli("data", "vary", source, target, "--share", 0.5, "--seed", 1)
    assert result.status == 0, result.err
    assert formats.read(target)[0].entities == NEWS.entities
    assert len(formats.read(target)) > len(CORPUS)
    assert "is the same file as the input" in refused("data", "vary", source, source)
