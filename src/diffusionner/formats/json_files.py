"""JSON values out of a file of any size: JSON lines, one array, or values one after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffusionner.errors import DataError
from diffusionner.formats.base import MAX_RECORD, Sample, decode, too_long, unreadable

if TYPE_CHECKING:
    from diffusionner.formats.base import Source

_CHUNK = 2**20
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def records(source: Source, path: Path) -> Iterator[tuple[str, Any]]:
    """("file:line", value); a value that is no JSON is refused and, in JSON lines, skipped."""
    head = Sample(path).head.lstrip()
    if head.startswith("[") or _spread(head):
        yield from _values(source, path)
        return
    for where, text in source.lines(path):
        if not text or text.isspace():
            continue
        try:
            value = load(text, where)
        except DataError as error:
            source.refuse(error)
            continue
        yield where, value


def load(text: str, where: str) -> Any:
    """One line's JSON value."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not valid JSON ({error.msg}, column {error.colno}); write one object a line"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: JSON that cannot be decoded ({error})") from error
    check_surrogates(value, text, where)
    return value


def check_surrogates(value: object, text: str, where: str) -> None:
    """Half a surrogate pair passes as JSON, but no tokenizer or file takes it."""
    if "\\u" not in text or not _SURROGATE.search(text):
        return
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: half of a surrogate pair (\\u{ord(error.object[error.start]):04x}); "
            "write the whole character"
        ) from error


def _spread(head: str) -> bool:
    """Whether objects go over several lines, rather than a first line that is broken."""
    lines = [line for line in map(str.strip, head.split("\n", 100)) if line]
    if len(lines) < 2:
        return False
    return lines[0].startswith("{") and not lines[0].endswith("}") and lines[1][0] != "{"


def _values(source: Source, path: Path) -> Iterator[tuple[str, Any]]:
    """The values of an array, or values that are spread over lines."""
    text = _Text(path)
    text.skip_space()
    array = text.peek() == "["
    if array:
        text.at += 1
    count = 0
    while True:
        text.skip_space()
        mark = text.peek()
        if array and mark == "]":
            text.at += 1
            text.skip_space()
            if text.peek():
                raise DataError(f"{text.where()}: more text after the end of the array; remove it")
            return
        if array and count and mark:
            if mark != ",":
                raise DataError(
                    f"{text.where()}: not valid JSON (expected ',' or ']' after record {count}); "
                    "correct it"
                )
            text.at += 1
            text.skip_space()
            mark = text.peek()
        if not mark:
            if array:
                raise DataError(
                    f"{text.where()}: the file ends inside its JSON array, after {count} records; "
                    "it is cut short"
                )
            return
        where = text.where()
        value, raw = text.value(where)
        count += 1
        try:
            check_surrogates(value, raw, where)
        except DataError as error:
            source.refuse(error)
            continue
        yield where, value


class _Text:
    """A file's text by chunks, with a position in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.buffer = ""
        self.at = 0
        self.counted = 0  # up to where in the buffer lines are counted
        self.line = 1  # there
        self.chunks = self._read()

    def _read(self) -> Iterator[str]:
        try:
            with self.path.open("rb") as file:
                rest, line, first = b"", 1, True
                while chunk := file.read(_CHUNK):
                    # Cut where a line ends, or before a character that is not all there.
                    content = rest + chunk
                    cut = content.rfind(b"\n") + 1 or _whole(content)
                    whole, rest = content[:cut], content[cut:]
                    yield self._decode(whole, line, first)
                    line += whole.count(b"\n")
                    first = first and not whole
                yield self._decode(rest, line, first)
        except OSError as error:
            raise unreadable(self.path, error) from error

    def _decode(self, content: bytes, line: int, first: bool) -> str:
        try:
            return content.decode("utf-8-sig" if first else "utf-8")
        except UnicodeDecodeError as error:
            line += content.count(b"\n", 0, error.start)
            return decode(content, f"{self.path}:{line}", first)  # raises, with the line

    def where(self) -> str:
        # From the last time on: counting from the buffer's begin would make arrays quadratic.
        self.line += self.buffer.count("\n", self.counted, self.at)
        self.counted = self.at
        return f"{self.path}:{self.line}"

    def more(self, wanted: int = 1) -> bool:
        """Drop what was read and add this many characters or more; False at the file's end."""
        self.where()
        parts = [self.buffer[self.at :]]
        size = 0
        for chunk in self.chunks:
            parts.append(chunk)
            size += len(chunk)
            if size >= wanted:
                break
        self.buffer = "".join(parts)
        self.at = self.counted = 0
        return size > 0

    def skip_space(self) -> None:
        while True:
            found = _SPACE.match(self.buffer, self.at)
            assert found is not None
            self.at = found.end()
            if self.at < len(self.buffer) or not self.more():
                return

    def peek(self) -> str:
        return self.buffer[self.at : self.at + 1]

    def value(self, where: str) -> tuple[Any, str]:
        while True:
            try:
                value, end = _DECODER.raw_decode(self.buffer, self.at)
            except json.JSONDecodeError as error:
                line = self.line + self.buffer.count("\n", self.counted, error.pos)
                size = len(self.buffer) - self.at
                if error.msg.startswith("Unterminated") or error.pos > len(self.buffer) - 16:
                    if size > MAX_RECORD:
                        raise too_long(where) from error
                    if self.more(size + 1):  # doubling keeps long records linear
                        continue
                    raise DataError(
                        f"{self.path}:{line}: not valid JSON ({error.msg}); the file may be cut "
                        f"short within the record that begins at {where}"
                    ) from error
                raise DataError(
                    f"{self.path}:{line}: not valid JSON ({error.msg}); correct it"
                ) from error
            except (ValueError, RecursionError) as error:
                raise DataError(f"{where}: JSON that cannot be decoded ({error})") from error
            # A number at the end of the buffer may go on in the next chunk.
            if end == len(self.buffer) and self.more():
                continue
            raw, self.at = self.buffer[self.at : end], end
            return value, raw


