"""Annotation in the current process."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from itertools import chain, islice
from typing import Any

from diffusionner.annotation.record import Record
from diffusionner.annotation.run import PendingInput
from diffusionner.annotation.writers import Annotated
from diffusionner.corpus import Entities
from diffusionner.inference.pipeline import DiffusionNER


def annotate_records(
    ner: DiffusionNER, records: Iterable[Record], options: dict[str, Any]
) -> Iterator[tuple[Record, Entities]]:
    submitted: deque[Record] = deque()  # read, but not annotated yet

    def items() -> Iterator[tuple[str | list[str], str | None]]:
        for record in records:
            submitted.append(record)
            yield record.content, record.doc

    for entities in ner.stream(items(), **options):
        yield submitted.popleft(), entities


class LocalEngine:
    def __init__(self, ner: DiffusionNER, options: dict[str, Any]) -> None:
        self.ner = ner
        self.options = options

    def annotate(self, pending: PendingInput) -> Generator[Annotated, None, None]:
        records = chain(pending.context, pending.records)
        results = annotate_records(self.ner, records, self.options)
        yield from islice(results, len(pending.context), None)
