"""One record of a corpus: what is annotated, and what is carried along."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

from diffusionner.corpus import Entity
from diffusionner.errors import DataError

ENTITIES = "entities"


@dataclass(slots=True)
class Record:
    fields: dict[str, Any]  # all that it holds; it is written with the entities added
    content: str | list[str]  # a text or words
    doc: str | None  # neighbours of the same document are context
    place: str  # "file:line", for messages
    read: int = 0  # bytes of the whole input up to its end
    schema: Any = None  # of its table, where it is from one (Arrow)

    def identity(self) -> bytes:
        """The same for the same record, in this run and in one that goes on with it."""
        return json.dumps(self.fields, default=repr).encode() + b"\n"


def parse_line(line: bytes) -> tuple[dict[str, Any], str | list[str], str | None]:
    """(the object, its text or words, its document); ValueError says what is wrong."""
    try:
        record = json.loads(line.decode("utf-8-sig"))
        json.dumps(record, ensure_ascii=False).encode()  # half a surrogate pair is valid JSON
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair, which no text can hold") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 ({error.reason})") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg}, column {error.colno})") from error
    if not isinstance(record, dict):
        raise ValueError('expected an object such as {"text": "..."}')
    doc = record.get("doc")
    return record, _content(record), None if doc is None else str(doc)


def _content(record: dict[str, Any]) -> str | list[str]:
    key = content_key(record)
    if key not in record:
        raise ValueError('expected either "text" or "tokens", but neither is there')
    content = record[key]
    if key == "text" and not isinstance(content, str):
        raise ValueError('"text" must be a string')
    if key == "tokens" and not are_words(content):
        raise ValueError('"tokens" must be a list of non-empty strings')
    return content


def content_key(record: dict[str, Any]) -> str:
    """Words go before the text that they were cut from: corpora of ours have both.

    Elsewhere `tokens` beside a text may be their number.
    """
    return "tokens" if isinstance(record.get("tokens"), list) or "text" not in record else "text"


def are_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) and word for word in value)


def entity_fields(entity: Entity) -> dict[str, Any]:
    """What is written of each entity."""
    return {name: getattr(entity, name) for name in ("start", "end", "label", "score", "text")}


def to_line(record: Record, entities: Sequence[Entity]) -> bytes:
    """As a line of JSON."""
    found = {**record.fields, ENTITIES: [entity_fields(entity) for entity in entities]}
    try:
        return json.dumps(found, ensure_ascii=False, default=_to_json).encode() + b"\n"
    except TypeError as error:
        raise DataError(
            f"{record.place}: {error}, which JSON cannot hold; write Parquet instead "
            "(OUT.parquet), or leave the column out of the input"
        ) from error


def _to_json(value: object) -> str:
    """Values of tables that JSON has no form for."""
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta | Decimal):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__}")
