"""Journal of the records safely written, kept next to the output, to resume interrupted runs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from diffusionner.annotation.record import Record
from diffusionner.errors import DataError, WriteError
from diffusionner.files import try_lock


@dataclass(frozen=True)
class Position:
    """Progress of a run at one flush of the output."""

    records: int = 0  # written
    entities: int = 0  # in these records
    hash: str = ""  # of the input records
    written: int = 0  # size of the output, in the writer's unit
    output: str = ""  # hash of the output up to this size


class RecordCounter:
    """Counts written records and hashes their input."""

    def __init__(self) -> None:
        self.records = 0
        self.entities = 0
        self._state = blake2b(digest_size=16)

    def add(self, record: Record, entities: int = 0) -> None:
        self.records += 1
        self.entities += entities
        self._state.update(record.to_bytes())

    @property
    def hash(self) -> str:
        return self._state.hexdigest() if self.records else ""

    def position(self, written: int, output: str) -> Position:
        return Position(self.records, self.entities, self.hash, written, output)


class Journal:
    """One line describing the run, then one per flush: a checksum and JSON.

    The checksum covers all lines before, so that lines can neither change nor move. Lines are only
    appended; a last line that is incomplete or damaged is dropped, because the position before it
    is as good. The file stays locked during a run, so that two runs cannot write the same output.
    """

    def __init__(self, output: Path, run: dict[str, Any]) -> None:
        """run: values that must be equal for a run to be resumed."""
        self.path = journal_path(output)
        self.last = Position()
        self._checksum = b""  # of the last line
        self._file = open(self.path, "ab+", buffering=0)  # noqa: SIM115
        try:
            if not try_lock(self._file):
                raise WriteError(
                    f"another process is writing {output}; wait for it or choose another name"
                )
            self._file.seek(0)
            content = self._file.read()
            if b"\n" in content:
                self._resume(output, run, content)
            else:
                self._start(output, run, content)
        except BaseException:
            self._file.close()
            raise

    def _start(self, output: Path, run: dict[str, Any], content: bytes) -> None:
        """Write the first line, which an earlier run may have begun."""
        if output.exists():  # written by another process since this one looked
            if not content:
                self.path.unlink()
            raise WriteError(f"{output} already exists; remove it or choose another name")
        if partial_path(output).exists():  # it is made after the first line
            raise self._damaged(output, 1)
        line = self._encode({"run": run})
        if not line.startswith(content):
            raise self._foreign()
        self._file.truncate(0)
        self._write(line)
        sync_folder(self.path.parent)

    def _resume(self, output: Path, run: dict[str, Any], content: bytes) -> None:
        if content.startswith(b'{"run"'):
            raise DataError(
                f"{self.path} was written by version 0.2 or older, whose runs cannot be resumed; "
                f"finish the run with that version, or remove {self.path} and "
                f"{partial_path(output)} to start over"
            )
        lines = content.split(b"\n")[:-1]
        values = self._decode(lines)
        if not values and len(lines) == 1:
            raise self._foreign()
        if len(values) < max(1, len(lines) - 1):
            raise self._damaged(output, len(values) + 1)
        try:
            before = values[0]["run"]
            self.last = Position(**values[-1]) if len(values) > 1 else Position()
        except (KeyError, TypeError) as error:
            raise self._foreign() from error
        changed = [name for name in run if before.get(name) != run[name]]
        if changed:
            raise DataError(
                f"{self.path} belongs to an earlier run; the {' and '.join(changed)} changed "
                f"since. Repeat the earlier command to resume it, or remove {self.path} and "
                f"{partial_path(output)} to start over"
            )
        self._file.truncate(sum(len(line) + 1 for line in lines[: len(values)]))

    def _decode(self, lines: list[bytes]) -> list[dict[str, Any]]:
        """Return the values of the lines before the first damaged one."""
        values = []
        for line in lines:
            checksum, _, content = line.partition(b" ")
            if checksum != self._checksum_of(content):
                break
            self._checksum = checksum
            values.append(json.loads(content))
        return values

    def _encode(self, value: dict[str, Any]) -> bytes:
        content = json.dumps(value).encode()
        self._checksum = self._checksum_of(content)
        return self._checksum + b" " + content + b"\n"

    def _checksum_of(self, content: bytes) -> bytes:
        """Return the checksum of the next line."""
        return blake2b(self._checksum + content, digest_size=8).hexdigest().encode()

    def _foreign(self) -> DataError:
        return DataError(
            f"{self.path} is not a journal of this command, or is damaged; choose another name for "
            "the output, or move the file away"
        )

    def _damaged(self, output: Path, line: int) -> DataError:
        return DataError(
            f"{self.path}:{line}: this line of the journal is damaged; restore the file, or remove "
            f"{self.path} and {partial_path(output)} to start over"
        )

    def append(self, position: Position) -> None:
        """Record that everything up to this position is on disk."""
        self._write(self._encode(asdict(position)))
        self.last = position

    def _write(self, line: bytes) -> None:
        write_all(self._file, line)
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def journal_path(output: Path) -> Path:
    return output.with_name(output.name + ".journal")


def partial_path(output: Path) -> Path:
    """Return the path of an output until it is complete."""
    return output.with_name(output.name + ".partial")


def write_all(file: IO[bytes], content: bytes) -> None:
    """Write to an unbuffered file, which may accept only a part at a time."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def sync_folder(folder: Path) -> None:
    """Flush a folder to disk, so that new file names survive a power failure."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
