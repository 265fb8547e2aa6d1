"""Output: JSON lines in a file or on standard output, or a folder of Parquet files."""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from diffusionner.annotation.journal import Position, sync_folder, write_all
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

    written = 0  # size of the output
    hash = ""  # of the output

    @abstractmethod
    def is_full(self, buffer: Sequence[Annotated]) -> bool:
        """Return True if the buffered records should be written now."""

    @abstractmethod
    def write(self, buffer: Sequence[Annotated]) -> None:
        """Write records; an empty input still makes an output."""

    def close(self) -> None:  # noqa: B027
        pass


class StdoutWriter(Writer):
    """Writes every line at once, for the reader of the pipe."""

    def is_full(self, buffer: Sequence[Annotated]) -> bool:
        return True

    def write(self, buffer: Sequence[Annotated]) -> None:
        try:
            sys.stdout.buffer.write(_json_lines(buffer))
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise WriteError(f"standard output cannot be written: {error.strerror}") from error


class JsonLinesWriter(Writer):
    """Appends to a file of JSON lines; its size is counted in bytes."""

    def __init__(self, path: Path, position: Position) -> None:
        self._state = _check_output(path, [path], position, position.written)
        self.written = position.written
        self.last_flush = time.monotonic()
        self._file: IO[bytes] = open(path, "ab", buffering=0)  # noqa: SIM115
        self._file.truncate(self.written)  # remove lines that are not in the journal

    def is_full(self, buffer: Sequence[Annotated]) -> bool:
        overdue = time.monotonic() - self.last_flush >= FLUSH_SECONDS
        return overdue or len(buffer) >= FLUSH_RECORDS

    def write(self, buffer: Sequence[Annotated]) -> None:
        content = _json_lines(buffer)
        write_all(self._file, content)
        os.fsync(self._file.fileno())
        self._state.update(content)
        self.written += len(content)
        self.hash = self._state.hexdigest()
        self.last_flush = time.monotonic()

    def close(self) -> None:
        self._file.close()


class ParquetWriter(Writer):
    """Writes a folder of Parquet files with one schema; its size is counted in files."""

    def __init__(
        self, folder: Path, position: Position, rows: int = PART_ROWS, discontinuous: bool = False
    ) -> None:
        """discontinuous: entities may have fragments."""
        self.pyarrow = arrow_tables.import_pyarrow("parquet")
        parts = _parts(folder, position.written)
        self._state = _check_output(folder, parts, position)
        self.folder = folder
        self.written = position.written
        self.rows = rows
        self.discontinuous = discontinuous
        folder.mkdir(exist_ok=True)
        for leftover in {*folder.iterdir()} - {*parts}:
            leftover.unlink()  # not in the journal
        self.schema: Any = None
        if parts:
            from pyarrow.parquet import read_schema

            self.schema = read_schema(parts[0])

    def is_full(self, buffer: Sequence[Annotated]) -> bool:
        if len(buffer) >= self.rows:
            return True
        # Checked now and then only, because summing the lengths takes time.
        return len(buffer) % 256 == 0 and _characters(buffer) >= _MAX_CHARACTERS

    def write(self, buffer: Sequence[Annotated]) -> None:
        from pyarrow.parquet import write_table

        if self.schema is None:
            self.schema = self._infer_schema([record for record, _ in buffer])
        self.written += 1
        path = _parts(self.folder, self.written)[-1]
        write_table(self._table(buffer), path, compression="zstd")
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        sync_folder(self.folder)
        _hash_file(path, self._state)
        self.hash = self._state.hexdigest()

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
        types |= {"score": pa.float64(), "text": string}
        if self.discontinuous:
            types["fragments"] = pa.list_(pa.list_(offset))  # null for contiguous entities
        entity = pa.struct(types.items())
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


def open_writer(
    target: Path, partial: Path, position: Position, part_rows: int, discontinuous: bool
) -> Writer:
    """Return a writer that continues the partial output; raise DataError if it has changed."""
    if target.suffix == _PARQUET_SUFFIX:
        return ParquetWriter(partial, position, part_rows, discontinuous)
    return JsonLinesWriter(partial, position)


def is_complete(target: Path, position: Position) -> bool:
    """Return True if the output ends at this position."""
    files = _parts(target, position.written) if target.suffix == _PARQUET_SUFFIX else [target]
    try:
        others = target.is_dir() and {*target.iterdir()} != {*files}
        return not others and _hash_files(files).hexdigest() == position.output
    except OSError:
        return False


def _parts(folder: Path, count: int) -> list[Path]:
    return [folder / f"part-{number:05}{_PARQUET_SUFFIX}" for number in range(count)]


def _check_output(
    path: Path, files: Sequence[Path], position: Position, size: int | None = None
) -> blake2b:
    """Return the hash of the output so far; raise DataError if it is not that of the position."""
    if not position.written:
        return blake2b(digest_size=16)
    with suppress(FileNotFoundError):
        state = _hash_files(files, size)
        if state.hexdigest() == position.output:
            return state
    raise DataError(
        f"{path} has changed since the run stopped: it does not begin with the "
        f"{position.records:,} records in its journal; restore it, or remove both to start over"
    )


def _hash_files(files: Sequence[Path], size: int | None = None) -> blake2b:
    """Return the hash of files, or of their first `size` bytes."""
    state = blake2b(digest_size=16)
    for file in files:
        _hash_file(file, state, size)
    return state


def _hash_file(path: Path, state: blake2b, size: int | None = None) -> None:
    left = sys.maxsize if size is None else size
    with path.open("rb") as file:
        while content := file.read(min(left, 2**20)):
            state.update(content)
            left -= len(content)


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
