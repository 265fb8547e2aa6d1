"""The script of the recipe of `en` that tells kinds of places apart."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from diffusionner.corpus import Sentence, Span

SCRIPT = Path(__file__).parents[1] / "models/en/recipe/resolve.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="a source distribution has no models")
PLACES = ("city or country", "facility", "location")


def test_places_and_names_are_resolved():
    known = [Sentence(["Oslo"], [Span(0, 1, "city or country")], types=PLACES)] * 3
    places = [
        Sentence([*"We left Oslo for Swan River .".split()], types=("person", "place")),
        Sentence([*"over the Great Quux hills".split()], types=("person", "place")),
    ]
    places[0].entities = [Span(2, 3, "place"), Span(4, 6, "place")]
    places[1].entities = [Span(1, 4, "place"), Span(0, 1, "person")]
    names = Sentence(["Ada", "met", "Bob"], [Span(0, 1, "person")], types=("other name", "person"))
    script = runpy.run_path(str(SCRIPT))
    found = list(script["resolve"]([*known, *places, names], script["Places"](known)))[3:]
    decided, undecided = found[:2]
    assert decided.entities == [Span(2, 3, "city or country"), Span(4, 6, "location")]
    assert decided.types == (*PLACES, "person")
    assert undecided.entities == [Span(0, 1, "person")], "of an unknown kind"
    assert undecided.types == ("person",)
    assert len(found) == 2, "Bob was not marked, so nothing is known of persons"
