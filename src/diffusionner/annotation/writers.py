"""Output: JSON lines in a file or on standard output, or a folder of Parquet files."""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from diffusionner.annotation.journal import sync_folder, write_all
from diffusionner.annotation.record import ENTITIES, Record
from diffusionner.corpus import Entity
from diffusionner.errors import DataError, WriteError
from diffusionner.formats import arrow_tables

Annotated = tuple[Record, Sequence[Entity]]
FLUSH_RECORDS = 1000  # JSON lines are flushed after this many records
FLUSH_SECONDS = 1.0  # or after this time
PART_ROWS = 10_000
_MAX_CHARACTERS = 2**24  # a Parquet file with more text ends before PART_ROWS
_LINE_SUFFIXES = (".jsonl", ".ndjson")
_PARQUET_SUFFIX = ".parquet"


class Writer(ABC):
    """Writes records in order."""

    @abstractmethod
    def is_full(self, buffer: Sequence[Annotated]) -> bool:
        """Return True if the buffered records should be written now."""

    @abstractmethod
    def write(self, buffer: Sequence[Annotated]) -> int:
        """Write records and return the size of the output; an empty input still makes an output."""

    def close(self) -> None:  # noqa: B027
        pass


class StdoutWriter(Writer):
    """Writes every line at once, for the reader of the pipe."""

    def is_full(self, buffer: Sequence[Annotated]) -> bool:
        return True

    def write(self, buffer: Sequence[Annotated]) -> int:
        try:
            sys.stdout.buffer.write(_json_lines(buffer))
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise WriteError(f"standard output cannot be written: {error.strerror}") from error
        return 0


class JsonLinesWriter(Writer):
    """Appends to a file of JSON lines; its size is counted in bytes."""

    def __init__(self, path: Path, written: int) -> None:
        self.written = written
        self.last_flush = time.monotonic()
        self._file: IO[bytes] = open(path, "ab", buffering=0)  # noqa: SIM115
        if self._file.tell() < written:
            self._file.close()
            raise _too_short(path)
        self._file.truncate(written)  # remove lines that are not in the journal

    def is_full(self, buffer: Sequence[Annotated]) -> bool:
        overdue = time.monotonic() - self.last_flush >= FLUSH_SECONDS
        return overdue or len(buffer) >= FLUSH_RECORDS

    def write(self, buffer: Sequence[Annotated]) -> int:
        content = _json_lines(buffer)
        write_all(self._file, content)
        os.fsync(self._file.fileno())
        self.written += len(content)
        self.last_flush = time.monotonic()
        return self.written

    def close(self) -> None:
        self._file.close()


