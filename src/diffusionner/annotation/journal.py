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

    def position(self, written: int) -> Position:
        return Position(self.records, self.entities, self.hash, written)


class Journal:
    """One JSON line describing the run, then one per flush; an incomplete last line is ignored.

    Lines are only appended, so there is always a position to resume from. The file stays locked
    during a run, so that two runs cannot write the same output.
    """

    def __init__(self, output: Path, run: dict[str, Any]) -> None:
        """run: values that must be equal for a run to be resumed."""
        self.path = journal_path(output)
        self.last = Position()
        self._file = open(self.path, "ab+", buffering=0)  # noqa: SIM115
        try:
            if not try_lock(self._file):
                raise WriteError(
                    f"another process is writing {output}; wait for it or choose another name"
                )
            self._resume(output, run)
        except BaseException:
            self._file.close()
            raise

    def _resume(self, output: Path, run: dict[str, Any]) -> None:
        self._file.seek(0)
        lines = self._file.read().split(b"\n")[:-1]
        if not lines:
            self._file.truncate(0)
            self._append({"run": run})
            sync_folder(self.path.parent)
            return
        try:
            before = json.loads(lines[0])["run"]
            self.last = Position(**json.loads(lines[-1])) if len(lines) > 1 else Position()
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{self.path} is not a journal of this command; choose another name for the "
                "output, or move the file away"
            ) from error
        changed = [name for name in run if before.get(name) != run[name]]
        if changed:
            raise DataError(
                f"{self.path} belongs to an earlier run; the {' and '.join(changed)} changed "
                f"since. Repeat the earlier command to resume it, or remove {self.path} and "
                f"{partial_path(output)} to start over"
            )
        self._file.truncate(sum(len(line) + 1 for line in lines))

    def append(self, position: Position) -> None:
        """Record that everything up to this position is on disk."""
        self._append(asdict(position))
        self.last = position

    def _append(self, value: dict[str, Any]) -> None:
        write_all(self._file, json.dumps(value).encode() + b"\n")
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
