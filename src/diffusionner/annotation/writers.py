"""The output: JSON lines in a file or on standard output, or Parquet files in a folder."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from diffusionner.annotation.journal import sync_folder, write_all
from diffusionner.annotation.records import ENTITIES, Record, entity_fields, to_line
from diffusionner.corpus import Entity
from diffusionner.errors import DataError, WriteError
from diffusionner.formats import arrow

Annotated = tuple[Record, Sequence[Entity]]
# JSON lines are made safe together: every so many, or once this time has passed.
RECORDS = 1000
SECONDS = 1.0
PART_ROWS = 10_000
_CHARACTERS = 2**24  # of text, beyond which a Parquet file ends before it has its rows
_LINE_ENDS = (".jsonl", ".ndjson")
_PARQUET_END = ".parquet"


class Writer(Protocol):
    """Takes records in order; what `write` returns says how much is on the disk then."""

    def enough(self, waiting: Sequence[Annotated]) -> bool:
        """Whether these records should be written now."""

    def write(self, waiting: Sequence[Annotated]) -> int:
        """None at all come when the whole input is empty: that too makes an output."""

    def close(self) -> None: ...


class StandardOutput:
    """Lines that whoever reads the pipe has at once."""

    def enough(self, waiting: Sequence[Annotated]) -> bool:
        return True

    def write(self, waiting: Sequence[Annotated]) -> int:
        try:
            sys.stdout.buffer.write(b"".join(to_line(*one) for one in waiting))
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise WriteError(f"standard output cannot be written: {error.strerror}") from error
        return 0

    def close(self) -> None:
        pass


class Lines:
    """A file of JSON lines, counted in bytes."""

    def __init__(self, path: Path, written: int) -> None:
        self.written = written
        self.last = time.monotonic()
        self._file: IO[bytes] = open(path, "ab", buffering=0)  # noqa: SIM115
        if self._file.tell() < written:
            self._file.close()
            raise _shorter(path)
        self._file.truncate(written)  # what a kill left of the next lines

    def enough(self, waiting: Sequence[Annotated]) -> bool:
        return len(waiting) >= RECORDS or time.monotonic() - self.last >= SECONDS

    def write(self, waiting: Sequence[Annotated]) -> int:
        content = b"".join(to_line(*one) for one in waiting)
        write_all(self._file, content)
        os.fsync(self._file.fileno())
        self.written += len(content)
        self.last = time.monotonic()
        return self.written

    def close(self) -> None:
        self._file.close()


class Parts:
    """A folder of Parquet files of one schema, counted in files."""

    def __init__(self, folder: Path, written: int, rows: int = PART_ROWS) -> None:
        self.pyarrow = arrow.pyarrow("parquet")
        self.folder = folder
        self.parts = written
        self.rows = rows
        folder.mkdir(exist_ok=True)
        for left in set(folder.iterdir()) - {self._part(n) for n in range(written)}:
            left.unlink()  # what a kill left of the next file
        self.schema: Any = None
        if written:
            if not all(self._part(number).exists() for number in range(written)):
                raise _shorter(folder)
            from pyarrow.parquet import read_schema

            self.schema = read_schema(self._part(0))

    def _part(self, number: int) -> Path:
        return self.folder / f"part-{number:05}{_PARQUET_END}"

    def enough(self, waiting: Sequence[Annotated]) -> bool:
        if len(waiting) >= self.rows:
            return True
        # Looked at now and then: adding up the lengths takes time too.
        return len(waiting) % 256 == 0 and _characters(waiting) >= _CHARACTERS

    def write(self, waiting: Sequence[Annotated]) -> int:
        from pyarrow.parquet import write_table

        if self.schema is None:
            self.schema = self._infer([record for record, _ in waiting])
        path = self._part(self.parts)
        write_table(self._table(waiting), path, compression="zstd")
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        sync_folder(self.folder)
        self.parts += 1
        return self.parts

    def close(self) -> None:
        pass

    def _infer(self, records: Sequence[Record]) -> Any:
        """The columns: those of the table that was read, else what the first records hold."""
        pa = self.pyarrow
        given = records[0].schema if records else pa.schema([("text", pa.string())])
        if given is None:
            rows = [record.fields for record in records]
            names = list(dict.fromkeys(name for row in rows for name in row))
            given = pa.schema([self._column(name, rows) for name in names])
        fields = [field for field in given if field.name != ENTITIES]
        entity = pa.struct(
            [
                ("start", pa.int32()),
                ("end", pa.int32()),
                ("label", pa.string()),
                ("score", pa.float64()),
                ("text", pa.string()),
            ]
        )
        # Not the old table's metadata: they describe its columns to pandas and others.
        return pa.schema([*fields, (ENTITIES, pa.list_(entity))])

    def _column(self, name: str, rows: Sequence[dict[str, Any]]) -> Any:
        pa = self.pyarrow
        try:
            kind = pa.array([row.get(name) for row in rows]).type
        except pa.ArrowException as error:
            raise _unfit(f"field '{name}' holds values of different kinds ({error})") from error
        return pa.field(name, pa.string() if pa.types.is_null(kind) else kind)

    def _table(self, waiting: Sequence[Annotated]) -> Any:
        rows = []
        known = set(self.schema.names)
        for record, entities in waiting:
            if more := set(record.fields) - known:
                raise _unfit(f"{record.place}: the first records have no field {sorted(more)}")
            rows.append({**record.fields, ENTITIES: [entity_fields(e) for e in entities]})
        try:
            return self.pyarrow.Table.from_pylist(rows, schema=self.schema)
        except (self.pyarrow.ArrowException, OverflowError) as error:
            raise self._which(waiting) or _unfit(str(error)) from error

    def _which(self, waiting: Sequence[Annotated]) -> DataError | None:
        """The first value that does not fit its column."""
        for record, _ in waiting:
            for field in self.schema:
                try:
                    self.pyarrow.array([record.fields.get(field.name)], field.type)
                except (self.pyarrow.ArrowException, OverflowError):
                    value = record.fields[field.name]
                    return _unfit(
                        f"{record.place}: {field.name}={value!r:.60} is no {field.type}, as in the "
                        "first records"
                    )
        return None


def is_parquet(target: Path) -> bool:
    """Whether the output is a folder of Parquet files; DataError if its name does not tell."""
    if target.suffix not in (*_LINE_ENDS, _PARQUET_END):
        raise DataError(
            f"{target}: the name tells the format: {' or '.join(_LINE_ENDS)} for JSON lines, "
            f"{_PARQUET_END} for a folder of Parquet files, - for JSON lines on standard output"
        )
    return target.suffix == _PARQUET_END


def _characters(waiting: Sequence[Annotated]) -> int:
    return sum(
        len(record.content) if isinstance(record.content, str) else sum(map(len, record.content))
        for record, _ in waiting
    )


def _unfit(what: str) -> DataError:
    return DataError(
        f"{what}; the rows of a Parquet table are all of one kind. Make the input so, or write "
        "JSON lines (OUT.jsonl)"
    )


def _shorter(path: Path) -> DataError:
    return DataError(
        f"{path} is shorter than its journal says; restore it, or remove both to begin again"
    )