class ParquetWriter(Writer):
    """Writes a folder of Parquet files with one schema; its size is counted in files."""

    def __init__(self, folder: Path, written: int, rows: int = PART_ROWS) -> None:
        self.pyarrow = arrow_tables.import_pyarrow("parquet")
        self.folder = folder
        self.parts = written
        self.rows = rows
        folder.mkdir(exist_ok=True)
        for leftover in set(folder.iterdir()) - {self._part(n) for n in range(written)}:
            leftover.unlink()  # not in the journal
        self.schema: Any = None
        if written:
            if not all(self._part(number).exists() for number in range(written)):
                raise _too_short(folder)
            from pyarrow.parquet import read_schema

            self.schema = read_schema(self._part(0))

    def _part(self, number: int) -> Path:
        return self.folder / f"part-{number:05}{_PARQUET_SUFFIX}"

    def is_full(self, buffer: Sequence[Annotated]) -> bool:
        if len(buffer) >= self.rows:
            return True
        # Checked now and then only, because summing the lengths takes time.
        return len(buffer) % 256 == 0 and _characters(buffer) >= _MAX_CHARACTERS

    def write(self, buffer: Sequence[Annotated]) -> int:
        from pyarrow.parquet import write_table

        if self.schema is None:
            self.schema = self._infer_schema([record for record, _ in buffer])
        path = self._part(self.parts)
        write_table(self._table(buffer), path, compression="zstd")
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        sync_folder(self.folder)
        self.parts += 1
        return self.parts

    def _infer_schema(self, records: Sequence[Record]) -> Any:
        """Return the schema of the input table, or one inferred from the first records."""
        pa = self.pyarrow
        given = records[0].schema if records else pa.schema([("text", pa.string())])
        if given is None:
            rows = [record.fields for record in records]
            names = list(dict.fromkeys(name for row in rows for name in row))
            given = pa.schema([self._infer_column(name, rows) for name in names])
        columns = [field for field in given if field.name != ENTITIES]
        offset, string = pa.int32(), pa.string()
        types = {"start": offset, "end": offset, "label": string}
        entity = pa.struct({**types, "score": pa.float64(), "text": string}.items())
        # Without the metadata of the input, which describe its columns to pandas and others.
        return pa.schema([*columns, (ENTITIES, pa.list_(entity))])

    def _infer_column(self, name: str, rows: Sequence[dict[str, Any]]) -> Any:
        pa = self.pyarrow
        try:
            type_ = pa.array([row.get(name) for row in rows]).type
        except pa.ArrowException as error:
            raise _mismatch(f"field '{name}' has values of different types ({error})") from error
        return pa.field(name, pa.string() if pa.types.is_null(type_) else type_)

    def _table(self, buffer: Sequence[Annotated]) -> Any:
        known = set(self.schema.names)
        for record, _ in buffer:
            if unknown := set(record.fields) - known:
                raise _mismatch(f"{record.place}: the first records lack field {sorted(unknown)}")
        rows = [record.with_entities(entities) for record, entities in buffer]
        try:
            return self.pyarrow.Table.from_pylist(rows, schema=self.schema)
        except (self.pyarrow.ArrowException, OverflowError) as error:
            raise self._find_mismatch(buffer) or _mismatch(str(error)) from error

    def _find_mismatch(self, buffer: Sequence[Annotated]) -> DataError | None:
        """Return an error for the first value that does not fit its column."""
        for record, _ in buffer:
            for field in self.schema:
                try:
                    self.pyarrow.array([record.fields.get(field.name)], field.type)
                except (self.pyarrow.ArrowException, OverflowError):
                    value = record.fields[field.name]
                    return _mismatch(
                        f"{record.place}: {field.name}={value!r:.60} is not of type {field.type}, "
                        "as in the first records"
                    )
        return None


def check_suffix(target: Path) -> None:
    """Raise DataError if the name of the output does not tell its format."""
    if target.suffix not in (*_LINE_SUFFIXES, _PARQUET_SUFFIX):
        raise DataError(
            f"{target}: the suffix selects the format: {' or '.join(_LINE_SUFFIXES)} for JSON "
            f"lines, {_PARQUET_SUFFIX} for a folder of Parquet files; - writes JSON lines to "
            "standard output"
        )


def open_writer(target: Path, partial: Path, written: int, part_rows: int) -> Writer:
    """Return a writer that continues the partial output after what is already written."""
    if target.suffix == _PARQUET_SUFFIX:
        return ParquetWriter(partial, written, part_rows)
    return JsonLinesWriter(partial, written)


def _json_lines(buffer: Sequence[Annotated]) -> bytes:
    return b"".join(record.to_json_line(entities) for record, entities in buffer)


def _characters(buffer: Sequence[Annotated]) -> int:
    return sum(
        len(record.content) if isinstance(record.content, str) else sum(map(len, record.content))
        for record, _ in buffer
    )


def _mismatch(problem: str) -> DataError:
    return DataError(
        f"{problem}; all rows of a Parquet table share one schema. Fix the input, or write JSON "
        "lines (OUT.jsonl)"
    )


def _too_short(path: Path) -> DataError:
    return DataError(
        f"{path} is shorter than its journal says; restore it, or remove both to start over"
    )
