"""Corpus files: one registry of formats, one call to read any of them.

A format is one module of this package and one entry in `FORMATS`. A module for files read line
by line offers `EXTENSIONS`, `recognises(first_line)` and `parse(lines)`, where each line comes
as ("file:line", text); any other kind of file gives its entry a function from path to sentences.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from diffusionner.corpus import Sentence
from diffusionner.errors import DataError, nearest
from diffusionner.formats import conll, jsonl

__all__ = ["FORMATS", "Format", "iterate", "read"]


@dataclass(frozen=True, slots=True)
class Format:
    """How one kind of file is told from the others, and how it is read."""

    extensions: tuple[str, ...]
    recognises: Callable[[str], bool]  # given the first line that is not blank
    sentences: Callable[[Path], Iterator[Sentence]]


def read(path: str | os.PathLike[str], format: str | None = None) -> list[Sentence]:
    """Every sentence of a file, checked; DataError at the first place that is wrong."""
    return list(iterate(path, format))


def iterate(path: str | os.PathLike[str], format: str | None = None) -> Iterator[Sentence]:
    """The sentences of a file one by one, checked; a missing file is reported at once."""
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise DataError(f"unknown format '{format}'; {nearest(format, FORMATS)}")
    if not path.exists():
        raise DataError(f"{path}: no such file; check the path")
    return _checked(path, FORMATS[format] if format is not None else _detect(path))


def _checked(path: Path, chosen: Format) -> Iterator[Sentence]:
    sentence = None
    for sentence in chosen.sentences(path):
        sentence.check()
        yield sentence
    if sentence is None:
        raise _empty(path)


def _detect(path: Path) -> Format:
    """The format by the file's extension or, failing that, by its first line."""
    for known in FORMATS.values():
        if path.suffix.lower() in known.extensions:
            return known
    first = next((text for _, text in _lines(path) if text.strip()), None)
    if first is None:
        raise _empty(path)
    for known in FORMATS.values():
        if known.recognises(first):
            return known
    raise DataError(
        f"{path}: neither the extension nor the first line tells the format; "
        f"name it, one of: {', '.join(FORMATS)}"
    )


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """("file:line", text) for each line, without its line end."""
    try:
        # Bytes, because text mode neither says which line is not UTF-8 nor ends lines at \n alone.
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                where = f"{path}:{number}"
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{where}: not UTF-8 (byte 0x{line[error.start]:02x}); "
                        "convert the file to UTF-8, for instance with iconv"
                    ) from error
                yield where, text.rstrip("\r\n")
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); give a file you may read"
        ) from error


def _by_line(
    parse: Callable[[Iterable[tuple[str, str]]], Iterator[Sentence]],
) -> Callable[[Path], Iterator[Sentence]]:
    return lambda path: parse(_lines(path))


def _empty(path: Path) -> DataError:
    return DataError(f"{path}: the file holds no sentences; check that it is the one you meant")


FORMATS: dict[str, Format] = {
    "jsonl": Format(jsonl.EXTENSIONS, jsonl.recognises, _by_line(jsonl.parse)),
    "conll": Format(conll.EXTENSIONS, conll.recognises, _by_line(conll.parse)),
}
