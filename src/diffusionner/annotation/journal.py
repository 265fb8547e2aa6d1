"""What is safely written of an output, kept beside it, so that a run that was killed can go on."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from diffusionner.annotation.records import Record
from diffusionner.errors import DataError, WriteError


@dataclass(frozen=True)
class Point:
    """How far a run has come."""

    records: int = 0  # written
    entities: int = 0  # in them
    hash: str = ""  # of them as they were read
    written: int = 0  # how much of the output that is, as its writer counts


class Counter:
    """Counts the records that were written, and hashes them as they were read."""

    def __init__(self) -> None:
        self.records = 0
        self.entities = 0
        self._state = blake2b(digest_size=16)

    def add(self, record: Record, entities: int = 0) -> None:
        self.records += 1
        self.entities += entities
        self._state.update(record.identity())

    @property
    def hash(self) -> str:
        return self._state.hexdigest() if self.records else ""

    def point(self, written: int) -> Point:
        return Point(self.records, self.entities, self.hash, written)


class Journal:
    """A line of JSON for the run and one for each point; a line cut short does not count.

    It is only appended to, so there is always a point to go on from, and it is held while a run
    lasts, so that two cannot write the same output.
    """

    def __init__(self, path: Path, run: dict[str, Any]) -> None:
        """run: what must stay the same for a run to go on."""
        self.path = path
        self.last = Point()
        self._file = open(path, "ab+", buffering=0)  # noqa: SIM115
        try:
            _hold(self._file, path)
            self._begin(run)
        except BaseException:
            self._file.close()
            raise

    def _begin(self, run: dict[str, Any]) -> None:
        self._file.seek(0)
        lines = self._file.read().split(b"\n")[:-1]
        if not lines:
            self._file.truncate(0)
            self._append({"run": run})
            sync_folder(self.path.parent)
            return
        try:
            before = json.loads(lines[0])["run"]
            self.last = Point(**json.loads(lines[-1])) if len(lines) > 1 else Point()
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{self.path} is no journal of this command; choose another name for the output, "
                "or move the file away"
            ) from error
        changed = [name for name in run if before.get(name) != run[name]]
        if changed:
            raise DataError(
                f"{self.path} is of an earlier run that differs in its {' and '.join(changed)}; "
                f"run it as before to go on with it, or remove {self.path} and "
                f"{partial(output(self.path))} to begin again"
            )
        self._file.truncate(sum(len(line) + 1 for line in lines))

    def note(self, point: Point) -> None:
        """What was written up to this point is on the disk."""
        self._append(asdict(point))
        self.last = point

    def _append(self, value: dict[str, Any]) -> None:
        write_all(self._file, json.dumps(value).encode() + b"\n")
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def journal(output: Path) -> Path:
    """Where the journal of an output is."""
    return output.with_name(output.name + ".journal")


def partial(output: Path) -> Path:
    """Where an output is until it is whole."""
    return output.with_name(output.name + ".partial")


def output(journal: Path) -> Path:
    return journal.with_name(journal.name.removesuffix(".journal"))


def write_all(file: IO[bytes], content: bytes) -> None:
    """An unbuffered file may take a part only, as when the disk is all but full."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def sync_folder(folder: Path) -> None:
    """New names in a folder are only safe from a power cut once the folder is written too."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hold(file: IO[bytes], path: Path) -> None:
    """The system lets go when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise WriteError(
            f"another process is writing {output(path)}; wait for it or choose another name"
        ) from error
