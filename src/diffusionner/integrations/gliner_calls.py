"""The call of GLiNER, so that who uses it can change models and little else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from diffusionner.corpus import Entity
from diffusionner.errors import SettingsError
from diffusionner.inference.decoding import DecodedEntity, resolve_overlaps


def check_types(labels: Iterable[str], known: Sequence[str]) -> None:
    if isinstance(labels, str):  # whose letters would be taken for types
        raise TypeError(f"labels is a list of types, such as [{labels!r}], not a string")
    unknown = [label for label in labels if label not in known]
    if unknown:
        raise SettingsError(
            f"the model has no type {', '.join(map(repr, unknown))}; its types are fixed by its "
            f"training: {', '.join(known)}"
        )


def choose(
    entities: Iterable[Entity], labels: Iterable[str] | None, flat: bool
) -> list[dict[str, Any]]:
    """Those of the types, overlaps among them resolved best first, as GLiNER gives them."""
    wanted = None if labels is None else set(labels)
    kept = [entity for entity in entities if wanted is None or entity.label in wanted]
    numbered = [
        DecodedEntity(
            entity.start, entity.end - 1, number, entity.score, entity.score, entity.votes
        )
        for number, entity in enumerate(kept)
    ]
    chosen = [kept[one.type_id] for one in resolve_overlaps(numbered, "flat" if flat else "nested")]
    return [
        {
            "start": entity.start,
            "end": entity.end,
            "text": entity.text,
            "label": entity.label,
            "score": entity.score,
        }
        for entity in chosen
    ]
