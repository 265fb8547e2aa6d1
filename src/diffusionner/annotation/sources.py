"""The input: text, JSON lines and Parquet, from files, folders, patterns or standard input."""

from __future__ import annotations

import glob
import gzip
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from diffusionner.annotation.records import Record, are_words, content_key, parse_line
from diffusionner.errors import DataError
from diffusionner.formats import arrow
from diffusionner.formats.base import MAX_RECORD, decode, too_long, unreadable

STANDARD_INPUT = "-"
FORMATS = ("text", "jsonl", "parquet")
_SUFFIXES = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_GZIP, _PARQUET = b"\x1f\x8b", b"PAR1"
_ROWS = 1024  # of a table, decoded at a time

Report = Callable[[str], None]


@dataclass
class Sources:
    """Where the records come from.

    format: one of FORMATS; None goes by the name of a file, else by how it begins.
    whole: a text file is one text instead of one per line.
    """

    files: list[Path | None]  # None: standard input
    format: str | None = None
    whole: bool = False
    bad: int = field(default=0, init=False)  # records that could not be used

    @property
    def size(self) -> int | None:
        """Bytes in all; None where that cannot be known."""
        sizes = [None if file is None else file.stat().st_size for file in self.files]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None

    def records(self, report: Report) -> Iterator[Record]:
        """All records in order; what cannot be used is reported with its place and left out."""
        self.bad = 0
        before = 0
        for file in self.files:
            try:
                size = file.stat().st_size if file else 0
                for record in self._read(file, size, report):
                    record.read += before
                    yield record
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise DataError(f"{file}: damaged gzip file ({error}); restore it") from error
            except OSError as error:
                raise unreadable(file or Path("standard input"), error) from error
            before += size

    def _read(self, file: Path | None, size: int, report: Report) -> Iterator[Record]:
        kind = self.format or (_kind(file) if file else None)
        if kind == "parquet":
            if file is None:
                raise DataError("Parquet cannot be read from standard input; give the file")
            return self._rows(file, size, report)
        return self._lines(file, kind, report)

    def _lines(self, file: Path | None, kind: str | None, report: Report) -> Iterator[Record]:
        name = str(file) if file else "standard input"
        with open(file, "rb") if file else nullcontext(sys.stdin.buffer) as raw:
            content = _content(raw, file)
            if self.whole and kind != "jsonl":
                yield from self._text(content, name, report)
                return
            for number, line in _numbered(content, name):
                if number == 1:
                    _check_unpacked(line, name)
                if not line.strip():
                    continue
                kind = kind or _begins(line)
                place = f"{name}:{number}"
                try:
                    if kind == "jsonl":
                        record = Record(*parse_line(line), place)
                    else:
                        text = decode(line, place, number == 1).rstrip("\r\n")
                        fields = {"file": name, "line": number, "text": text}
                        record = Record(fields, text, None, place)
                except DataError as error:
                    self._refuse(str(error), report)
                except ValueError as error:
                    self._refuse(f"{place}: {error}", report)
                else:
                    # Of a compressed file, the compressed bytes: those its size tells.
                    record.read = raw.tell() if file else 0
                    yield record

    def _text(self, content: IO[bytes], name: str, report: Report) -> Iterator[Record]:
        """A file as one text."""
        whole = content.read(MAX_RECORD + 1)
        _check_unpacked(whole, name)
        if len(whole) > MAX_RECORD:
            raise too_long(f"{name}:1")
        try:
            text = decode(whole, name, True)
        except DataError as error:
            self._refuse(str(error), report)
        else:
            yield Record({"file": name, "text": text}, text, None, name)

    def _rows(self, file: Path, size: int, report: Report) -> Iterator[Record]:
        arrow.pyarrow("parquet")
        from pyarrow.parquet import ParquetFile

        try:
            with ParquetFile(file) as table:
                names = [f.name for f in table.schema_arrow if f.name in ("text", "tokens")]
                if not names:
                    raise DataError(
                        f"{file}: there is no column 'text' nor 'tokens'; rename the one that "
                        "holds the text"
                    )
                number, rows = 0, table.metadata.num_rows
                for batch in table.iter_batches(_ROWS):
                    for fields in batch.to_pylist():
                        number += 1
                        record = self._row(fields, f"{file}:row {number}", report)
                        if record is not None:
                            record.read = size * number // rows
                            record.schema = table.schema_arrow
                            yield record
        except arrow.failures() as error:
            raise arrow.damaged(str(file), error) from error

    def _row(self, fields: dict[str, Any], place: str, report: Report) -> Record | None:
        """A row without a text stays in its place: no entities are found in nothing."""
        content = fields[content_key(fields)]
        if content is None:
            content = []
        doc = fields.get("doc")
        if isinstance(content, str) or are_words(content):
            return Record(fields, content, None if doc is None else str(doc), place)
        self._refuse(f"{place}: 'text' must hold text, 'tokens' lists of non-empty strings", report)
        return None

    def _refuse(self, message: str, report: Report) -> None:
        self.bad += 1
        report(message)


