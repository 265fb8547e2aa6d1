"""Results in the form of GLiNER's `predict_entities`, so that models are easily exchanged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from diffusionner.corpus import Entity
from diffusionner.errors import SettingsError
from diffusionner.inference.decoding import choose_spans

FIELDS = ("start", "end", "text", "label", "score")  # in GLiNER's order


def check_types(labels: Iterable[str], known: Sequence[str]) -> None:
    if isinstance(labels, str):  # its letters would be taken for types
        raise TypeError(f"labels is a list of types, such as [{labels!r}], not a string")
    unknown = [label for label in labels if label not in known]
    if unknown:
        raise SettingsError(
            f"the model has no type {', '.join(map(repr, unknown))}; its types are fixed by its "
            f"training: {', '.join(known)}"
        )


def to_gliner(
    entities: Iterable[Entity], labels: Iterable[str] | None, policy: str
) -> list[dict[str, Any]]:
    """Return the entities of the given types that an overlap policy keeps, in reading order."""
    wanted = None if labels is None else set(labels)
    ranked = [
        entity
        for entity in sorted(entities, key=lambda e: (-e.score, e.start, e.end))
        if wanted is None or entity.label in wanted
    ]
    chosen = choose_spans([(e.start, e.end, e.score) for e in ranked], policy)
    kept = sorted((ranked[i] for i in chosen), key=lambda e: (e.start, -e.end))
    return [{name: getattr(entity, name) for name in FIELDS} for entity in kept]
