"""One record of a corpus: the text or words to annotate and the fields passed through."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

from diffusionner.corpus import Entity
from diffusionner.errors import DataError
from diffusionner.formats import json_files
from diffusionner.formats.source import decode

ENTITIES = "entities"


@dataclass(slots=True)
class Record:
    fields: dict[str, Any]  # all fields; written back with the entities added
    content: str | list[str]  # text or words
    doc: str | None  # neighbouring records of the same document are context
    place: str  # "file:line", for error messages
    bytes_read: int = 0  # of the whole input, up to the end of this record
    schema: Any = None  # Arrow schema, if the record comes from a table

    def to_bytes(self) -> bytes:
        """Return the input fields in a form that is stable across runs, for hashing."""
        return json.dumps(self.fields, default=repr).encode() + b"\n"

    def to_json_line(self, entities: Sequence[Entity]) -> bytes:
        fields = self.with_entities(entities)
        try:
            return json.dumps(fields, ensure_ascii=False, default=_to_json).encode() + b"\n"
        except TypeError as error:
            raise DataError(
                f"{self.place}: {error}, which JSON cannot represent; write Parquet instead "
                "(OUT.parquet), or drop the column from the input"
            ) from error

    def with_entities(self, entities: Sequence[Entity]) -> dict[str, Any]:
        return {**self.fields, ENTITIES: [entity.to_dict() for entity in entities]}


def parse_line(line: bytes, place: str) -> Record:
    fields = json_files.parse_json(decode(line, place, True).rstrip(), place)
    if not isinstance(fields, dict):
        raise DataError(f'{place}: expected an object such as {{"text": "..."}}')
    return make_record(fields, place)


def make_record(fields: dict[str, Any], place: str, null_is_empty: bool = False) -> Record:
    """Return the record with these fields; raise DataError if it has no valid text or tokens."""
    key = content_key(fields)
    if key not in fields:
        raise DataError(f'{place}: expected either "text" or "tokens", but found neither')
    content = fields[key]
    if content is None and null_is_empty:
        content = []
    elif key == "text" and not isinstance(content, str):
        raise DataError(f'{place}: "text" must be a string')
    elif key == "tokens" and not _is_word_list(content):
        raise DataError(f'{place}: "tokens" must be a list of non-empty strings')
    doc = fields.get("doc")
    return Record(fields, content, None if doc is None else str(doc), place)


def content_key(fields: dict[str, Any]) -> str:
    """Return "tokens" or "text", whichever holds the content.

    Converted corpora have both, and the tokens take precedence. In other data, `tokens` next to a
    text may be a count.
    """
    return "tokens" if isinstance(fields.get("tokens"), list) or "text" not in fields else "text"


def _is_word_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) and word for word in value)


def _to_json(value: object) -> str:
    """Convert values of table columns that JSON has no type for."""
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta | Decimal):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__}")