def find(
    given: Sequence[str],
    format: str | None = None,
    whole: bool = False,
    without: Sequence[Path] = (),
) -> Sources:
    """The files behind paths, folders and patterns, those of each in alphabetical order.

    without: files and folders that are not input, whatever folder they are in.
    """
    if format is not None and format not in FORMATS:
        raise DataError(f"unknown format '{format}'; choose one of: {', '.join(FORMATS)}")
    if STANDARD_INPUT in given and len(given) > 1:
        raise DataError("standard input (-) cannot be mixed with files; give one or the other")
    if list(given) == [STANDARD_INPUT]:
        return Sources([None], format, whole)
    left_out = {path.resolve() for path in without}
    files = [file for one in given for path in _matches(one) for file in _inside(path)]
    kept = [f for f in files if not left_out & {f.resolve(), *f.resolve().parents}]
    return Sources([*kept], format, whole)


def _matches(given: str) -> list[Path]:
    if Path(given).exists():
        return [Path(given)]
    found = sorted(glob.glob(given, recursive=True))
    if not found:
        raise DataError(f"{given}: no such file or folder, and as a pattern it matches none")
    return [Path(path) for path in found]


def _inside(path: Path) -> list[Path]:
    """The file itself, or the files of a folder whose names say that they are input."""
    if path.is_file():
        return [path]
    if not path.is_dir():  # it cannot be read twice, nor by another process
        raise DataError(f"{path}: neither a file nor a folder; read a pipe from standard input (-)")
    found = [
        file
        for file in sorted(path.rglob("*"))
        if file.is_file()
        and _named(file)
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    if not found:
        raise DataError(
            f"{path}: the folder has no file whose name ends in {', '.join(_SUFFIXES)} (or one of "
            "the first three and .gz); give the files themselves"
        )
    return found


def _named(file: Path) -> str | None:
    """The format that a name tells."""
    suffixes = file.suffixes
    if suffixes[-1:] == [".gz"]:
        suffixes.pop()
    return _SUFFIXES.get(suffixes[-1].lower()) if suffixes else None


def _kind(file: Path) -> str | None:
    """The format of a file, as far as its name and first bytes tell it."""
    if named := _named(file):
        return named
    with file.open("rb") as opened:
        return "parquet" if opened.read(4) == _PARQUET else None


def _begins(line: bytes) -> str:
    """The format of a file that begins with this line."""
    if line.startswith(_PARQUET):
        raise DataError("Parquet cannot be read from standard input; give the file")
    return "jsonl" if line.lstrip(b"\xef\xbb\xbf \t").startswith(b"{") else "text"


def _check_unpacked(begin: bytes, name: str) -> None:
    """Files are unpacked once, standard input is not."""
    if begin.startswith(_GZIP):
        raise DataError(
            f"{name} is compressed with gzip; gunzip it first, or give the .gz file instead of a "
            "pipe"
        )


def _content(raw: IO[bytes], file: Path | None) -> IO[bytes]:
    if file is None:
        return raw
    compressed = raw.read(2) == _GZIP
    raw.seek(0)
    return cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if compressed else raw


def _numbered(content: IO[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := content.readline(MAX_RECORD + 1):
        number += 1
        if len(line) > MAX_RECORD:
            raise too_long(f"{name}:{number}")
        yield number, line
