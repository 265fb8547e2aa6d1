"""Nesting and crossing of entities, and the statistics of the paper's table of datasets."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffusionner.corpus import Discontinuous, Irregular, Sentence, Span
from diffusionner.data import plots
from diffusionner.data.fingerprint import fingerprint
from diffusionner.data.overlaps import (
    crossing_pairs,
    max_disjoint,
    max_without_crossing,
    nested_entities,
    nesting_depths,
)
from diffusionner.data.statistics import Statistics, collect_statistics
from diffusionner.errors import DataError

bounds = st.tuples(st.integers(0, 8), st.integers(1, 5)).map(lambda b: (b[0], b[0] + b[1]))
spans = st.builds(lambda b, label: Span(*b, label), bounds, st.sampled_from("AB"))


def inside(one: tuple, other: tuple) -> bool:
    return other[0] <= one[0] and one[1] <= other[1]


def overlap(one: tuple, other: tuple) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def cross(one: tuple, other: tuple) -> bool:
    return overlap(one, other) and not inside(one, other) and not inside(other, one)


def most(items: set, clash) -> int:
    """The size of the largest subset without a clash, by trying all."""
    for size in range(len(items), 0, -1):
        for subset in combinations(items, size):
            if not any(clash(a, b) for a, b in combinations(subset, 2)):
                return size
    return 0


@given(st.sets(spans, max_size=8))
def test_overlaps_against_brute_force(entities):
    pairs = [(a, b) for a in entities for b in entities if a != b]
    assert nested_entities(entities) == {a for a, b in pairs if inside(a, b) or inside(b, a)}
    around = {a: {b[:2] for b in entities if b[:2] != a[:2] and inside(a, b)} for a in entities}
    assert nesting_depths(entities) == {span: len(others) for span, others in around.items()}
    found = list(crossing_pairs(entities))
    assert all(cross(a, b) and a < b for a, b in found)
    # Everyone who crosses someone before it is named once.
    assert sorted(b for _, b in found) == sorted(
        {b for a, b in pairs if cross(a, b) and a.start < b.start}
    )


@given(st.sets(bounds, max_size=9))
def test_largest_subsets_against_brute_force(entities):
    assert max_disjoint(entities) == most(entities, overlap)
    assert max_without_crossing(entities) == most(entities, cross)


def test_many_entities_take_no_time():
    """0-3 with 1-3 inside, 2-5 with 3-5 inside, ...: those of three words cross in a chain."""
    many = {Span(i, i + 3 - i % 2, "A") for i in range(20_000)}
    assert len(nested_entities(many)) == 20_000
    assert len(nesting_depths(many)) == 20_000
    assert len(list(crossing_pairs(many))) == 9_999
    # 0-3 and those of two words.
    assert max_without_crossing({span[:2] for span in many}) == 10_001
    assert max_disjoint({span[:2] for span in many}) == 10_000


CORPUS = [
    # Two inside one: all three are nested.
    Sentence(
        ["the", "IL-2", "gene", "promoter"],
        [Span(1, 4, "DNA"), Span(1, 2, "protein"), Span(1, 3, "DNA")],
        doc="a",
    ),
    Sentence(["none"], [], doc="a"),
    # Crossing is not nested; the same words twice are; a duplicate counts once.
    Sentence(
        ["a", "b", "c", "d", "e"],
        [Span(0, 2, "X"), Span(1, 3, "X"), Span(4, 5, "X"), Span(4, 5, "Y"), Span(4, 5, "Y")],
        doc="b",
    ),
    Sentence(["f", "g"], [Span(0, 1, "X")], irregular=[Irregular(((0, 1), (2, 3)), "Z")]),
]


def test_statistics_by_hand():
    statistics, found = collect_statistics(iter(CORPUS))
    assert found == fingerprint(CORPUS)
    assert statistics.to_dict() == {
        "documents": 2,
        "sentences": 4,
        "sentences_with_nested_entities": 2,
        "words": 12,
        "average_sentence_length": 3.0,
        "entities": 8,
        "nested_entities": 5,
        "nesting_ratio": 62.5,
        "maximum_entities": 4,
        "average_entities": 2.0,
        "longest_sentence": 5,
        "longest_entity": 3,
        "discontinuous": 0,
        "maximum_fragments": 0,
        "irregular": 1,
        "labels": {"X": 4, "DNA": 2, "Y": 1, "Z": 1, "protein": 1},
        "sentence_lengths": {"1": 1, "2": 1, "4": 1, "5": 1},
        "entity_lengths": {"1": 4, "2": 3, "3": 1},
        "nesting_depths": {"0": 6, "1": 1, "2": 1},
        "fragments": {},
    }


def test_statistics_of_discontinuous_entities():
    two, three = ((0, 2), (4, 5)), ((0, 1), (2, 3), (4, 5))
    sentence = Sentence(
        list("abcde"),
        [Span(0, 5, "X"), Span(1, 2, "X")],
        discontinuous=[Discontinuous(two, "X"), Discontinuous(two, "X"), Discontinuous(three, "Y")],
    )
    statistics, _ = collect_statistics([sentence])
    found = statistics.to_dict()
    counts = ("entities", "discontinuous", "maximum_fragments", "maximum_entities", "irregular")
    assert [found[name] for name in counts] == [4, 2, 3, 4, 0]
    assert found["fragments"] == {"2": 1, "3": 1}
    assert found["labels"] == {"X": 3, "Y": 1}
    assert found["entity_lengths"] == {"1": 1, "3": 2, "5": 1}
    assert (found["nested_entities"], found["nesting_depths"]) == (2, {"0": 1, "1": 1})


def test_statistics_of_nothing():
    empty = Statistics().to_dict()
    assert empty["nesting_ratio"] == empty["average_entities"] == 0


@pytest.mark.parametrize("name", ["a.png", "a.SVG", "a.pdf"])
def test_plot(tmp_path, name):
    pytest.importorskip("matplotlib")
    statistics, _ = collect_statistics(CORPUS)
    statistics.labels.update({"<&$_{": 3, "实体": 2})  # neither formula nor markup
    empty, _ = collect_statistics([])
    path = tmp_path / "new" / name
    contents = []
    for _ in range(2):
        plots.plot({"_one$": statistics, "empty": empty}, path)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    begins = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert contents[0].startswith(begins[path.suffix.lower()])
    assert [p.name for p in path.parent.iterdir()] == [name]


def test_plot_with_another_extension_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"one of \.png, \.svg, \.pdf"):
        plots.plot({}, tmp_path / "a.jpg")


def test_plot_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(DataError, match=r"\.\[plot\]"):
        plots.check_path(tmp_path / "a.png")
