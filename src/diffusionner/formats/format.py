"""Definition of a corpus format: how its files are recognised, read and written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence
from diffusionner.errors import DataError, nearest
from diffusionner.formats.source import Sample, Source


@dataclass(frozen=True)
class NoOptions:
    """Options of a format that has none."""


@dataclass(frozen=True)
class Capabilities:
    """Features that a format can represent.

    Every format represents words, documents and nested entities.
    """

    crossing: bool = True  # entities that overlap without one containing the other
    discontinuous: bool = False  # entities of several fragments
    irregular: bool = False  # annotations that do not align with token boundaries
    text: bool = False  # characters between words
    types: bool = False  # labels that were annotated, if not all
    word: Callable[[str], bool] = bool  # test for words that can be written
    label: Callable[[str], bool] = bool  # test for labels that can be written
    doc: Callable[[str], bool] = lambda name: True  # test for document names that can be written


@dataclass(frozen=True)
class Format:
    """A corpus format, as listed in the registry."""

    name: str
    summary: str  # one line, shown to users
    recognises: Callable[[Sample], bool]
    read: Callable[[Source, Any], Iterator[Sentence]]
    # Writes to the given path: a new file, or an empty folder if `folder`.
    write: Callable[[Iterable[Sentence], Path, Any], None] | None = None
    options: type = NoOptions  # frozen dataclass with str and bool fields
    capabilities: Capabilities = Capabilities()
    folder: bool = False  # writes a folder instead of a file
    extensions: tuple[str, ...] = ()  # output file extensions that select this format

    def parse_options(self, text: str) -> Any:
        """Parse options given as KEY=VALUE,KEY=VALUE."""
        known = {f.name: f for f in dataclasses.fields(self.options)}
        values: dict[str, Any] = {}
        for part in filter(None, text.split(",")):
            key, equals, value = part.partition("=")
            if key not in known:
                hint = nearest(key, known) if known else "it has no options"
                raise DataError(f"format {self.name} has no option '{key}'; {hint}")
            if not equals:
                raise DataError(f"format {self.name}: write the option as {key}=VALUE")
            values[key] = value
            if isinstance(known[key].default, bool):
                if value not in ("true", "false"):
                    raise DataError(f"format {self.name}: {key} is true or false, not '{value}'")
                values[key] = value == "true"
        try:
            return self.options(**values)
        except ValueError as error:
            raise DataError(f"format {self.name}: {error}") from error
