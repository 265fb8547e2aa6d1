"""brat standoff: texts in `X.txt` with annotations in `X.ann`; one such pair, or a folder of them.

`T1<tab>Label 0 5<tab>words` is an annotation, `T2<tab>Label 0 5;16 23<tab>words` a discontinuous
one; relations, events, attributes and notes are ignored. Offsets count the characters of the text
as it is, including carriage returns and a byte order mark. brat splits annotations at line breaks:
parts separated only by white space are joined when read, and split again when written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from diffusionner.corpus import Sentence
from diffusionner.errors import DataError
from diffusionner.formats.documents import (
    Annotation,
    TextDocument,
    TextOptions,
    check_annotations,
    check_pair,
    to_documents,
    to_sentences,
)
from diffusionner.formats.format import Capabilities, Format
from diffusionner.formats.source import Sample, Source

_ANNOTATION = re.compile(
    r"(T\S*)\t(\S+) ([0-9]{1,15} [0-9]{1,15}(?:;[0-9]{1,15} [0-9]{1,15})*)\t(.*)"
)
_IGNORED = re.compile(r"[REAMN](?![A-Za-z])|[#*]")  # relations, events, attributes, notes
_LINE_BREAK = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_SPACE = re.compile(r"\s+")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]" if os.name != "nt" else r'[\x00-\x1f\x7f\\<>:"|?*]')
_MAX_NAME = 200  # bytes; with an ending and a number, every file system accepts it


def recognises(sample: Sample) -> bool:
    if sample.folder:
        return any(name.endswith(".ann") for name in sample.names)
    if sample.path.suffix == ".txt":
        return sample.path.with_suffix(".ann").is_file()
    return sample.path.suffix == ".ann"


def read(source: Source, options: TextOptions) -> Iterator[Sentence]:
    if not source.path.is_dir() and source.path.suffix not in (".txt", ".ann"):
        raise DataError(f"{source.path}: not a brat file; give a folder, a .txt or an .ann file")
    # Not Path.stem: a name may be "." or have dots anywhere.
    names = {str(path)[:-4]: str(path) for path in source.files("*.txt", "*.ann")}
    pairs = ((where, name) for name, where in names.items())
    return source.convert_each(pairs, lambda name, _: _read_pair(source, name, options))


def _read_pair(source: Source, name: str, options: TextOptions) -> list[Sentence]:
    path, annotations = Path(name + ".txt"), Path(name + ".ann")
    check_pair(path, annotations)
    text = source.text(path, keep_bom=True)
    folder = source.path if source.path.is_dir() else source.path.parent
    doc = path.relative_to(folder).as_posix()[:-4]
    document = TextDocument(text, _annotations(source, annotations, text), doc, str(annotations))
    sentences = to_sentences(document, options)
    line, counted = 1, 0
    for sentence in sentences:
        assert sentence.offsets is not None
        begin = sentence.offsets[0][0]
        line += text.count("\n", counted, begin)
        counted = begin
        sentence.where = f"{path}:{line}"
    return sentences


def _annotations(source: Source, path: Path, text: str) -> list[Annotation]:
    found: dict[str, Annotation] = {}
    for where, line in source.lines(path):
        if not line.strip() or _IGNORED.match(line):
            continue
        try:
            name, annotation = _annotation(line, text, where)
            if name in found:
                raise DataError(f"{where}: {name} is defined twice; give it a new number")
        except DataError as error:
            source.report(error)
            continue
        found[name] = annotation
    return list(found.values())


def _annotation(line: str, text: str, where: str) -> tuple[str, Annotation]:
    match = _ANNOTATION.fullmatch(line)
    if match is None:
        raise DataError(
            f"{where}: not a brat annotation ({line[:80]!r}); write T1<tab>Label 0 5<tab>text, or "
            "begin with R, E, A, M or N and a number, with # or *"
        )
    name, label, numbers, expected = match.groups()
    pairs = (part.split(" ") for part in numbers.split(";"))
    parts = [(int(start), int(end)) for start, end in pairs]
    check_annotations(text, [Annotation(tuple(parts), label)], where)
    found = " ".join(text[start:end] for start, end in parts)
    if found.split() != expected.split():
        raise DataError(
            f"{where}: {name} is {expected[:80]!r}, but the text at its offsets is {found[:80]!r}; "
            "correct its offsets, or use the text that was annotated"
        )
    joined = parts[:1]
    for start, end in parts[1:]:
        if text[joined[-1][1] : start].strip():
            joined.append((start, end))
        else:
            joined[-1] = joined[-1][0], end
    return name, Annotation(tuple(joined), label)


def write(sentences: Iterable[Sentence], path: Path, options: TextOptions) -> None:
    for number, document in enumerate(to_documents(sentences), 1):
        lines = [_to_line(i, a, document) for i, a in enumerate(document.annotations, 1)]
        text, annotations = _new_pair(path, document.doc, number)
        text.write_bytes(document.text.encode())
        annotations.write_bytes("".join(lines).encode())


def _to_line(number: int, annotation: Annotation, document: TextDocument) -> str:
    parts = [line for part in annotation.parts for line in _split_lines(document.text, *part)]
    offsets = ";".join(f"{start} {end}" for start, end in parts)
    covered = " ".join(document.text[start:end] for start, end in parts)
    return f"T{number}\t{annotation.label} {offsets}\t{_LINE_BREAK.sub(' ', covered)}\n"


def _split_lines(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Split a part of an annotation at line breaks."""
    for space in _SPACE.finditer(text, start, end):
        inside = start < space.start() and space.end() < end
        if inside and ("\n" in space.group() or "\r" in space.group()):
            yield start, space.start()
            start = space.end()
    yield start, end


def _new_pair(folder: Path, doc: str | None, number: int) -> tuple[Path, Path]:
    """Return two new files named after the document; "a/b" is b in the folder a."""
    name = doc or f"{number:06}"  # zero-padded, so that files sort in the documents' order
    if not _is_safe(name):
        name = _flatten(name)
    while True:
        text, annotations = folder / f"{name}.txt", folder / f"{name}.ann"
        try:
            text.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            pass  # a file has the folder's name
        else:
            if not text.exists() and not annotations.exists():
                return text, annotations
        name = f"{_flatten(name)}-{number}"


def _is_safe(name: str) -> bool:
    """Return True if a document's name can be a path inside the folder."""
    if _UNSAFE.search(name) or len(name.encode()) > _MAX_NAME:
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


def _flatten(name: str) -> str:
    """Return a safe file name without folders."""
    safe = _UNSAFE.sub("_", name.replace("/", "_"))
    return safe.encode()[:_MAX_NAME].decode("utf-8", "ignore")


FORMAT = Format(
    name="brat",
    summary="brat standoff: a folder of texts (.txt) with their annotations (.ann)",
    recognises=recognises,
    read=read,
    write=write,
    options=TextOptions,
    capabilities=Capabilities(
        discontinuous=True,
        irregular=True,
        text=True,
        label=lambda label: bool(label) and not _SPACE.search(label),
    ),
    folder=True,
)
