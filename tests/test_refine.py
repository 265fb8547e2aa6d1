"""Refining spans that a caller gives."""

from __future__ import annotations

import random
from collections import Counter
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest
import torch

from diffusionner import DiffusionNER, Entity
from diffusionner.corpus import Sentence, join_words
from diffusionner.errors import DataError, SettingsError
from diffusionner.refinement import GivenSpan, GivenSpans
from diffusionner.text import split_sentences
from models import assert_same, assert_same_refinements, lively_model, shifted, spans

TEXT = "Ada Lovelace met Charles Babbage in London.  They talked about engines.\n\nIt rained."


def growing_model(encoder_folder: Path, *changes: str) -> DiffusionNER:
    """A model whose spans are all entities, and grow by up to three words on each side."""
    ner = lively_model(
        encoder_folder,
        "decoder.offset_window=3",
        "decoder.initializer=spans",
        "inference.start=candidates",
        "inference.spans=auto",
        *changes,
    )
    decoder = ner.network.decoder
    with torch.no_grad():
        for pointer in (decoder.left, decoder.right):
            pointer.output.weight /= 50
        decoder.offsets.output.weight *= 30
        left, right = decoder.offsets.output.bias.view(2, -1)
        left[4:], right[:3] = -1e5, -1e5
        decoder.offsets.output.bias += 1e4
    return ner


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return growing_model(encoder_folder)


@pytest.fixture(scope="module")
def contextual(encoder_folder: Path) -> DiffusionNER:
    return growing_model(encoder_folder, "encoder.context=2")


@pytest.fixture(scope="module")
def items(nested_sentences: list[Sentence]) -> list[tuple[str, list[tuple[int, int, str]]]]:
    """Texts of several sentences with random spans, the fourth without any."""
    generator = random.Random(0)
    found = []
    for number in range(8):
        words = [w for s in nested_sentences[3 * number : 3 * number + 3] for w in s.words]
        text, _ = join_words(words)
        given = []
        for _ in range(12 if number != 3 else 0):
            start = generator.randrange(len(text))
            end = min(len(text), start + generator.randint(1, 30))
            given.append((start, end, generator.choice(["PER", "FAC"])))
        found.append((text, given))
    return found


# --- What is accepted ---------------------------------------------------------------------------


def test_forms_of_spans(ner):
    forms = [
        (0, 12, "PER"),
        [0, 12, "PER", 0.3],
        Entity(0, 12, "PER", 0.3, "Ada Lovelace", 4),
        {"start": 0, "end": 12, "label": "PER", "score": 0.3, "text": "Ada Lovelace"},
        (np.int64(0), np.int64(12), "PER"),
    ]
    outcomes = ner.refine(TEXT, forms).outcomes
    assert {outcome.given[:3] for outcome in outcomes} == {(0, 12, "PER")}
    assert [outcome.given.score for outcome in outcomes] == [None, 0.3, 0.3, 0.3, None]
    assert len({outcome[1:] for outcome in outcomes}) == 1
    bare = ner.refine(TEXT, [(0, 12), {"start": 0, "end": 12}]).outcomes
    assert {outcome.given for outcome in bare} == {GivenSpan(0, 12)}


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ((0, len(TEXT) + 1), r"text 0, span 1: \[0, 84\) is empty or outside the text.* 83;"),
        ((-1, 3), "outside the text"),
        ((3, 3), "empty"),
        ((5, 3), "empty"),
        ((0.0, 3), "whole numbers"),
        (("0", 3), "whole numbers"),
        ({"start": 0, "label": "PER"}, "whole numbers, not 0, None"),
        ((0,), r"expected \(start, end\)"),
        ("Ada", r"expected \(start, end\)"),
        (7, r"expected \(start, end\)"),
        ((0, 3, 5), "must be a string or None, not 5"),
        ((0, 3, "PERSON"), "unknown label 'PERSON'; the model knows: FAC, GPE, PER.*label_map"),
    ],
)
def test_bad_spans_are_errors(ner, span, message):
    with pytest.raises(DataError, match=message):
        ner.refine(TEXT, [(0, 3), span])


