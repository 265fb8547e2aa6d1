"""Corpus files: one registry of formats, one call to read and one to write any of them.

A format is one module of this package with a `FORMAT` in it, and one entry in `FORMATS`. It is
chosen as NAME or NAME:OPTION=VALUE,OPTION=VALUE, and found out from the file when not given.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence
from diffusionner.errors import DataError, nearest
from diffusionner.files import write_atomically, write_folder
from diffusionner.formats import conll, jsonl
from diffusionner.formats.base import Format, Sample, Source
from diffusionner.formats.fitting import fit

__all__ = ["FORMATS", "Format", "detect", "iterate", "read", "write"]

# In the order in which they are asked whether a file is theirs: the particular before the general.
FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        # docbin, huggingface, ace, genia, brat, conllu, ontonotes, gliner, prodigy, doccano,
        # labelstudio, w2ner, mrc, reference, then:
        jsonl.FORMAT,
        conll.FORMAT,
    )
}


def read(path: str | os.PathLike[str], format: str | None = None) -> list[Sentence]:
    """Every sentence of a file, checked; DataError at the first place that is wrong."""
    return list(iterate(path, format))


def iterate(path: str | os.PathLike[str], format: str | None = None) -> Iterator[Sentence]:
    """The sentences of a file one by one, checked; a missing file is reported at once."""
    source = Source(Path(path))
    chosen, options = _choose(source.path, format)
    return _checked(source, chosen, options)


def unchecked(
    path: str | os.PathLike[str], format: str | None, refused: list[DataError]
) -> Iterator[Sentence]:
    """As `iterate`, but what is wrong goes into `refused`, and entities come as they are."""
    source = Source(Path(path), refused)
    chosen, options = _choose(source.path, format)
    return chosen.read(source, options)


def write(
    path: str | os.PathLike[str],
    sentences: Iterable[Sentence],
    format: str | None = None,
    lossy: bool = False,
) -> None:
    """Write all sentences or, on any failure, leave what was at `path` as it is.

    What the format cannot hold is an error, or left out if `lossy`.
    """
    path = Path(path)
    chosen, options = _choose_output(path, format)
    fitting = (fit(sentence, chosen, lossy) for sentence in sentences)
    put = write_folder if chosen.folder else write_atomically
    put(path, lambda temporary: chosen.write(fitting, temporary, options))  # type: ignore[misc]


def detect(path: str | os.PathLike[str]) -> Format:
    """The format of a file or folder, by what is in it."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file; check the path")
    sample = Sample(path)
    if not sample.folder and not sample.head.strip():
        raise _empty(path)
    for known in FORMATS.values():
        if known.recognises(sample):
            return known
    raise DataError(
        f"{path}: not a file of a known format; check it, or name the format, one of: "
        f"{', '.join(FORMATS)}"
    )


def _checked(source: Source, chosen: Format, options: Any) -> Iterator[Sentence]:
    sentence = None
    for sentence in chosen.read(source, options):
        sentence.check()
        if len(sentence.entities) > 1:
            sentence.entities = list(dict.fromkeys(sentence.entities))
        yield sentence
    if sentence is None:
        raise _empty(source.path)


def _choose(path: Path, format: str | None) -> tuple[Format, Any]:
    if format is None:
        known = detect(path)
        return known, known.options()
    if not path.exists():
        raise DataError(f"{path}: no such file; check the path")
    return parse(format)


def parse(format: str) -> tuple[Format, Any]:
    """NAME or NAME:OPTIONS."""
    name, _, options = format.partition(":")
    if name not in FORMATS:
        raise DataError(f"unknown format '{name}'; {nearest(name, FORMATS)}")
    return FORMATS[name], FORMATS[name].parse_options(options)


def _choose_output(path: Path, format: str | None) -> tuple[Format, Any]:
    if format is not None:
        chosen, options = parse(format)
        if chosen.write is None:
            able = ", ".join(f.name for f in FORMATS.values() if f.write)
            raise DataError(f"format {chosen.name} is only read; write one of: {able}")
        return chosen, options
    suffix = path.suffix.lower()
    for known in FORMATS.values():
        if known.write is not None and suffix in known.extensions:
            return known, known.options()
    raise DataError(
        f"{path}: the extension does not tell the format to write; name it, one of: "
        + ", ".join(f.name for f in FORMATS.values() if f.write)
    )


def _empty(path: Path) -> DataError:
    return DataError(f"{path}: the file holds no sentences; check that it is the one you meant")
