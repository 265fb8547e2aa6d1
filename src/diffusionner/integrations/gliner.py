"""Results in the form of GLiNER's `predict_entities`, so that models are easily exchanged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from diffusionner.corpus import Entity
from diffusionner.inference.decoding import choose_spans

FIELDS = ("start", "end", "text", "label", "score", "fragments")  # in GLiNER's order


def to_gliner(entities: Iterable[Entity], policy: str) -> list[dict[str, Any]]:
    """Return the entities that an overlap policy keeps, in reading order.

    Discontinuous entities also have their `fragments`. As in all predictions, they must be disjoint
    from others only if all have to be.
    """
    ranked = sorted(entities, key=lambda e: (-e.score, e.start, e.end))
    whole = [entity for entity in ranked if not entity.gaps]
    kept = [whole[i] for i in choose_spans([(e.start, e.end, e.score) for e in whole], policy)]
    for entity in ranked:
        disjoint = policy.startswith("flat")
        if entity.gaps and not (disjoint and any(_overlap(entity, other) for other in kept)):
            kept.append(entity)
    kept.sort(key=lambda e: (e.start, -e.end))
    return [_to_dict(entity) for entity in kept]


def _to_dict(entity: Entity) -> dict[str, Any]:
    fields = entity.to_dict()
    return {name: fields[name] for name in FIELDS if name in fields}


def _overlap(one: Entity, other: Entity) -> bool:
    return any(
        start < other_end and other_start < end
        for start, end in one.fragments
        for other_start, other_end in other.fragments
    )
