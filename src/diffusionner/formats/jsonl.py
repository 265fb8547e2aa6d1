"""JSON lines: `{"doc"?, "tokens": [...], "entities": [{"start", "end", "label"}]}` a line.

Offsets count words from 0, `end` exclusive. Other keys are ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError
from diffusionner.files import write_atomically

EXTENSIONS = (".jsonl", ".json")
_SHAPE = '{"tokens": ["..."], "entities": [{"start": 0, "end": 1, "label": "..."}]}'


def recognises(first_line: str) -> bool:
    """Whether a file that begins with this line is JSON lines."""
    return first_line.lstrip().startswith("{")


def parse(lines: Iterable[tuple[str, str]]) -> Iterator[Sentence]:
    """The sentences of ("file:line", text) pairs; blank lines are skipped."""
    for where, text in lines:
        if text.strip():
            yield sentence_from_json(_load(text, where), where)


def sentence_from_json(record: object, where: str) -> Sentence:
    """The sentence a decoded JSON object stands for; repeated entities are kept once."""
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected an object, found {_name(record)}; write {_SHAPE}")
    if "tokens" not in record:
        found = ", ".join(map(repr, record)) or "none"
        raise DataError(f"{where}: no 'tokens' among the keys ({found}); write {_SHAPE}")
    words = _words(record["tokens"], where)
    entities = record.get("entities", [])
    if not isinstance(entities, list):
        raise DataError(
            f"{where}: 'entities' must be a list, not {_name(entities)}; write {_SHAPE}"
        )
    spans = [_span(entity, where) for entity in entities]
    return Sentence(words, list(dict.fromkeys(spans)), _doc(record.get("doc"), where), where)


def sentence_to_json(sentence: Sentence) -> dict[str, Any]:
    """The object `sentence_from_json` reads back; `doc` only where there is one."""
    record: dict[str, Any] = {} if sentence.doc is None else {"doc": sentence.doc}
    record["tokens"] = list(sentence.words)
    record["entities"] = [
        {"start": start, "end": end, "label": label} for start, end, label in sentence.entities
    ]
    return record


def write(path: str | os.PathLike[str], sentences: Iterable[Sentence]) -> None:
    """Write all sentences or, on any failure, leave what was at `path` as it is."""

    def fill(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            for sentence in sentences:
                record = sentence_to_json(sentence)
                file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")

    write_atomically(Path(path), fill)


def _load(text: str, where: str) -> object:
    try:
        record = json.loads(text)
        if "\\u" in text:
            # Half a surrogate pair passes as JSON, but no tokenizer or file takes it.
            json.dumps(record, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not valid JSON ({error.msg}, column {error.colno}); "
            f"write one object a line: {_SHAPE}"
        ) from error
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: half of a surrogate pair (\\u{ord(error.object[error.start]):04x}); "
            "write the whole character"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: JSON that cannot be decoded ({error}); write one object a line: {_SHAPE}"
        ) from error
    return record


def _words(tokens: object, where: str) -> list[str]:
    if not isinstance(tokens, list):
        raise DataError(f"{where}: 'tokens' must be a list, not {_name(tokens)}; write {_SHAPE}")
    if not tokens:
        raise DataError(f"{where}: 'tokens' is empty; remove the line")
    for index, token in enumerate(tokens):
        if not isinstance(token, str):
            raise DataError(
                f"{where}: token {index} must be a string, not {_name(token)}; put it in quotes"
            )
        if not token:  # white space alone is odd but occurs in published corpora
            raise DataError(
                f"{where}: token {index} is empty; remove it and move the entities after it"
            )
    return tokens


def _span(entity: object, where: str) -> Span:
    if not isinstance(entity, dict):
        raise DataError(
            f"{where}: an entity must be an object, not {_name(entity)}; write {_SHAPE}"
        )
    for key in ("start", "end", "label"):
        if key not in entity:
            raise DataError(f"{where}: an entity has no '{key}'; write {_SHAPE}")
    start, end, label = entity["start"], entity["end"], entity["label"]
    for key, value in (("start", start), ("end", end)):
        # type(), because isinstance() takes true and false for numbers.
        if type(value) is not int:
            raise DataError(
                f"{where}: '{key}' of an entity must be a whole number, not {json.dumps(value)}; "
                "offsets count words from 0, end exclusive"
            )
    if not isinstance(label, str) or not label.strip():
        raise DataError(
            f"{where}: the label of entity [{start}, {end}) must be a non-empty string, "
            f"not {label!r}; name its type"
        )
    return Span(start, end, label)


def _doc(value: object, where: str) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise DataError(
            f"{where}: 'doc' must be a string or a number, not {_name(value)}; "
            "name the document or leave it out"
        )
    return str(value)


def _name(value: object) -> str:
    """What JSON calls a value of this Python type."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    names = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number"}
    return names[type(value)]
