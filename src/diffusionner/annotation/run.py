"""A corpus from its source, through a model, to its output, with the journal beside it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from diffusionner.annotation import journal
from diffusionner.annotation.journal import Counter, Journal, Point, sync_folder
from diffusionner.annotation.records import Record
from diffusionner.annotation.sources import Report, Sources
from diffusionner.annotation.writers import (
    PART_ROWS,
    Annotated,
    Lines,
    Parts,
    StandardOutput,
    Writer,
    is_parquet,
)
from diffusionner.errors import DataError, WriteError
from diffusionner.settings import Settings
from diffusionner.storage import registry
from diffusionner.storage.config import CARD, read_config

Progress = Callable[[Point, int], None]  # what is safe, and the bytes of the input up to there


@dataclass(frozen=True)
class Model:
    """A model's folder and how it is used."""

    folder: Path
    settings: Settings
    options: dict[str, Any]  # inference settings that were given

    @classmethod
    def find(cls, name: str | Path | None, options: dict[str, Any]) -> Model:
        folder = registry.find_model(name)
        values = read_config(folder)["settings"]
        settings = Settings.from_dict(values, str(folder / "config.json"))
        return cls(folder, settings.with_inference(options), options)

    def identity(self) -> dict[str, Any]:
        """What a run must have in common with the one it goes on with."""
        state = blake2b(digest_size=16)
        for file in sorted(self.folder.iterdir()):
            if file.is_file() and file.name != CARD:
                state.update(file.name.encode() + b"\0")
                with file.open("rb") as opened:
                    while content := opened.read(2**20):
                        state.update(content)
        options = asdict(self.settings.inference)
        del options["batch_size"]  # entities do not depend on it
        return {"model": state.hexdigest(), "options": options}


@dataclass
class Input:
    """The records to annotate: those behind what an earlier run has written."""

    sources: Sources
    records: Iterator[Record]
    counter: Counter  # of those before them
    before: list[Record]  # the last of these, which may be context


class Engine(Protocol):
    """What finds the entities."""

    def annotate(self, given: Input) -> Generator[Annotated, None, None]:
        """The records in order, with their entities."""


def annotate(
    sources: Sources,
    target: Path | None,
    model: Model,
    engine: Engine,
    report: Report,
    progress: Progress = lambda safe, read: None,
    part_rows: int = PART_ROWS,
) -> Point:
    """Annotate all records; target None is standard output.

    A run that was stopped in any way goes on where its journal ends: no record is written twice
    and none is left out. The output has its name once it is whole. report also gets the number of
    records that such a run has left.
    """
    if target is None:
        given = _begin(sources, Point(), model, report)
        return _write(engine.annotate(given), StandardOutput(), given.counter, None, progress)
    parquet = is_parquet(target)
    partial, book = journal.partial(target), journal.journal(target)
    _check(target, partial, book)
    try:
        notes = Journal(book, model.identity())
    except OSError as error:
        raise _stuck(partial, Point(), error) from error
    with closing(notes):
        if notes.last.records:
            report(f"{notes.last.records:,} records of {target} are there already: going on")
        if not target.exists():  # else it was killed between the two steps of _finish
            given = _begin(sources, notes.last, model, report)
            try:
                written = notes.last.written
                writer = Parts(partial, written, part_rows) if parquet else Lines(partial, written)
                sync_folder(target.parent)
                with closing(writer):
                    results = engine.annotate(given)
                    _write(results, writer, given.counter, notes, progress)
                os.replace(partial, target)
                sync_folder(target.parent)
            except OSError as error:
                raise _stuck(partial, notes.last, error) from error
        book.unlink()
        return notes.last


def _check(target: Path, partial: Path, book: Path) -> None:
    """Nothing that is there may be overwritten."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"{target.parent}: {error.strerror}; choose another folder") from error
    if target.exists() and (partial.exists() or not book.exists()):
        raise WriteError(f"{target} exists already; remove it or choose another name")
    if partial.exists() and not book.exists():
        raise WriteError(f"{partial} is there without its journal {book.name}; remove it first")


def _begin(sources: Sources, point: Point, model: Model, report: Report) -> Input:
    """Pass over the records that are written; the last of them may be context for the next."""
    counter = Counter()
    before: deque[Record] = deque(maxlen=model.settings.encoder.context)
    records = sources.records(report)
    while counter.records < point.records:
        record = next(records, None)
        if record is None:
            break
        counter.add(record)
        if record.doc is not None and record.content:
            before.append(record)
    if counter.hash != point.hash:
        raise DataError(
            f"the input has changed: its first {point.records:,} records are not those that the "
            "earlier run has written. Restore it to go on, or remove the .partial and .journal of "
            "the output to begin again"
        )
    counter.entities = point.entities
    return Input(sources, records, counter, list(before))


def _write(
    results: Generator[Annotated, None, None],
    writer: Writer,
    counter: Counter,
    notes: Journal | None,
    progress: Progress,
) -> Point:
    """Write what comes and note how far it is safe; the last point."""
    waiting: list[Annotated] = []
    point = notes.last if notes else Point()

    def flush() -> None:
        nonlocal point
        point = counter.point(writer.write(waiting))
        if notes:
            notes.note(point)
        progress(point, waiting[-1][0].read if waiting else 0)
        waiting.clear()

    with closing(results):  # an engine that is left early tidies up at once
        for record, entities in results:
            waiting.append((record, entities))
            counter.add(record, len(entities))
            if writer.enough(waiting):
                flush()
    if waiting or not counter.records:
        flush()
    return point


def _stuck(partial: Path, safe: Point, error: OSError) -> WriteError:
    # Not strerror: that of pyarrow is a sentence of its own.
    reason = os.strerror(error.errno) if error.errno else str(error)
    return WriteError(
        f"{partial} cannot be written: {reason}. {safe.records:,} records are safe in it; check "
        "the folder and the space on its disk, then run the same command again to go on from there"
    )
