"""Access to corpus files: lines, texts and first bytes, with errors that name file and line."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from diffusionner.errors import DataError

# A longer line or JSON record means that this is the wrong file; reading it would fill the memory.
MAX_RECORD = 64 * 2**20
DAMAGED_GZIP = (EOFError, zlib.error)  # and OSError
HEAD = 2**16  # bytes read to detect the format
_FIRST_RECORD = 2**22  # bytes read if the first JSON object is longer: its last key may be decisive

Record = TypeVar("Record")
Item = TypeVar("Item")
_BEFORE_OBJECT = re.compile(r"\s*[\[,]?\s*")
_KEY = re.compile(r'"(\w+)"\s*:')


@dataclass
class Source:
    """A file or folder to read.

    By default reading stops at the first error. If `errors` is a list, errors are appended to it
    and reading continues with the next record; `data check` uses this.
    """

    path: Path
    errors: list[DataError] | None = None

    def report(self, error: DataError) -> None:
        """Raise the error, or collect it in `errors`."""
        if self.errors is None:
            raise error
        self.errors.append(error)

    def convert_each(
        self,
        records: Iterable[tuple[str, Record]],
        convert: Callable[[Record, str], Iterable[Item]],
    ) -> Iterator[Item]:
        """Convert ("file:line", record) pairs; report and skip records that are invalid."""
        for where, record in records:
            try:
                items = list(convert(record, where))
            except DataError as error:
                self.report(error)
                continue
            yield from items

    def files(self, *patterns: str) -> list[Path]:
        """Return this file, or the matching files at any depth of this folder, sorted."""
        if not self.path.is_dir():
            return [self.path]
        return sorted({f for pattern in patterns for f in self.path.rglob(pattern) if f.is_file()})

    def lines(self, path: Path | None = None) -> Iterator[tuple[str, str]]:
        """Yield ("file:line", text) for each line, without its line end."""
        path = path or self.path
        try:
            # Binary mode: text mode splits lines at more than \n and hides the line of an error.
            with open_binary(path) as file:
                for number, line in number_lines(file, str(path)):
                    where = f"{path}:{number}"
                    try:
                        yield where, decode(line, where, number == 1).rstrip("\r\n")
                    except DataError as error:
                        self.report(error)
        except (OSError, *DAMAGED_GZIP) as error:
            raise unreadable(path, error) from error

    def text(self, path: Path | None = None, keep_bom: bool = False) -> str:
        """Return the text of a whole (small) file, with its line ends unchanged."""
        path = path or self.path
        content = _read(path, MAX_RECORD + 1)
        if len(content) > MAX_RECORD:
            raise too_long(f"{path}:1")
        try:
            return content.decode("utf-8" if keep_bom else "utf-8-sig")
        except UnicodeDecodeError as error:
            line = 1 + content.count(b"\n", 0, error.start)
            raise not_utf8(f"{path}:{line}", error) from error


@dataclass
class Sample:
    """The first bytes of a file, or the file names in a folder, used to detect the format."""

    path: Path

    @cached_property
    def folder(self) -> bool:
        return self.path.is_dir()

    @cached_property
    def names(self) -> list[str]:
        """The names of the folder's first 1,000 files, at any depth."""
        names = (name for _, _, files in os.walk(self.path) for name in files)
        return list(islice(names, 1000))

    @cached_property
    def raw(self) -> bytes:
        return b"" if self.folder else _read(self.path, HEAD)

    @cached_property
    def head(self) -> str:
        """The first bytes as text; invalid UTF-8 is replaced."""
        return self.raw.decode("utf-8-sig", "replace")

    @cached_property
    def lines(self) -> list[str]:
        """The first non-blank lines; the last may be truncated."""
        return [line.rstrip("\r") for line in self.head.split("\n") if line.strip()]

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The first JSON objects, in an array or not; of a truncated one only the keys."""
        found: list[dict[str, Any]] = []
        at = 0
        while True:
            start = _BEFORE_OBJECT.match(self.head, at)
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
        """Return a JSON object that is longer than the head, or just its keys."""
        text = _read(self.path, _FIRST_RECORD).decode("utf-8-sig", "replace")
        try:
            record: dict[str, Any] = json.JSONDecoder().raw_decode(text, start)[0]
        except (ValueError, RecursionError):
            return dict.fromkeys(_KEY.findall(self.head))
        return record

    @cached_property
    def keys(self) -> set[str]:
        """The keys of the first JSON objects."""
        return {key for record in self.records for key in record}

    def members(self, key: str) -> list[Any]:
        """Return the items of the lists that the first JSON objects have under a key."""
        lists = (record.get(key) for record in self.records)
        return [item for items in lists if isinstance(items, list) for item in items]


def open_binary(path: Path) -> IO[bytes]:
    """Open a file to read; one whose name ends in .gz is decompressed, except for archives."""
    if path.suffix == ".gz" and not path.name.endswith(".tar.gz"):
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return path.open("rb")


def _read(path: Path, size: int) -> bytes:
    try:
        with open_binary(path) as file:
            return file.read(size)
    except (OSError, *DAMAGED_GZIP) as error:
        raise unreadable(path, error) from error


def number_lines(file: IO[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """Yield each line with its number, from 1."""
    number = 0
    while line := file.readline(MAX_RECORD + 1):
        number += 1
        if len(line) > MAX_RECORD:
            raise too_long(f"{name}:{number}")
        yield number, line


def decode(content: bytes, where: str, first: bool) -> str:
    """Decode UTF-8; `first` drops the byte order mark that may begin a file."""
    try:
        return content.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(where, error) from error


def not_utf8(where: str, error: UnicodeDecodeError) -> DataError:
    return DataError(
        f"{where}: not UTF-8 (byte 0x{error.object[error.start]:02x}); convert the file to UTF-8, "
        "for example with iconv"
    )


def unreadable(path: Path, error: Exception) -> DataError:
    reason = getattr(error, "strerror", None)
    if reason is None:
        return DataError(f"{path}: damaged, or not compressed with gzip; copy the file again")
    return DataError(f"{path}: cannot be read ({reason}); check the path and its permissions")


def too_long(where: str) -> DataError:
    return DataError(
        f"{where}: longer than {MAX_RECORD // 2**20} MiB; check that this is the right file, or "
        "put line breaks between its records"
    )


def import_extra(package: str, extra: str, format: str) -> Any:
    """Import an optional package."""
    try:
        return import_module(package)
    except ImportError as error:
        raise DataError(
            f"format {format} needs the package '{package}'; install it with: "
            f"pip install '.[{extra}]'"
        ) from error


def check_label(label: Any, where: str) -> str:
    if not isinstance(label, str) or not label.strip():
        raise DataError(
            f"{where}: the label of an entity must be a non-empty string, not "
            f"{shorten(repr(label))}"
        )
    return label


def reason(error: Exception) -> str:
    """Return the message of another package's exception on one line."""
    return shorten(" ".join(str(error).split())) or type(error).__name__


def shorten(text: str) -> str:
    """Truncate a value so that it fits into an error message."""
    return text if len(text) <= 80 else text[:80] + "..."
