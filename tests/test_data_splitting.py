"""Splits: a partition, documents whole, in proportion, and the same for the same seed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffusionner import formats
from diffusionner.corpus import Discontinuous, Sentence, Span
from diffusionner.data.splitting import (
    assign_parts,
    number_units,
    parse_shares,
    split,
    unit_amounts,
)
from diffusionner.errors import DataError, WriteError
from diffusionner.formats.documents import TextDocument, to_sentences

THREE = parse_shares("train=0.8,dev=0.1,test=0.1")
HALVES = {"x": 0.5, "y": 0.5}

sentences = st.lists(
    st.builds(
        lambda doc, labels: Sentence(
            [f"w{i}" for i in range(len(labels) + 1)],
            [Span(i, i + 1, label) for i, label in enumerate(labels)],
            doc,
        ),
        st.sampled_from([None, "a", "b", "c", "d"]),
        st.lists(st.sampled_from("XYZ"), max_size=3),
    ),
    max_size=25,
)
shares = st.lists(st.integers(1, 9), min_size=2, max_size=4).map(
    lambda weights: [weight / sum(weights) for weight in weights]
)


@given(sentences, shares, st.integers(0, 3))
def test_properties(corpus, parts, seed):
    numbered = list(number_units(corpus))
    amounts = unit_amounts(corpus)
    assert len(amounts) == len({number for number, _ in numbered})
    if len(amounts) < len(parts):
        with pytest.raises(DataError, match=f"cannot be split into {len(parts)} parts"):
            assign_parts(amounts, parts, seed)
        return
    chosen = assign_parts(amounts, parts, seed)
    assert chosen == assign_parts(amounts, parts, seed)
    assert set(chosen) == set(range(len(parts)))  # each unit has a part, no part is empty
    of_document: dict[str, set[int]] = {}
    for number, sentence in numbered:
        if sentence.doc is not None:
            of_document.setdefault(sentence.doc, set()).add(chosen[number])
    assert all(len(parts) == 1 for parts in of_document.values())


def test_measure_by_hand():
    corpus = [
        Sentence(["a", "b"], [Span(0, 2, "X"), Span(0, 1, "Y")], "d"),
        Sentence(["c"], [Span(0, 1, "Y")], None),
        Sentence(["e"], [Span(0, 1, "Y")], "d"),
        Sentence(["f"], [], None),
        Sentence(list("abc"), discontinuous=[Discontinuous(((0, 1), (2, 3)), "Y")]),
    ]
    assert [number for number, _ in number_units(corpus)] == [0, 1, 0, 2, 3]
    assert [dict(unit) for unit in unit_amounts(corpus)] == [
        {0: 2, 1: 2, "X": 1, "Y": 2},
        {0: 1, "Y": 1},
        {0: 1},
        {0: 1, 2: 1, "Y": 1},
    ]


def test_sentences_of_a_text_stay_together():
    texts = ["One is here. Two is there.", "Three."]
    corpus = [s for text in texts for s in to_sentences(TextDocument(text))]
    assert [number for number, _ in number_units(corpus)] == [0, 0, 1]


def test_proportions():
    """1000 sentences in 100 documents of very different sizes; label R is in ten of them."""
    corpus = []
    for doc in range(100):
        for line in range(1 + doc % 19):
            entities = [Span(0, 2, "A"), Span(1, 2, "B")] if line % 3 else [Span(0, 1, "C")]
            if doc % 10 == 0 and line == 0:
                entities.append(Span(3, 4, "R"))
            corpus.append(Sentence(["a", "b", "c", "d"], entities, f"d{doc}"))
    amounts = unit_amounts(corpus)
    total: Counter = Counter()
    for unit in amounts:
        total.update(dict(unit))
    for seed in range(3):
        chosen = assign_parts(amounts, list(THREE.values()), seed)
        for index, share in enumerate(THREE.values()):
            got: Counter = Counter()
            for unit, where in zip(amounts, chosen, strict=True):
                if where == index:
                    got.update(dict(unit))
            assert got["R"] == round(10 * share)
            for feature in total:
                assert got[feature] / total[feature] == pytest.approx(share, abs=0.02)
    assert chosen != assign_parts(amounts, list(THREE.values()), 0)


def test_as_few_documents_as_parts():
    corpus = [Sentence(["w"], [Span(0, 1, "X")], doc) for doc in "aab"]
    assert sorted(assign_parts(unit_amounts(corpus), [0.99, 0.01], 0)) == [0, 1]
    with pytest.raises(DataError, match="2 documents"):
        assign_parts(unit_amounts(corpus), [0.8, 0.1, 0.1], 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a part"),
        ("train", "'train' is not a part"),
        ("train=1.0", "'train=1.0' is not a part"),
        ("train=0.5,dev=x", "'dev=x' is not a part"),
        ("train=0.5,dev=nan", "'dev=nan' is not a part"),
        ("train=1.5,dev=-0.5", "'train=1.5' is not a part"),
        ("../train=0.5,dev=0.5", "is not a part"),
        (".=0.5,dev=0.5", "is not a part"),
        ("a=0.5,A=0.5", "two parts 'a'"),
        ("a=0.5,b=0.4", "sum to 0.9"),
        ("a=0.5", "sum to 0.5"),
    ],
)
def test_impossible_parts(text, message):
    with pytest.raises(DataError, match=message.replace("..", r"\.\.")):
        parse_shares(text)


def test_shares_that_floats_cannot_add():
    assert len(parse_shares(",".join(f"p{i}=0.1" for i in range(10)))) == 10


@pytest.mark.parametrize("seed", [0, 7])
def test_written_parts_are_the_corpus(tmp_path, nested_sentences, seed):
    paths = {name: tmp_path / f"{name}.jsonl" for name in THREE}
    corpus = [Sentence(s.words, s.entities) for s in nested_sentences]
    found = split(lambda: iter(corpus), THREE, paths, seed, "jsonl")
    written = {part: formats.read(path) for part, path in paths.items()}
    for part, statistics in found.items():
        assert statistics.sentences == len(written[part]) > 0
        assert statistics.entities == sum(len(s.entities) for s in written[part])
    place = {tuple(s.words): i for i, s in enumerate(corpus)}
    order = [[place[tuple(s.words)] for s in each] for each in written.values()]
    assert all(numbers == sorted(numbers) for numbers in order)
    assert sorted(i for numbers in order for i in numbers) == sorted(place.values())
    for each in written.values():
        for sentence in each:
            assert sentence.entities == corpus[place[tuple(sentence.words)]].entities


def test_no_part_is_written_when_one_cannot_be(tmp_path):
    """The second part has a word that CoNLL columns cannot represent."""
    corpus = [Sentence(["a"], [], "a"), Sentence(["b c"], [], "b")]
    paths = {name: tmp_path / name for name in HALVES}
    for path in paths.values():
        path.write_text("old")
    with pytest.raises(DataError, match="cannot represent"):
        split(lambda: iter(corpus), HALVES, paths, 0, "conll")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"x": "old", "y": "old"}


def test_folders_are_written_all_or_none(tmp_path):
    corpus = [Sentence(["a", "b"], [Span(0, 1, "X")], name) for name in "abc"]
    paths = {name: tmp_path / name for name in HALVES}
    split(lambda: iter(corpus), HALVES, paths, 0, "brat")
    read = [s for path in paths.values() for s in formats.read(path)]
    assert sorted(s.doc for s in read) == ["a", "b", "c"]
    again = {name: tmp_path / f"new-{name}" for name in HALVES}
    (tmp_path / "new-y").mkdir()
    with pytest.raises(WriteError, match="new-y already exists"):
        split(lambda: iter(corpus), HALVES, again, 0, "brat")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new-y", "x", "y"]
