"""Annotation in the current process."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from diffusionner.annotation.record import Record
from diffusionner.corpus import Entities
from diffusionner.inference.pipeline import DiffusionNER


def annotate_records(
    ner: DiffusionNER,
    options: dict[str, Any],
    records: Iterable[Record],
    context: Sequence[Record] = (),
) -> Generator[tuple[Record, Entities], None, None]:
    """Yield the records with their entities; the context precedes the first record."""
    submitted: deque[Record] = deque()  # read, but not annotated yet

    def items() -> Iterator[tuple[str | list[str], str | None]]:
        for record in context:
            yield record.content, record.doc
        for record in records:
            submitted.append(record)
            yield record.content, record.doc

    for entities in islice(ner.stream(items(), **options), len(context), None):
        yield submitted.popleft(), entities
