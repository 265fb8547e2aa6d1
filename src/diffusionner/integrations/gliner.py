"""Results in the form of GLiNER's `predict_entities`, so that models are easily exchanged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from diffusionner.corpus import Entity
from diffusionner.errors import SettingsError

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
    entities: Iterable[Entity], labels: Iterable[str] | None, flat: bool
) -> list[dict[str, Any]]:
    """Return the best entities of the given types that do not overlap, or do not cross."""
    wanted = None if labels is None else set(labels)
    clash = _overlap if flat else _cross
    kept: list[Entity] = []
    for entity in sorted(entities, key=lambda e: (-e.score, e.start, e.end)):
        is_wanted = wanted is None or entity.label in wanted
        if is_wanted and not any(clash(entity, other) for other in kept):
            kept.append(entity)
    kept.sort(key=lambda e: (e.start, -e.end))
    return [{name: getattr(entity, name) for name in FIELDS} for entity in kept]


def _overlap(a: Entity, b: Entity) -> bool:
    return a.start < b.end and b.start < a.end


def _cross(a: Entity, b: Entity) -> bool:
    return a.start < b.start < a.end < b.end or b.start < a.start < b.end < a.end
