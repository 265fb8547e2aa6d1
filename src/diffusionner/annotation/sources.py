"""Input: text, JSON lines and Parquet from files, folders, patterns or standard input."""

from __future__ import annotations

import glob
import gzip
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from diffusionner.annotation.record import Record, make_record, parse_line
from diffusionner.errors import DataError
from diffusionner.formats import arrow_tables
from diffusionner.formats.source import MAX_RECORD, decode, number_lines, too_long, unreadable

STDIN = "-"
FORMATS = ("text", "jsonl", "parquet")
_SUFFIXES = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_GZIP, _PARQUET = b"\x1f\x8b", b"PAR1"
_PARQUET_FROM_STDIN = "Parquet cannot be read from standard input; give the file"
_ROWS = 1024  # table rows decoded at a time

Report = Callable[[str], None]


@dataclass
class Sources:
    """Input files in order.

    format: one of FORMATS; None detects it from the file name, then from the content.
    whole_files: treat a text file as one text instead of one text per line.
    """

    files: list[Path | None]  # None: standard input
    format: str | None = None
    whole_files: bool = False
    skipped: int = field(default=0, init=False)  # bad records

    @property
    def size(self) -> int | None:
        """Total number of bytes; None if unknown."""
        return None if None in self.files else sum(f.stat().st_size for f in self.files if f)

    def records(self, report: Report) -> Iterator[Record]:
        """Yield all records in order; report and skip bad ones."""
        self.skipped = 0
        bytes_before = 0
        for file in self.files:
            try:
                size = file.stat().st_size if file else 0
                for record in self._read(file, size):
                    if isinstance(record, Record):
                        record.bytes_read += bytes_before
                        yield record
                    else:
                        self.skipped += 1
                        report(record)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise DataError(f"{file}: damaged gzip file ({error}); restore it") from error
            except OSError as error:
                raise unreadable(file or Path("standard input"), error) from error
            bytes_before += size

    def _read(self, file: Path | None, size: int) -> Iterator[Record | str]:
        """Yield the records of a file, and an error message for each bad one."""
        format = self.format or (_detect_format(file) if file else None)
        if file and format == "parquet":
            return _read_parquet(file, size)
        return self._read_lines(file, format)

    def _read_lines(self, file: Path | None, format: str | None) -> Iterator[Record | str]:
        name = str(file) if file else "standard input"
        with open(file, "rb") if file else nullcontext(sys.stdin.buffer) as raw:
            content = _decompress(raw) if file else raw
            if self.whole_files and format != "jsonl":
                yield _read_whole(content, name)
                return
            for number, line in number_lines(content, name):
                if number == 1:
                    _check_decompressed(line, name)
                if not line.strip():
                    continue
                format = format or _format_of_line(line)
                place = f"{name}:{number}"
                try:
                    if format == "jsonl":
                        record = parse_line(line, place)
                    else:
                        text = decode(line, place, number == 1).rstrip("\r\n")
                        fields = {"file": name, "line": number, "text": text}
                        record = Record(fields, text, None, place)
                except DataError as error:
                    yield str(error)
                else:
                    # Compressed bytes of a compressed file, to compare with its size.
                    record.bytes_read = raw.tell() if file else 0
                    yield record


def find_sources(
    paths: Sequence[str],
    format: str | None = None,
    whole_files: bool = False,
    exclude: Sequence[Path] = (),
) -> Sources:
    """Expand paths, folders and patterns into files, each in alphabetical order.

    exclude: files and folders that are not input, even within an input folder.
    """
    if format not in (None, *FORMATS):
        raise DataError(f"unknown format '{format}'; choose one of: {', '.join(FORMATS)}")
    if list(paths) == [STDIN]:
        if format == "parquet":
            raise DataError(_PARQUET_FROM_STDIN)
        return Sources([None], format, whole_files)
    if STDIN in paths:
        raise DataError("standard input (-) cannot be combined with files; give one or the other")
    excluded = {path.resolve() for path in exclude}
    files = [file for path in paths for match in _expand(path) for file in _list_files(match)]
    kept = [f for f in files if not excluded & {f.resolve(), *f.resolve().parents}]
    return Sources([*kept], format, whole_files)


def _expand(path: str) -> list[Path]:
    if Path(path).exists():
        return [Path(path)]
    matches = sorted(glob.glob(path, recursive=True))
    if not matches:
        raise DataError(f"{path}: no such file or folder, and as a pattern it matches none")
    return [Path(match) for match in matches]


def _list_files(path: Path) -> list[Path]:
    """Return the file itself, or the files in a folder that have an input suffix."""
    if path.is_file():
        return [path]
    if not path.is_dir():  # a pipe cannot be read twice, nor by another process
        raise DataError(f"{path}: neither a file nor a folder; read pipes from standard input (-)")
    files = [
        file
        for file in sorted(path.rglob("*"))
        if file.is_file()
        and _format_of_name(file)
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    if not files:
        raise DataError(
            f"{path}: the folder contains no file ending in {', '.join(_SUFFIXES)} (the first "
            "three optionally with .gz); give the files themselves"
        )
    return files


def _format_of_name(file: Path) -> str | None:
    suffixes = file.suffixes
    if suffixes[-1:] == [".gz"]:
        suffixes.pop()
    return _SUFFIXES.get(suffixes[-1].lower()) if suffixes else None


def _detect_format(file: Path) -> str | None:
    if format := _format_of_name(file):
        return format
    with file.open("rb") as opened:
        return "parquet" if opened.read(4) == _PARQUET else None


def _format_of_line(line: bytes) -> str:
    """Return the format of a file that begins with this line."""
    if line.startswith(_PARQUET):
        raise DataError(_PARQUET_FROM_STDIN)
    return "jsonl" if line.lstrip(b"\xef\xbb\xbf \t").startswith(b"{") else "text"


def _decompress(raw: IO[bytes]) -> IO[bytes]:
    compressed = raw.read(2) == _GZIP
    raw.seek(0)
    return cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if compressed else raw


def _check_decompressed(head: bytes, name: str) -> None:
    """Raise DataError for gzip on standard input, or gzip within gzip."""
    if head.startswith(_GZIP):
        raise DataError(
            f"{name} is compressed with gzip; gunzip it first, or give the .gz file instead of a "
            "pipe"
        )


def _read_whole(content: IO[bytes], name: str) -> Record | str:
    whole = content.read(MAX_RECORD + 1)
    _check_decompressed(whole, name)
    if len(whole) > MAX_RECORD:
        raise too_long(f"{name}:1")
    try:
        text = decode(whole, name, True)
    except DataError as error:
        return str(error)
    return Record({"file": name, "text": text}, text, None, name)


def _read_parquet(file: Path, size: int) -> Iterator[Record | str]:
    arrow_tables.import_pyarrow("parquet")
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(file) as table:
            if not {"text", "tokens"} & set(table.schema_arrow.names):
                raise DataError(
                    f"{file}: no column 'text' or 'tokens'; rename the column that holds the text"
                )
            number, rows = 0, table.metadata.num_rows
            for batch in table.iter_batches(_ROWS):
                for fields in batch.to_pylist():
                    number += 1
                    try:
                        record = make_record(fields, f"{file}:row {number}", null_is_empty=True)
                    except DataError as error:
                        yield str(error)
                        continue
                    record.bytes_read = size * number // rows
                    record.schema = table.schema_arrow
                    yield record
    except arrow_tables.arrow_errors() as error:
        raise arrow_tables.damaged(str(file), error) from error
