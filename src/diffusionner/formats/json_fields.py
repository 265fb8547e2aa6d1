"""Validated access to the fields of JSON records.

`where` is the record's "file:line" and `shape` an example of a valid record; both are for messages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from diffusionner.errors import DataError
from diffusionner.formats.source import shorten

_TYPES = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number"}


def get(record: Any, key: str, kind: type, where: str, shape: str) -> Any:
    """Return record[key]; raise DataError if it is missing or not of this type."""
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected an object, found {describe(record)}; write {shape}")
    if key not in record:
        found = shorten(", ".join(map(repr, record))) or "none"
        raise DataError(f"{where}: no '{key}' among the keys ({found}); write {shape}")
    value = record[key]
    if not isinstance(value, kind):
        raise DataError(
            f"{where}: '{key}' must be {_TYPES[kind]}, not {describe(value)}; write {shape}"
        )
    return value


def words(record: Any, key: str, where: str, shape: str) -> list[str]:
    """Return a non-empty list of non-empty words."""
    value = get(record, key, object, where, shape)
    if not isinstance(value, list):
        raise DataError(f"{where}: '{key}' must be a list of words, not {describe(value)}")
    if not value:
        raise DataError(f"{where}: '{key}' is empty; remove the record")
    if set(map(type, value)) == {str} and "" not in value:
        return value
    for index, word in enumerate(value):
        if not isinstance(word, str):
            raise DataError(
                f"{where}: token {index} must be a string, not {describe(word)}; put it in quotes"
            )
        if not word:  # words of white space are allowed: they occur in published corpora
            raise DataError(
                f"{where}: token {index} is empty; remove it and shift the entities after it"
            )
    return value


def integer(value: Any, name: str, where: str) -> int:
    # type(), because isinstance() accepts true and false as numbers.
    if type(value) is not int:
        raise DataError(f"{where}: {name} must be an integer, not {shorten(json.dumps(value))}")
    return value


def label(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise DataError(
            f"{where}: the label of an entity must be a non-empty string, not "
            f"{shorten(repr(value))}"
        )
    return value


def span(
    entity: Any, where: str, shape: str, keys: Sequence[str] = ("start", "end", "label")
) -> tuple[int, int, str]:
    """Return start, end and label of an entity that is an object with these keys."""
    start, end, kind = (get(entity, key, object, where, shape) for key in keys)
    return (
        integer(start, f"'{keys[0]}' of an entity", where),
        integer(end, f"'{keys[1]}' of an entity", where),
        label(kind, where),
    )


def triple(entity: Any, where: str, shape: str) -> tuple[int, int, str]:
    """Return start, end and label of an entity that is a list of these."""
    if not isinstance(entity, list) or len(entity) != 3:
        found = f"a list of {len(entity)}" if isinstance(entity, list) else describe(entity)
        raise DataError(
            f"{where}: an entity must be [start, end, label], not {found}; write {shape}"
        )
    return span(dict(zip(("start", "end", "label"), entity, strict=True)), where, shape)


def document(record: dict[str, Any], where: str, key: str = "doc") -> str | None:
    """Return the document's name, a string or a number, if there is one."""
    value = record.get(key)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise DataError(
            f"{where}: '{key}' must be a string or a number, not {describe(value)}; name the "
            "document or leave it out"
        )
    return str(value)


def with_document(record: dict[str, Any], doc: str | None) -> dict[str, Any]:
    """Add `doc`, a key of ours that other tools ignore, if the document has a name."""
    return record if doc is None else {**record, "doc": doc}


def describe(value: object) -> str:
    """Return the JSON type of a value, for messages."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _TYPES[type(value)]
