"""Streaming JSON input (JSON lines, one array, or concatenated values) and JSON output."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diffusionner.errors import DataError
from diffusionner.formats.source import (
    DAMAGED_GZIP,
    MAX_RECORD,
    Sample,
    Source,
    not_utf8,
    open_binary,
    too_long,
    unreadable,
)

_CHUNK = 2**20
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_values(source: Source) -> Iterator[tuple[str, Any]]:
    """Yield ("file:line", value); report invalid values and, in JSON lines, skip them."""
    head = Sample(source.path).head.lstrip()
    if head.startswith("[") or _spans_lines(head):
        yield from _stream_values(source)
        return
    lines = ((where, text) for where, text in source.lines() if text.strip())
    yield from source.convert_each(lines, lambda text, where: [(where, parse_json(text, where))])


def parse_json(text: str, where: str) -> Any:
    """Parse a JSON value that begins at `where` ("file:line")."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        path, _, line = where.rpartition(":")
        raise DataError(
            f"{path}:{int(line) + error.lineno - 1}: not valid JSON ({error.msg}, column "
            f"{error.colno}); correct it"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: JSON that cannot be decoded ({error})") from error
    _check_surrogates(value, text, where)
    return value


def _check_surrogates(value: object, text: str, where: str) -> None:
    """Raise DataError for an unpaired surrogate: valid JSON, but it cannot be encoded."""
    if "\\u" not in text or not _SURROGATE.search(text):
        return
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: unpaired surrogate (\\u{ord(error.object[error.start]):04x}); write the "
            "whole character"
        ) from error


def _spans_lines(head: str) -> bool:
    """Return True if objects are spread over lines, as opposed to a first line that is invalid."""
    lines = [line for line in map(str.strip, head.split("\n", 100)) if line]
    return len(lines) > 1 and lines[0][0] == "{" and lines[0][-1] != "}" and lines[1][0] != "{"


def _stream_values(source: Source) -> Iterator[tuple[str, Any]]:
    """Yield the values of an array, or values that are spread over lines."""
    stream = _Stream(source.path)
    array = stream.peek() == "["
    if array:
        stream.at += 1
    count = 0
    while mark := stream.peek():
        if array and mark == "]":
            stream.at += 1
            if stream.peek():
                raise DataError(
                    f"{stream.where()}: more text after the end of the array; remove it"
                )
            return
        if array and count:
            if mark != ",":
                raise DataError(
                    f"{stream.where()}: not valid JSON (expected ',' or ']' after record {count}); "
                    "correct it"
                )
            stream.at += 1
            if not stream.peek():
                break
        where = stream.where()
        value, text = stream.value(where)
        count += 1
        try:
            _check_surrogates(value, text, where)
        except DataError as error:
            source.report(error)
            continue
        yield where, value
    if array:
        raise DataError(
            f"{stream.where()}: the file ends inside its JSON array, after {count} records; it is "
            "truncated"
        )


class _Stream:
    """A position in a file's text, of which only a part is in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.buffer = ""
        self.at = 0
        self.counted = 0  # end of the part of the buffer whose lines are counted
        self.line = 1  # line number at `counted`
        self.chunks = _decoded_chunks(path)

    def where(self) -> str:
        # Incremental: counting from the start of the buffer would be quadratic for arrays.
        self.line += self.buffer.count("\n", self.counted, self.at)
        self.counted = self.at
        return f"{self.path}:{self.line}"

    def fill(self, wanted: int = 1) -> bool:
        """Drop what was consumed and append `wanted` characters or more; False at the end."""
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

    def peek(self) -> str:
        """Skip white space and return the next character, or "" at the end."""
        while True:
            space = _SPACE.match(self.buffer, self.at)
            assert space is not None
            self.at = space.end()
            if self.at < len(self.buffer) or not self.fill():
                return self.buffer[self.at : self.at + 1]

    def value(self, where: str) -> tuple[Any, str]:
        """Consume the next JSON value and return it with its source text."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self.buffer, self.at)
            except json.JSONDecodeError as error:
                line = self.line + self.buffer.count("\n", self.counted, error.pos)
                size = len(self.buffer) - self.at
                hint = "correct it"
                if error.msg.startswith("Unterminated") or error.pos > len(self.buffer) - 16:
                    if size > MAX_RECORD:
                        raise too_long(where) from error
                    if self.fill(size + 1):  # doubling keeps long records linear
                        continue
                    hint = f"the file may be truncated within the record that begins at {where}"
                where = f"{self.path}:{line}"
                raise DataError(f"{where}: not valid JSON ({error.msg}); {hint}") from error
            except (ValueError, RecursionError) as error:
                raise DataError(f"{where}: JSON that cannot be decoded ({error})") from error
            # A number at the end of the buffer may continue in the next chunk.
            if end == len(self.buffer) and self.fill():
                continue
            text, self.at = self.buffer[self.at : end], end
            return value, text


def _decoded_chunks(path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line = 1
    try:
        with open_binary(path) as file:
            content = b"?"
            while content:
                content = file.read(_CHUNK)
                text = decoder.decode(content, final=not content)
                yield text
                line += text.count("\n")
    except UnicodeDecodeError as error:
        line += error.object.count(b"\n", 0, error.start)
        raise not_utf8(f"{path}:{line}", error) from error
    except (OSError, *DAMAGED_GZIP) as error:
        raise unreadable(path, error) from error


def write_lines(values: Iterator[Any], path: Path) -> None:
    """Write JSON lines."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for value in values:
            file.write(_ENCODE(value) + "\n")


def write_array(values: Iterator[Any], path: Path) -> None:
    """Write a JSON array with one value per line."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        separator = "[\n"
        for value in values:
            file.write(separator + _ENCODE(value))
            separator = ",\n"
        file.write("\n]\n" if separator == ",\n" else "[]\n")
