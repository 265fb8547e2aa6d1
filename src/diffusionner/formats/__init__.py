"""Corpus formats: one registry, one function to read and one to write any of them.

A format is chosen as NAME or NAME:OPTION=VALUE,OPTION=VALUE, or detected from the file. To add one,
write a module in this folder, named as the format, and add its name to `_MODULES` below:

    def recognises(sample: Sample) -> bool:  # may look at sample.names, .lines, .keys, .records
        return "my_tokens" in sample.keys
    def read(source: Source, options: NoOptions) -> Iterator[Sentence]:
        return convert_records(source, '{"my_tokens": ["..."]}', to_sentences)  # of a Record
    def write(sentences: Iterable[Sentence], path: Path, options: NoOptions) -> None: ...
    FORMAT = Format("mine", "one-line summary", recognises, read, write)

`gliner` is a short complete example; `Capabilities` declares what a format can represent. A format
defined elsewhere is added with `register`. tests/test_round_trips.py and tests/test_malformed.py
test every registered format.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence
from diffusionner.errors import DataError, nearest
from diffusionner.files import write_all_or_none, write_folders
from diffusionner.formats import conll
from diffusionner.formats.compatibility import make_compatible
from diffusionner.formats.format import Format
from diffusionner.formats.source import Sample, Source, unreadable

__all__ = ["FORMATS", "Format", "detect", "iterate", "read", "register", "write", "write_files"]

# Modules of this folder, in order of detection: specific formats before general ones.
_MODULES = (
    *"docbin huggingface parquet brat passages conllu gliner prodigy doccano".split(),
    *"labelstudio jsonl conll".split(),
)
FORMATS: dict[str, Format] = {name: import_module(f"{__name__}.{name}").FORMAT for name in _MODULES}
_COMPRESSED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


def register(format: Format) -> None:
    """Add a format that is defined elsewhere; it is detected before all others."""
    others = dict(FORMATS)
    FORMATS.clear()
    FORMATS.update({format.name: format, **others})


def read(path: str | os.PathLike[str], format: str | None = None) -> list[Sentence]:
    """Read and check all sentences of a file; raise DataError at the first error."""
    return list(iterate(path, format))


def iterate(path: str | os.PathLike[str], format: str | None = None) -> Iterator[Sentence]:
    """Iterate over the checked sentences of a file; a missing file raises immediately."""
    source = Source(Path(path))
    chosen, options = resolve_input_format(source.path, format)
    return _checked(source, chosen, options)


def _checked(source: Source, format: Format, options: Any) -> Iterator[Sentence]:
    sentence = None
    for sentence in format.read(source, options):
        sentence.check()
        sentence.entities = list(dict.fromkeys(sentence.entities))
        sentence.discontinuous = list(dict.fromkeys(sentence.discontinuous))
        yield sentence
    if sentence is None:
        raise _no_sentences(source.path)


def iterate_with_errors(
    path: str | os.PathLike[str], format: str | None, errors: list[DataError]
) -> Iterator[Sentence]:
    """Iterate over the unchecked sentences of a file, collecting errors instead of raising."""
    try:
        source = Source(Path(path), errors)
        chosen, options = resolve_input_format(source.path, format)
        yield from chosen.read(source, options)
    except DataError as error:  # the rest cannot be read
        errors.append(error)


def write(
    path: str | os.PathLike[str],
    sentences: Iterable[Sentence],
    format: str | None = None,
    lossy: bool = False,
) -> None:
    """Write all sentences or, on failure, leave what exists at `path` unchanged.

    Annotations that the format cannot represent raise DataError, or are dropped if `lossy`.
    """
    write_files({Path(path): sentences}, format, lossy)


def write_files(
    files: Mapping[Path, Iterable[Sentence]], format: str | None = None, lossy: bool = False
) -> None:
    """Write several files of one format, all or none of them."""
    chosen, options = resolve_output_format(next(iter(files)), format)

    def writer(sentences: Iterable[Sentence]) -> Callable[[Path], None]:
        compatible = (make_compatible(sentence, chosen, lossy) for sentence in sentences)
        return lambda temporary: chosen.write(compatible, temporary, options)  # type: ignore[misc]

    write_all = write_folders if chosen.folder else write_all_or_none
    write_all({path: writer(sentences) for path, sentences in files.items()})


def detect(path: str | os.PathLike[str]) -> Format:
    """Detect the format of a file or folder from its content."""
    path = Path(path)
    _require(path)
    sample = Sample(path)
    if not sample.folder and not sample.head.strip():
        raise _no_sentences(path)
    for known in FORMATS.values():
        if known.recognises(sample):
            return known
    raise DataError(
        f"{path}: not a {'folder' if sample.folder else 'file'} of a known format{_hint(sample)}; "
        f"check it, or name the format, one of: {', '.join(FORMATS)}"
    )


def _hint(sample: Sample) -> str:
    """Return what an unknown file seems to be instead."""
    for magic, name in _COMPRESSED.items():
        if sample.raw.startswith(magic):
            return f" but compressed with {name}: decompress it first"
    if sample.raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return " but UTF-16: convert it to UTF-8, for example with iconv"
    if b"\0" in sample.raw:
        return ", and not text"
    separator = conll.detect_separator(sample)
    return f", unless it is conll:separator={separator}" if separator else ""


def _require(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise DataError(f"{path}: no such file; check the path") from error
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        # Detection reads the first bytes, and a pipe can be read only once.
        raise DataError(f"{path}: a pipe or device; save it to a file and give that")


def resolve_input_format(path: Path, format: str | None) -> tuple[Format, Any]:
    """Return the format and options to read a file with, as given or detected."""
    if format is None:
        known = detect(path)
        return known, known.options()
    _require(path)
    return parse_format(format)


def parse_format(format: str) -> tuple[Format, Any]:
    """Parse NAME or NAME:OPTIONS."""
    name, _, options = format.partition(":")
    if name not in FORMATS:
        raise DataError(f"unknown format '{name}'; {nearest(name, FORMATS)}")
    return FORMATS[name], FORMATS[name].parse_options(options)


def resolve_output_format(path: Path, format: str | None) -> tuple[Format, Any]:
    """Return the format and options to write a file with, as given or by its extension."""
    writable = {known.name: known for known in FORMATS.values() if known.write}
    if format is not None:
        chosen, options = parse_format(format)
        if chosen.name not in writable:
            names = ", ".join(writable)
            raise DataError(f"format {chosen.name} is read-only; write one of: {names}")
        return chosen, options
    for known in writable.values():
        if path.suffix.lower() in known.extensions:
            return known, known.options()
    raise DataError(
        f"{path}: the extension does not determine the format to write; name it, one of: "
        + ", ".join(writable)
    )


def _no_sentences(path: Path) -> DataError:
    return DataError(f"{path}: the file has no sentences; check that it is the right one")
