"""An annotation run: read the input, annotate it, write the output and keep the journal."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffusionner.annotation.journal import (
    Journal,
    Position,
    RecordCounter,
    journal_path,
    partial_path,
    sync_folder,
)
from diffusionner.annotation.record import Record
from diffusionner.annotation.sources import Report, Sources
from diffusionner.annotation.writers import (
    PART_ROWS,
    Annotated,
    StdoutWriter,
    Writer,
    check_suffix,
    is_complete,
    open_writer,
)
from diffusionner.corpus import Entities
from diffusionner.errors import DataError, WriteError
from diffusionner.label_set import Labels, LabelSet
from diffusionner.refinement import GivenSpans
from diffusionner.settings import Settings
from diffusionner.storage import registry
from diffusionner.storage.config import CARD, read_config

if TYPE_CHECKING:
    from diffusionner.inference.pipeline import DiffusionNER

OUTCOMES = "outcomes"
Progress = Callable[[Position, int], None]  # called with what is on disk and the bytes read
# Yields records in order with their entities, given the records and those before as context.
Engine = Callable[[Iterator[Record], Sequence[Record]], Generator[Annotated, None, None]]


@dataclass(frozen=True)
class ModelSpec:
    """A model folder and the inference settings to use it with."""

    folder: Path
    settings: Settings
    options: dict[str, Any]  # inference settings given explicitly, and labels
    labels: LabelSet | None = None

    @classmethod
    def load(
        cls, name: str | Path | None, options: dict[str, Any], labels: Labels | None = None
    ) -> ModelSpec:
        folder = registry.find_model(name)
        config = read_config(folder)
        settings = Settings.from_dict(config["settings"], str(folder / "config.json"))
        settings = settings.with_inference(options)
        if labels is None:
            return cls(folder, settings, options)
        if settings.reads_labels:
            asked = LabelSet.of(labels)
        else:
            asked = LabelSet.among(labels, config["labels"])
        return cls(folder, settings, {**options, "labels": labels}, asked)

    def fingerprint(self) -> dict[str, Any]:
        """Return the values that must be equal for a run to be resumed."""
        state = blake2b(digest_size=16)
        for path in sorted(self.folder.iterdir()):
            if path.is_file() and path.name != CARD:
                state.update(path.name.encode() + b"\0")
                with path.open("rb") as file:
                    while content := file.read(2**20):
                        state.update(content)
        options = asdict(self.settings.inference)
        del options["batch_size"]  # does not affect the entities
        asked = self.labels
        pairs = [] if asked is None else list(zip(asked.names, asked.texts, strict=True))
        labels = {"labels": pairs} if pairs else {}
        return {"model": state.hexdigest(), "options": options | labels}


def annotate_records(
    ner: DiffusionNER,
    options: dict[str, Any],
    records: Iterable[Record],
    context: Sequence[Record] = (),
) -> Generator[tuple[Record, Entities], None, None]:
    """Annotate records in this process."""
    submitted: deque[Record] = deque()  # read, but not annotated yet

    def items() -> Iterator[tuple[str | list[str], str | None]]:
        for record in context:
            yield record.content, record.doc
        for record in records:
            submitted.append(record)
            yield record.content, record.doc

    for entities in islice(ner.stream(items(), **options), len(context), None):
        yield submitted.popleft(), entities


def check_spans(
    record: Record, field: str, labels: Sequence[str], label_map: Mapping[str, str | None]
) -> None:
    """Raise DataError if a record has no list of valid spans in a field."""
    spans = record.fields.get(field)
    if not isinstance(spans, list):
        raise DataError(f'{record.place}: expected a list of spans in "{field}"')
    GivenSpans(spans, len(record.content), [], labels, label_map, f"{record.place}: ")


def refine_records(
    ner: DiffusionNER,
    options: dict[str, Any],
    records: Iterable[Record],
    field: str,
    only: bool,
    label_map: Mapping[str, str | None],
) -> Iterator[tuple[Record, Entities]]:
    """Refine the spans in a field of each record; the records get a field `outcomes`."""
    submitted: deque[Record] = deque()

    def items() -> Iterator[tuple[str | list[str], list[Any], str | None]]:
        for record in records:
            submitted.append(record)
            yield record.content, record.fields[field], record.doc

    for refined in ner.refine_pipe(items(), only, label_map=label_map, **options):
        record = submitted.popleft()
        record.fields[OUTCOMES] = [outcome.to_dict() for outcome in refined.outcomes]
        yield record, refined.entities


def annotate(
    sources: Sources,
    target: Path | None,
    model: ModelSpec,
    engine: Engine,
    report: Report,
    progress: Progress = lambda position, bytes_read: None,
    part_rows: int = PART_ROWS,
) -> Position:
    """Annotate all records and write them to the target; None means standard output.

    An interrupted run resumes where its journal ends: no record is written twice and none is
    left out. The output gets its final name when it is complete. Bad records, and the number of
    records kept from an earlier run, are passed to `report`.
    """
    if target is None:
        results = engine(sources.records(report), [])
        return _write(results, StdoutWriter(), RecordCounter(), None, progress)
    check_suffix(target)
    partial = partial_path(target)
    _check_target(target, partial)
    try:
        journal = Journal(target, model.fingerprint())
    except OSError as error:
        raise _write_error(partial, Position(), error) from error
    with closing(journal):
        if journal.last.records:
            report(f"resuming: {journal.last.records:,} records of {target} are already written")
        counter, records = RecordCounter(), sources.records(report)
        context = _skip_written(records, journal.last, counter, model.settings)
        try:
            if target.exists():  # killed before the journal was removed; the input may have grown
                if not is_complete(target, journal.last):
                    raise _exists(target)
                os.replace(target, partial)
            discontinuous = bool(model.settings.decoder.discontinuous)
            writer = open_writer(target, partial, journal.last, part_rows, discontinuous)
            sync_folder(target.parent)
            with closing(writer):
                _write(engine(records, context), writer, counter, journal, progress)
            os.replace(partial, target)
            sync_folder(target.parent)
        except OSError as error:
            raise _write_error(partial, journal.last, error) from error
        journal.path.unlink(missing_ok=True)
        return journal.last


def _check_target(target: Path, partial: Path) -> None:
    """Raise WriteError if an existing file would be overwritten."""
    journal = journal_path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"{target.parent}: {error.strerror}; choose another folder") from error
    if target.exists() and (partial.exists() or not journal.exists()):
        raise _exists(target)
    if partial.exists() and not journal.exists():
        raise WriteError(f"{partial} exists without its journal {journal.name}; remove it first")


def _exists(target: Path) -> WriteError:
    return WriteError(f"{target} already exists; remove it or choose another name")


def _skip_written(
    records: Iterator[Record], position: Position, counter: RecordCounter, settings: Settings
) -> Sequence[Record]:
    """Skip and count the records that are already written; return those that later ones need.

    That is the context or, where more of a document matters, the last document.
    """
    whole_documents = settings.reads_documents
    context: deque[Record] = deque(maxlen=None if whole_documents else settings.encoder.context)
    for record in islice(records, position.records):
        counter.add(record)
        if not record.content:
            continue
        if whole_documents and context and record.doc != context[-1].doc:
            context.clear()
        if record.doc is not None:
            context.append(record)
    if counter.hash != position.hash:
        raise DataError(
            f"the input has changed: its first {position.records:,} records differ from those "
            "of the earlier run. Restore the input to resume, or remove the .partial and .journal "
            "of the output to start over"
        )
    counter.entities = position.entities
    return context


def _write(
    results: Generator[Annotated, None, None],
    writer: Writer,
    counter: RecordCounter,
    journal: Journal | None,
    progress: Progress,
) -> Position:
    """Write the results, note each flush in the journal and return the last position."""
    buffer: list[Annotated] = []
    position = journal.last if journal else Position()

    def flush() -> None:
        nonlocal position
        writer.write(buffer)
        position = counter.position(writer.written, writer.hash)
        if journal:
            journal.append(position)
        progress(position, buffer[-1][0].bytes_read if buffer else 0)
        buffer.clear()

    with closing(results):  # lets the engine clean up at once when interrupted
        for record, entities in results:
            buffer.append((record, entities))
            counter.add(record, len(entities))
            if writer.is_full(buffer):
                flush()
    if buffer or not (counter.records or position.written):
        flush()
    return position


def _write_error(partial: Path, position: Position, error: OSError) -> WriteError:
    # Not strerror: pyarrow puts a whole sentence there.
    reason = os.strerror(error.errno) if error.errno else str(error)
    return WriteError(
        f"{partial} cannot be written: {reason}. {position.records:,} records are safe in it; "
        "check the folder and the free disk space, then repeat the command to resume"
    )
