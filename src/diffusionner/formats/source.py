"""What a format is, and the file it is read from."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from diffusionner.corpus import Sentence
from diffusionner.errors import DataError, nearest

# A line or JSON record beyond this is not a sentence but the wrong file, and would fill the memory.
MAX_RECORD = 64 * 2**20
HEAD = 2**16  # bytes of a file that are looked at to tell its format
FIRST = 2**22  # and of its first JSON object, when that is longer: its last key may tell the format

Record = TypeVar("Record")
Item = TypeVar("Item")
_BETWEEN = re.compile(r"\s*[\[,]?\s*")  # what stands before a JSON object
_KEY = re.compile(r'"(\w+)"\s*:')


@dataclass(frozen=True)
class NoOptions:
    """For a format in which there is nothing to choose."""


def any_word(word: str) -> bool:
    return True


@dataclass(frozen=True)
class Holds:
    """What a format can write down without loss. Words and flat entities all of them can."""

    nested: bool = True
    crossing: bool = True  # entities that overlap without one inside the other
    same_span: bool = True  # one span with several labels
    # Annotations in parts, or cut through a word; or only those in several "parts" that are whole
    # words, or only those in one part that are "cut" through a word.
    irregular: bool | Literal["parts", "cut"] = False
    text: bool = False  # the characters between words
    word: Callable[[str], bool] = any_word  # which words it can write
    label: Callable[[str], bool] = any_word  # and which labels
    docs: bool = True  # names of documents
    types: bool = False  # which labels were looked for


@dataclass(frozen=True)
class Format:
    """One kind of file: how it is told from the others, read and written."""

    name: str
    summary: str  # one line, for people
    recognises: Callable[[Sample], bool]
    read: Callable[[Source, Any], Iterator[Sentence]]
    # Fills the path it is given (a new file, or an empty folder if `folder`).
    write: Callable[[Iterable[Sentence], Path, Any], None] | None = None
    options: type = NoOptions  # a frozen dataclass of str, int and bool
    holds: Holds = Holds()
    folder: bool = False  # writes a folder, not a file
    extensions: tuple[str, ...] = ()  # of files to write, to choose the format of an output by

    def parse_options(self, text: str) -> Any:
        """The options from KEY=VALUE,KEY=VALUE."""
        known = {f.name: f for f in dataclasses.fields(self.options)}
        values: dict[str, Any] = {}
        for part in filter(None, text.split(",")):
            key, equals, value = part.partition("=")
            if key not in known:
                hint = nearest(key, known) if known else "it has none"
                raise DataError(f"format {self.name} has no option '{key}'; {hint}")
            if not equals:
                raise DataError(f"format {self.name}: write the option as {key}=VALUE")
            values[key] = _convert(self.name, key, value, known[key].default)
        try:
            return self.options(**values)
        except ValueError as error:
            raise DataError(f"format {self.name}: {error}") from error


def _convert(name: str, key: str, value: str, default: object) -> object:
    """An option's text as the type of its default."""
    if isinstance(default, bool):
        if value not in ("true", "false"):
            raise DataError(f"format {name}: {key} is true or false, not '{value}'")
        return value == "true"
    if isinstance(default, int):
        try:
            return int(value)
        except ValueError as error:
            raise DataError(f"format {name}: {key} is a whole number, not '{value}'") from error
    return value


@dataclass
class Source:
    """A file or folder being read.

    Strict reading stops at the first thing that is wrong. With `refused` a list, what is wrong is
    put there and reading goes on behind it: that is how a corpus is checked.
    """

    path: Path
    refused: list[DataError] | None = None

    def refuse(self, error: DataError) -> None:
        if self.refused is None:
            raise error
        self.refused.append(error)

    def each(
        self,
        records: Iterable[tuple[str, Record]],
        convert: Callable[[Record, str], Iterable[Item]],
    ) -> Iterator[Item]:
        """What ("file:line", record) pairs convert to; a record that is wrong is refused."""
        for where, record in records:
            try:
                items = list(convert(record, where))
            except DataError as error:
                self.refuse(error)
                continue
            yield from items

    def files(self, *patterns: str) -> list[Path]:
        """This file, or the files of this folder (at any depth) that match, sorted."""
        if not self.path.is_dir():
            return [self.path]
        return sorted({f for pattern in patterns for f in self.path.rglob(pattern) if f.is_file()})

    def lines(self, path: Path | None = None) -> Iterator[tuple[str, str]]:
        """("file:line", text) for each line, without its line end."""
        path = path or self.path
        try:
            # Bytes: text mode neither says which line is not UTF-8 nor ends lines at \n alone.
            with path.open("rb") as file:
                number = 0
                while line := file.readline(MAX_RECORD + 1):
                    number += 1
                    where = f"{path}:{number}"
                    if len(line) > MAX_RECORD:
                        raise too_long(where)
                    try:
                        yield where, decode(line, where, number == 1).rstrip("\r\n")
                    except DataError as error:
                        self.refuse(error)
        except OSError as error:
            raise unreadable(path, error) from error

    def records(self, path: Path | None = None) -> Iterator[tuple[str, Any]]:
        """("file:line", value) for each JSON value: of a JSON array, or one after the other."""
        from diffusionner.formats.records import records

        return records(self, path or self.path)

    def text(self, path: Path | None = None, encoding: str = "utf-8") -> str:
        """All of a (small) file, line ends as they are."""
        path = path or self.path
        try:
            with path.open("rb") as file:
                content = file.read(MAX_RECORD + 1)
        except OSError as error:
            raise unreadable(path, error) from error
        if len(content) > MAX_RECORD:
            raise too_long(f"{path}:1")
        try:
            return content.decode("utf-8-sig" if encoding == "utf-8" else encoding)
        except UnicodeDecodeError as error:
            line = 1 + content.count(b"\n", 0, error.start)
            raise _wrong_encoding(f"{path}:{line}", encoding.upper(), content, error) from error


