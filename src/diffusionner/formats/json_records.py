"""JSON objects with validated fields."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from diffusionner.errors import DataError
from diffusionner.formats.json_files import read_values
from diffusionner.formats.source import Source, check_label, shorten

Item = TypeVar("Item")
_TYPES = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number"}


class Record:
    """A JSON object at `where` ("file:line"); error messages show `shape`, a valid record."""

    def __init__(self, value: Any, where: str, shape: str) -> None:
        if not isinstance(value, dict):
            raise DataError(f"{where}: expected an object, found {_type(value)}; write {shape}")
        self.fields: dict[str, Any] = value
        self.where = where
        self.shape = shape

    def get(self, key: str, kind: type = object) -> Any:
        """Return a field; raise DataError if it is missing or not of this type."""
        if key not in self.fields:
            keys = shorten(", ".join(map(repr, self.fields))) or "none"
            raise self.error(f"no '{key}' among the keys ({keys}); write {self.shape}")
        value = self.fields[key]
        if not isinstance(value, kind):
            raise self.error(
                f"'{key}' must be {_TYPES[kind]}, not {_type(value)}; write {self.shape}"
            )
        return value

    def optional(self, key: str, kind: type) -> Any:
        """Return a field that may be missing or null."""
        return None if self.fields.get(key) is None else self.get(key, kind)

    def objects(self, key: str) -> list[Record]:
        """Return a list of objects."""
        return [Record(value, self.where, self.shape) for value in self.get(key, list)]

    def has(self, key: str) -> bool:
        """Return True if there is such a field; refuse a list under a misspelt key."""
        if key in self.fields:
            return True
        lists = [name for name, value in self.fields.items() if isinstance(value, list)]
        if close := difflib.get_close_matches(key, lists, n=1, cutoff=0.85):
            raise self.error(f"unknown key '{close[0]}'; did you mean '{key}'?")
        return False

    def words(self, key: str) -> list[str]:
        """Return a non-empty list of non-empty words."""
        words: list[Any] = self.get(key, list)
        if not words:
            raise self.error(f"'{key}' is empty; remove the record")
        for index, word in enumerate(words):
            if not isinstance(word, str):
                raise self.error(
                    f"token {index} must be a string, not {_type(word)}; put it in quotes"
                )
            if not word:  # words of white space are allowed: they occur in published corpora
                raise self.error(
                    f"token {index} is empty; remove it and shift the entities after it"
                )
        return words

    def integer(self, key: str) -> int:
        return self.check_integer(self.get(key), f"'{key}'")

    def check_integer(self, value: Any, name: str) -> int:
        # type(), because isinstance() accepts true and false as numbers.
        if type(value) is not int:
            raise self.error(f"{name} must be an integer, not {shorten(json.dumps(value))}")
        return value

    def label(self, key: str) -> str:
        return check_label(self.get(key), self.where)

    def span(
        self, start: str = "start", end: str = "end", label: str = "label"
    ) -> tuple[int, int, str]:
        """Return start, end and label of an entity from fields with these names."""
        return self.integer(start), self.integer(end), self.label(label)

    def triples(self, key: str) -> Iterator[tuple[int, int, str]]:
        """Yield start, end and label of entities that are lists of these."""
        for entity in self.get(key, list):
            if not isinstance(entity, list) or len(entity) != 3:
                found = f"a list of {len(entity)}" if isinstance(entity, list) else _type(entity)
                raise self.error(
                    f"an entity must be [start, end, label], not {found}; write {self.shape}"
                )
            fields = dict(zip(("start", "end", "label"), entity, strict=True))
            yield Record(fields, self.where, self.shape).span()

    def document(self, key: str = "doc") -> str | None:
        """Return the document's name, a string or a number, if there is one."""
        value = self.fields.get(key)
        if value is None or value == "":
            return None
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise self.error(
                f"'{key}' must be a string or a number, not {_type(value)}; name the document or "
                "leave it out"
            )
        return str(value)

    def error(self, message: str) -> DataError:
        return DataError(f"{self.where}: {message}")


def convert_records(
    source: Source, shape: str, convert: Callable[[Record], Iterable[Item]]
) -> Iterator[Item]:
    """Convert the JSON objects of a file; report and skip those that are invalid."""
    return source.convert_each(
        read_values(source), lambda value, where: convert(Record(value, where, shape))
    )


def with_document(record: dict[str, Any], doc: str | None) -> dict[str, Any]:
    """Add `doc`, a key of ours that other tools ignore, if the document has a name."""
    return record if doc is None else {**record, "doc": doc}


def _type(value: object) -> str:
    """Return the JSON type of a value, for messages."""
    return json.dumps(value) if value is None or isinstance(value, bool) else _TYPES[type(value)]