def _whole(content: bytes) -> int:
    """The length of what has all bytes of its last character."""
    for back, byte in enumerate(content[:-5:-1], 1):
        if byte & 0xC0 != 0x80:  # a character's first byte
            return len(content) - back if byte >= 0xC0 else len(content)
    return len(content)


def write_lines(values: Iterator[Any], path: Path) -> None:
    """JSON lines, as they are written everywhere here."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for value in values:
            file.write(_ENCODE(value) + "\n")


def write_array(values: Iterator[Any], path: Path) -> None:
    """A JSON array, a value a line."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        separator = "[\n"
        for value in values:
            file.write(separator + _ENCODE(value))
            separator = ",\n"
        file.write("\n]\n" if separator == ",\n" else "[]\n")


# --- What JSON formats ask of a record ---------------------------------------------------------


def member(record: Any, key: str, kind: type | tuple[type, ...], where: str, shape: str) -> Any:
    """record[key], of this kind; else DataError with how a record looks."""
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected an object, found {name(record)}; write {shape}")
    if key not in record:
        found = short(", ".join(map(repr, record))) or "none"
        raise DataError(f"{where}: no '{key}' among the keys ({found}); write {shape}")
    value = record[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise DataError(f"{where}: '{key}' must not be {name(value)}; write {shape}")
    return value


def words(value: Any, key: str, where: str) -> list[str]:
    """A list of words, each a string with something in it."""
    if not isinstance(value, list):
        raise DataError(f"{where}: '{key}' must be a list, not {name(value)}; give one of words")
    if not value:
        raise DataError(f"{where}: '{key}' is empty; remove the record")
    if set(map(type, value)) == {str} and "" not in value:
        return value
    for index, word in enumerate(value):
        if not isinstance(word, str):
            raise DataError(
                f"{where}: token {index} must be a string, not {name(word)}; put it in quotes"
            )
        if not word:  # white space alone is odd but occurs in published corpora
            raise DataError(
                f"{where}: token {index} is empty; remove it and move the entities after it"
            )
    return value


def integer(value: Any, what: str, where: str) -> int:
    # type(), because isinstance() takes true and false for numbers.
    if type(value) is not int:
        raise DataError(f"{where}: {what} must be a whole number, not {short(json.dumps(value))}")
    return value


def label(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise DataError(
            f"{where}: the label of an entity must be a non-empty string, not "
            f"{short(repr(value))}; name its type"
        )
    return value


def triple(value: Any, where: str, shape: str) -> tuple[int, int, str]:
    """An entity that is a list: start, end, label."""
    if not isinstance(value, list) or len(value) != 3:
        found = f"a list of {len(value)}" if isinstance(value, list) else name(value)
        raise DataError(
            f"{where}: an entity must be [start, end, label], not {found}; write {shape}"
        )
    start, end, kind = value
    return (
        integer(start, "'start' of an entity", where),
        integer(end, "'end' of an entity", where),
        label(kind, where),
    )


def document(value: Any, key: str, where: str) -> str | None:
    """A document's name: a string or a number, or nothing."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise DataError(
            f"{where}: '{key}' must be a string or a number, not {name(value)}; "
            "name the document or leave it out"
        )
    return str(value)


def short(text: str) -> str:
    """As much of a value as a message has room for."""
    return text if len(text) <= 80 else text[:80] + "..."


def name(value: object) -> str:
    """What JSON calls a value of this Python type."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    names = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number"}
    return names[type(value)]