def test_labels_are_translated(ner):
    given = [(0, 12, "PERSON"), (0, 12, "GPE"), (0, 12, "DATE"), (0, 12)]
    outcomes = ner.refine(TEXT, given, label_map={"PERSON": "PER", "DATE": None}).outcomes
    assert [o.given.label for o in outcomes] == ["PERSON", "GPE", "DATE", None], "as given"
    label = outcomes[0].entity.label
    for outcome, own in zip(outcomes, ("PER", "GPE", None, None), strict=True):
        assert ("retyped" in outcome.change) == (own is not None and own != label)
    with pytest.raises(DataError, match="unknown label 'PERS'; the model knows"):
        ner.refine(TEXT, [(0, 12, "X")], label_map={"X": "PERS"})


def test_nothing_to_refine(ner):
    for only in (True, False):
        assert ner.refine("", [], only) == ([], [])
        assert ner.refine(" \n", [(0, 1)], only).outcomes[0].change == "dropped"
    assert ner.refine(TEXT, [], only=True) == ([], [])
    assert list(ner.refine_pipe([])) == []


def test_what_is_read_is_known(ner):
    refined = ner.refine(TEXT, [(0, 3)])
    assert refined.entities.text == TEXT and not refined.entities.coverage.unread


def test_refining_needs_steps_and_candidates(ner, encoder_folder):
    plain = lively_model(encoder_folder)
    with pytest.raises(SettingsError, match="not with noise; pass only=True"):
        plain.refine(TEXT, [(0, 3)])
    assert plain.refine(TEXT, [(0, 3)], only=True).outcomes
    with pytest.raises(SettingsError, match="not with noise"):
        ner.refine(TEXT, [(0, 3)], start="noise")
    for timestep in (0, 2, 101):
        with pytest.raises(SettingsError, match=rf"timestep={timestep}.*expected 3 to 100"):
            ner.refine_pipe([(TEXT, [(0, 3)])], timestep=timestep)


# --- Where spans are placed ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("span", "words"),
    [
        ((0, 12), [(0, 0, 1)]),
        ((1, 2), [(0, 0, 0)]),  # inside a word
        ((2, 5), [(0, 0, 1)]),  # parts of two
        ((16, 33), [(0, 3, 4)]),  # with the spaces around
        ((12, 13), []),  # a space
        ((43, 45), []),  # between two sentences
        ((36, 49), [(0, 6, 7), (1, 0, 0)]),  # "London.  They"
        ((0, len(TEXT)), [(0, 0, 7), (1, 0, 4), (2, 0, 2)]),
    ],
)
def test_spans_are_extended_to_the_words_of_each_sentence(span, words):
    given = GivenSpans([span], len(TEXT), split_sentences(TEXT), [])
    placed = [(i, p.left, p.right) for i, own in enumerate(given.placed) for p in own]
    assert placed == words


def test_no_entity_has_more_than_ten_sentences():
    text = "It rained. " * 12
    sentences = split_sentences(text)
    spans = [(0, 11 * 10 - 1), (0, 11 * 10 + 1), (5, len(text))]
    placed = GivenSpans(spans, len(text), sentences, []).placed
    assert [[span.number for span in own] for own in placed] == [[0]] * 10 + [[]] * 2


def test_spans_over_several_sentences(ner):
    """Each part is denoised; the outcome is the entity that covers the span best."""
    (outcome,) = outcomes = ner.refine(TEXT, [(36, 70)], only=True).outcomes
    entities = ner.refine(TEXT, [(36, 70)], only=True).entities
    parts = ner.refine(TEXT, [(36, 43), (45, 70)], only=True)
    assert_same([entities], [[e for e in parts.entities if e == outcomes[0].entity]])
    assert outcome.change == "moved"
    assert {o.entity for o in parts.outcomes} > {outcome.entity}


def test_words(ner):
    """Offsets count words if the text is given as words."""
    words = "Ada Lovelace met Charles Babbage in London .".split()
    text, offsets = join_words(words)
    found = ner.refine(words, [(0, 2, "PER"), (3, 5)])
    expected = ner.refine(text, [(0, 12, "PER"), (17, 32)])
    assert spans(expected.entities) == [
        (offsets[e.start][0], offsets[e.end - 1][1], e.label) for e in found.entities
    ]
    assert [o.change for o in found.outcomes] == [o.change for o in expected.outcomes]
    with pytest.raises(
        DataError, match=r"\[7, 9\) is empty or outside the text, whose length is 8"
    ):
        ner.refine(words, [(7, 9)])


