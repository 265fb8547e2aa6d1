"""Results in the form of GLiNER's `predict_entities`, so that models are easily exchanged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from diffusionner.corpus import Entity
from diffusionner.inference.decoding import choose_entities

FIELDS = ("start", "end", "text", "label", "score", "fragments")  # in GLiNER's order


def to_gliner(entities: Iterable[Entity], policy: str) -> list[dict[str, Any]]:
    """Return the entities that an overlap policy keeps, in reading order.

    Discontinuous entities also have their `fragments`.
    """
    ranked = sorted(entities, key=lambda e: (-e.score, e.start, e.end))
    chosen = choose_entities([(e.fragments, e.score) for e in ranked], policy)
    kept = sorted((ranked[i] for i in chosen), key=lambda e: (e.start, -e.end))
    return [_to_dict(entity) for entity in kept]


def _to_dict(entity: Entity) -> dict[str, Any]:
    fields = entity.to_dict()
    return {name: fields[name] for name in FIELDS if name in fields}
