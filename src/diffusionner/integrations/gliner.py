"""Results in the form of GLiNER's `predict_entities`, so that models are easily exchanged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from diffusionner.corpus import Entity
from diffusionner.inference.decoding import choose_spans

FIELDS = ("start", "end", "text", "label", "score")  # in GLiNER's order


def to_gliner(entities: Iterable[Entity], policy: str) -> list[dict[str, Any]]:
    """Return the entities that an overlap policy keeps, in reading order."""
    ranked = sorted(entities, key=lambda e: (-e.score, e.start, e.end))
    chosen = choose_spans([(e.start, e.end, e.score) for e in ranked], policy)
    kept = sorted((ranked[i] for i in chosen), key=lambda e: (e.start, -e.end))
    return [{name: getattr(entity, name) for name in FIELDS} for entity in kept]