# --- What becomes of spans ----------------------------------------------------------------------


def check_outcomes(refined, given, only):
    """Outcomes agree with the entities and with the given spans."""
    assert [tuple(o.given[:3]) for o in refined.outcomes] == given
    for outcome in refined.outcomes:
        if outcome.change == "dropped":
            assert outcome.entity is None
            continue
        start, end, label = outcome.given[:3]
        entity = outcome.entity
        assert any(entity is one for one in refined.entities)
        assert entity.start < end and start < entity.end
        assert ("moved" in outcome.change) == ((entity.start, entity.end) != (start, end))
        assert ("retyped" in outcome.change) == (entity.label != label)
        assert (outcome.change == "kept") == (entity[:3] == (start, end, label))
    if only:
        became = [outcome.entity for outcome in refined.outcomes]
        assert all(any(entity is one for one in became) for entity in refined.entities)


@pytest.mark.parametrize("only", [True, False])
@pytest.mark.parametrize("options", [{}, {"steps": 1}, {"overlap": "flat"}, {"overlap": "nested"}])
def test_outcomes(ner, items, only, options):
    changes = Counter()
    for text, given in items:
        refined = ner.refine(text, given, only, **options)
        check_outcomes(refined, given, only)
        changes.update(outcome.change for outcome in refined.outcomes)
    assert {"moved and retyped", "dropped"} <= set(changes) and len(changes) > 2


def test_equal_spans_become_one_entity(ner):
    for bounds in ((0, 3), (17, 24), (0, 43)):
        refined = ner.refine(TEXT, [(*bounds, label) for label in ("FAC", "GPE", "PER", None)])
        (entity,) = {outcome.entity for outcome in refined.outcomes}
        assert all(outcome.entity is entity for outcome in refined.outcomes)
        retyped = [label for label in ("FAC", "GPE", "PER") if label != entity.label]
        changes = ["retyped" in outcome.change for outcome in refined.outcomes]
        assert changes == [label in retyped for label in ("FAC", "GPE", "PER", None)]


def test_an_entity_of_the_result_is_kept(ner):
    """The whole sentence cannot grow."""
    refined = ner.refine(TEXT, [(0, 43)], only=True)
    (entity,) = refined.entities
    assert refined.outcomes == [(GivenSpan(0, 43), "kept", entity)]
    other = next(label for label in ner.labels if label != entity.label)
    assert ner.refine(TEXT, [(0, 43, other)], True).outcomes[0].change == "retyped"
    assert ner.refine(TEXT, [(0, 43, entity.label)], True).outcomes[0].change == "kept"
    assert ner.refine(TEXT, [(0, 41, entity.label)], True).outcomes[0].change == "moved"


def test_spans_that_leave_their_place_are_dropped(encoder_folder, items):
    """All spans of this model are entities, but far from where they were."""
    changes = Counter()
    for text, given in items[:3]:
        refined = lively_model(encoder_folder).refine(text, given, only=True)
        check_outcomes(refined, given, only=True)
        changes.update(outcome.change for outcome in refined.outcomes)
    assert changes["dropped"] > 3 and changes["moved and retyped"] > 3


def test_below_the_threshold_and_lost_overlaps_are_dropped(ner, items):
    text, given = items[0]
    everything = ner.refine(text, given, only=True)
    assert {o.change for o in ner.refine(text, given, True, phi=3).outcomes} == {"dropped"}
    flat = ner.refine(text, given, True, overlap="flat")
    lost = [o for o in flat.outcomes if o.change == "dropped"]
    assert len(lost) > sum(o.change == "dropped" for o in everything.outcomes)


def test_only_the_descendants_of_given_spans(ner, items):
    for text, given in items:
        alone, together = ner.refine(text, given, True), ner.refine(text, given)
        assert len(together.entities) > len(alone.entities)
    assert not ner.refine(*items[3], True).entities, "no spans, no entities"