@dataclass
class Sample:
    """The first bytes of a file, or the names in a folder: enough to tell the format."""

    path: Path
    folder: bool = field(init=False)
    names: list[str] = field(init=False)  # of the folder's files, at any depth; at most 1,000

    def __post_init__(self) -> None:
        self.folder = self.path.is_dir()
        self.names = []
        if self.folder:
            for _, _, files in os.walk(self.path):
                self.names += files
                if len(self.names) >= 1000:
                    break

    @cached_property
    def raw(self) -> bytes:
        if self.folder:
            return b""
        try:
            with self.path.open("rb") as file:
                return file.read(HEAD)
        except OSError as error:
            raise unreadable(self.path, error) from error

    @cached_property
    def head(self) -> str:
        """The beginning of the file as text; what is not UTF-8 is replaced."""
        return self.raw.decode("utf-8-sig", "replace")

    @cached_property
    def lines(self) -> list[str]:
        """The first lines that are not blank; the last may be cut."""
        return [line.rstrip("\r") for line in self.head.split("\n") if line.strip()]

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The first JSON objects, alone or in an array; of one cut off, the names of its keys."""
        found: list[dict[str, Any]] = []
        at = 0
        while True:
            start = _BETWEEN.match(self.head, at)
            assert start is not None
            if self.head[start.end() : start.end() + 1] != "{":
                return found
            try:
                record, at = json.JSONDecoder().raw_decode(self.head, start.end())
            except (ValueError, RecursionError):
                if not found:
                    found.append(self._first_record(start.end()))
                return found
            found.append(record)

    def _first_record(self, start: int) -> dict[str, Any]:
        """A JSON object that goes on beyond the head or, if it cannot be had, its keys."""
        try:
            with self.path.open("rb") as file:
                text = file.read(FIRST).decode("utf-8-sig", "replace")
            record: dict[str, Any] = json.JSONDecoder().raw_decode(text, start)[0]
        except OSError as error:
            raise unreadable(self.path, error) from error
        except (ValueError, RecursionError):
            return dict.fromkeys(_KEY.findall(self.head))
        return record

    @cached_property
    def keys(self) -> set[str]:
        """The names of the keys of these objects."""
        return {key for record in self.records for key in record}

    def members(self, key: str) -> list[Any]:
        """What stands in the lists that these objects have under a key."""
        lists = (record.get(key) for record in self.records)
        return [item for items in lists if isinstance(items, list) for item in items]


def decode(content: bytes, where: str, first: bool) -> str:
    try:
        return content.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        raise _wrong_encoding(where, "UTF-8", content, error) from error


def _wrong_encoding(
    where: str, encoding: str, content: bytes, error: UnicodeDecodeError
) -> DataError:
    return DataError(
        f"{where}: not {encoding} (byte 0x{content[error.start]:02x}); "
        "convert the file to UTF-8, for instance with iconv"
    )


def unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be read ({error.strerror}); give a file you may read")


def too_long(where: str) -> DataError:
    return DataError(
        f"{where}: longer than {MAX_RECORD // 2**20} MiB; check that it is the file you meant, or "
        "put line breaks between its records"
    )


def missing_extra(package: str, extra: str, format: str) -> DataError:
    return DataError(
        f"format {format} needs the package '{package}'; install it, in a clone, with: "
        f"pip install '.[{extra}]'"
    )
