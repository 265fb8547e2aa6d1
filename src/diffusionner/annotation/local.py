"""Annotation in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from itertools import chain
from typing import Any

from diffusionner.annotation.records import Record
from diffusionner.annotation.run import Input
from diffusionner.annotation.writers import Annotated
from diffusionner.inference.pipeline import DiffusionNER


class LocalEngine:
    def __init__(self, ner: DiffusionNER, options: dict[str, Any]) -> None:
        self.ner = ner
        self.options = options

    def annotate(self, given: Input) -> Generator[Annotated, None, None]:
        ahead: deque[Record] = deque()  # read, but without entities yet

        def items() -> Iterator[tuple[str | list[str], str | None]]:
            for record in chain(given.before, given.records):
                ahead.append(record)
                yield record.content, record.doc

        for number, entities in enumerate(self.ner.stream(items(), **self.options)):
            record = ahead.popleft()
            if number >= len(given.before):
                yield record, entities