def test_together_with_candidates(ner, items):
    """Without other spans than the candidates, the entities are those of the model."""
    for text, _ in items:
        own = ner(text, steps=3)
        assert_same([ner.refine(text, []).entities], [own])
    text = "Ada met Bob"  # has few spans, so that all of them are candidates
    bounds = [(a, b) for a in (0, 4, 8) for b in (3, 7, 11) if a < b]
    with shifted(ner, 100):
        assert_same([ner.refine(text, bounds * 2).entities], [ner(text, steps=3)])
        assert ner.refine(text, bounds).entities[0].votes == ner(text, steps=3)[0].votes


def test_given_spans_are_denoised_whatever_the_initializer_thinks(ner):
    given = [(0, 3), (17, 24), (36, 42)]
    with shifted(ner, -100):
        refined = ner.refine(TEXT, given)
    assert [o.change for o in refined.outcomes].count("dropped") == 0


# --- Batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("only", [True, False])
@pytest.mark.parametrize("options", [{}, {"steps": 5, "eta": 0.5}])
def test_results_do_not_depend_on_the_batch(contextual, items, only, options):
    alone = [contextual.refine(*item, only, **options) for item in items]
    assert sum(len(one.entities) for one in alone) > len(items)
    for size in (1, 5, 1000):
        together = contextual.refine_pipe(items, only, batch_size=size, **options)
        assert_same_refinements(list(together), alone)
    assert_same_refinements(list(contextual.refine_pipe(items[::-1], only, **options)), alone[::-1])


def test_neighbours_are_context(contextual, items):
    words = [(text.split(), [(0, 2, "PER"), (3, 4, "FAC")]) for text, _ in items]
    apart = list(contextual.refine_pipe(words))
    assert_same_refinements(apart, [contextual.refine(*item) for item in words])
    same = list(contextual.refine_pipe([(*item, "a") for item in words], batch_size=3))
    assert [one.entities for one in same] != [one.entities for one in apart]
    assert_same_refinements(same, list(contextual.refine_pipe([(*item, "a") for item in words])))


def test_a_stream_is_read_as_it_is_needed(ner):
    read = count()
    endless = ((TEXT, [(0, 3)]) for _ in read)
    first = list(islice(ner.refine_pipe(endless, batch_size=4), 3))
    assert len(first) == 3 and next(read) < 100


@pytest.mark.parametrize("only", [True, False])
def test_long_sentences(ner, nested_sentences, only):
    """A sentence of several windows; spans at their edges and one over all of it."""
    words = [word for s in nested_sentences for word in s.words][:300]
    given = [(start, start + 2, "PER") for start in range(0, 298, 7)] + [(0, 300, "PER")]
    refined = ner.refine(words, given, only)
    check_outcomes(refined, given, only)
    changes = [outcome.change for outcome in refined.outcomes]
    assert changes.count("dropped") < len(changes) / 4
    batched = list(ner.refine_pipe([(["x"], []), (words, given), (words[:9], [])], only))
    assert_same_refinements(batched[1:2], [refined])


# --- The shipped model --------------------------------------------------------------------------


def test_the_shipped_model(provided):
    ner = DiffusionNER.from_pretrained(provided("en"), device="cpu")
    text = "Ada Lovelace wrote to Charles Babbage from London. She never saw Paris."
    given = [
        (0, 12, "person"),
        (22, 29, "person"),  # Charles
        (43, 49, "organization"),  # London
        (19, 37, "organization"),  # to Charles Babbage
        (13, 18, "person"),  # wrote
    ]
    refined = ner.refine(text, given, only=True)
    assert [outcome.change for outcome in refined.outcomes] == [
        "kept", "moved", "retyped", "moved and retyped", "dropped",
    ]  # fmt: skip
    assert [e.text for e in refined.entities] == ["Ada Lovelace", "Charles Babbage", "London"]
    assert refined.outcomes[1].entity is refined.outcomes[3].entity
    together = ner.refine(text, given)
    assert [o.change for o in together.outcomes] == [o.change for o in refined.outcomes]
    assert [e.text for e in together.entities][-1] == "Paris"
