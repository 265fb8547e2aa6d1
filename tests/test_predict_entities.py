"""predict_entities, the interface of GLiNER."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffusionner import DiffusionNER, Entity
from diffusionner.errors import SettingsError
from diffusionner.integrations.gliner import to_gliner
from models import LABELS, lively_model

TEXT = "Ada met A b c d e f g h i j k l m n o p in London. In 1999 it rained."
FIELDS = ["start", "end", "text", "label", "score"]


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return lively_model(encoder_folder)


def test_same_form_as_gliner(ner):
    entities = ner.predict_entities(TEXT, LABELS, threshold=0.0)
    assert entities and all(list(entity) == FIELDS for entity in entities)
    for entity in entities:
        assert entity["text"] == TEXT[entity["start"] : entity["end"]]
    ends = [0, *(entity["end"] for entity in entities)]
    assert all(end <= e["start"] for end, e in zip(ends, entities, strict=False))
    found = {(e.start, e.end, e.label, e.score) for e in ner(TEXT, overlap="all", threshold=0.0)}
    assert {(e["start"], e["end"], e["label"], e["score"]) for e in entities} <= found


def test_threshold(ner):
    every = ner(TEXT, overlap="all", threshold=0.0)
    middle = sorted(e.score for e in every)[len(every) // 2]
    better = [e for e in every if e.score >= middle]
    assert 0 < len(better) < len(every)
    assert ner.predict_entities(TEXT, LABELS, middle) == to_gliner(better, "flat view")
    assert ner.predict_entities(TEXT) == ner.predict_entities(TEXT, threshold=0.5)


def test_only_some_types(ner):
    found = {label: ner.predict_entities(TEXT, [label], 0.0) for label in LABELS}
    assert sum(bool(entities) for entities in found.values()) > 1
    for label, entities in found.items():
        assert all(e["label"] == label for e in entities)
    assert ner.predict_entities(TEXT, [], 0.0) == []


def test_unknown_types(ner):
    with pytest.raises(SettingsError, match=r"no type 'person', 'x'; .*: FAC, GPE, PER"):
        ner.predict_entities(TEXT, ["person", "PER", "x"])


def test_labels_must_be_a_list(ner):
    with pytest.raises(TypeError, match=r"a list of types, such as \['PER'\], not a string"):
        ner.predict_entities(TEXT, "PER")


def test_other_types_do_not_exclude_entities():
    """A better entity of another type contains a requested one; a third one crosses it."""
    outer, inner = Entity(0, 20, "ORG", 0.9, "o"), Entity(5, 9, "PER", 0.6, "i")
    found = [outer, inner, Entity(7, 12, "PER", 0.5, "c")]

    def texts(labels: list[str] | None, policy: str) -> list[str]:
        wanted = [e for e in found if labels is None or e.label in labels]
        return [e["text"] for e in to_gliner(wanted, policy)]

    assert texts(["PER"], "flat") == texts(["PER"], "flat view") == ["i"]
    assert texts(None, "flat") == texts(None, "flat view") == ["o"]
    assert texts(None, "nested") == ["o", "i"]


def test_the_outer_entity_of_a_nested_model(ner):
    assert ner.settings.inference.overlap != "flat"
    every = ner(TEXT, overlap="all", threshold=0.0)
    flat = ner.predict_entities(TEXT, threshold=0.0)
    assert flat == to_gliner(every, "flat view") != to_gliner(every, "flat")


def test_other_settings(ner):
    one = ner.predict_entities(TEXT, threshold=0.0, steps=1)
    assert one != ner.predict_entities(TEXT, threshold=0.0, steps=3)
