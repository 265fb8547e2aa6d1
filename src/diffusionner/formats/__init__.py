"""Corpus files: one registry of formats, one call to read and one to write any of them.

A format is one module of this package with a `FORMAT` in it, and one entry in `FORMATS`. It is
chosen as NAME or NAME:OPTION=VALUE,OPTION=VALUE, and found out from the file when not given.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence
from diffusionner.errors import DataError, nearest
from diffusionner.files import write_all_or_none, write_folders
from diffusionner.formats import (
    ace,
    brat,
    conll,
    conllu,
    docbin,
    doccano,
    genia,
    gliner,
    huggingface,
    jsonl,
    labelstudio,
    mrc,
    ontonotes,
    parquet,
    prodigy,
    reference,
    w2ner,
)
from diffusionner.formats.base import Format, Sample, Source, unreadable
from diffusionner.formats.fitting import fit

__all__ = ["FORMATS", "Format", "detect", "iterate", "read", "write", "write_parts"]

# In the order in which they are asked whether a file is theirs: the particular before the general.
FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        docbin.FORMAT,
        huggingface.FORMAT,
        parquet.FORMAT,
        ace.FORMAT,
        genia.FORMAT,
        brat.FORMAT,
        conllu.FORMAT,
        ontonotes.FORMAT,
        gliner.FORMAT,
        prodigy.FORMAT,
        doccano.FORMAT,
        labelstudio.FORMAT,
        w2ner.FORMAT,
        mrc.FORMAT,
        reference.FORMAT,
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
    chosen, options = choose(source.path, format)
    return _checked(source, chosen, options)


def unchecked(
    path: str | os.PathLike[str], format: str | None, refused: list[DataError]
) -> Iterator[Sentence]:
    """As `iterate`, but what is wrong goes into `refused`, and entities come as they are."""
    source = Source(Path(path), refused)
    chosen, options = choose(source.path, format)
    return _collected(source, chosen, options)


def write(
    path: str | os.PathLike[str],
    sentences: Iterable[Sentence],
    format: str | None = None,
    lossy: bool = False,
) -> None:
    """Write all sentences or, on any failure, leave what was at `path` as it is.

    What the format cannot hold is an error, or left out if `lossy`.
    """
    write_parts({Path(path): sentences}, format, lossy)


def write_parts(
    parts: Mapping[Path, Iterable[Sentence]], format: str | None = None, lossy: bool = False
) -> None:
    """As `write`, for several files of one format: they are written all or none."""
    chosen, options = choose_output(next(iter(parts)), format)

    def writer(sentences: Iterable[Sentence]) -> Callable[[Path], None]:
        fitting = (fit(sentence, chosen, lossy) for sentence in sentences)
        return lambda temporary: chosen.write(fitting, temporary, options)  # type: ignore[misc]

    put = write_folders if chosen.folder else write_all_or_none
    put({path: writer(sentences) for path, sentences in parts.items()})


def detect(path: str | os.PathLike[str]) -> Format:
    """The format of a file or folder, by what is in it."""
    path = Path(path)
    _require(path)
    sample = Sample(path)
    if not sample.folder and not sample.head.strip():
        raise _empty(path)
    for known in FORMATS.values():
        if known.recognises(sample):
            return known
    raise DataError(
        f"{path}: not a {'folder' if sample.folder else 'file'} of a known format{_hint(sample)}; "
        f"check it, or name the format, one of: {', '.join(FORMATS)}"
    )


def _hint(sample: Sample) -> str:
    """What an unknown file seems to be instead."""
    kinds = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
    for magic, name in kinds.items():
        if sample.raw.startswith(magic):
            return f" but packed by {name}: unpack it first"
    if sample.raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return " but UTF-16: convert it to UTF-8, for instance with iconv"
    if b"\0" in sample.raw:
        return ", nor a text"
    separator = conll.other_separator(sample)
    if separator:
        return f", unless it is conll:separator={separator}"
    return ""


def _require(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise DataError(f"{path}: no such file; check the path") from error
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        # Telling the format takes the first bytes, and a pipe has them only once.
        raise DataError(f"{path}: a pipe or device; write it to a file and give that")


def _checked(source: Source, chosen: Format, options: Any) -> Iterator[Sentence]:
    sentence = None
    for sentence in chosen.read(source, options):
        sentence.check()
        if len(sentence.entities) > 1:
            sentence.entities = list(dict.fromkeys(sentence.entities))
        yield sentence
    if sentence is None:
        raise _empty(source.path)


def _collected(source: Source, chosen: Format, options: Any) -> Iterator[Sentence]:
    assert source.refused is not None
    try:
        yield from chosen.read(source, options)
    except DataError as error:  # nothing can be read behind it
        source.refused.append(error)


def choose(path: Path, format: str | None) -> tuple[Format, Any]:
    """The format and options to read a file with, given or found out."""
    if format is None:
        known = detect(path)
        return known, known.options()
    _require(path)
    return parse(format)


def parse(format: str) -> tuple[Format, Any]:
    """NAME or NAME:OPTIONS."""
    name, _, options = format.partition(":")
    if name not in FORMATS:
        raise DataError(f"unknown format '{name}'; {nearest(name, FORMATS)}")
    return FORMATS[name], FORMATS[name].parse_options(options)


def choose_output(path: Path, format: str | None) -> tuple[Format, Any]:
    """The format and options to write a file with, given or by its extension."""
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
