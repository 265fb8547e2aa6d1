"""brat standoff: a text in `X.txt`, its annotations in `X.ann`; a folder of such pairs, or one.

`T1<tab>Label 0 5<tab>words` is an annotation, in parts `T2<tab>Label 0 5;16 23<tab>words`; lines
about relations, events, attributes and notes are ignored. Offsets count the characters of the text
as it is: both of a Windows line end, and a byte order mark. brat has no annotation reach over a
line's end but cuts it in parts there, so parts with nothing but white space between are put
together again when read, and cut when written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from diffusionner.corpus import Irregular, Sentence
from diffusionner.errors import DataError
from diffusionner.formats.base import Format, Holds, Sample, Source
from diffusionner.formats.texts import (
    TextDocument,
    TextOptions,
    check_annotations,
    to_documents,
    to_sentences,
)

_ANNOTATION = re.compile(
    r"(T\S*)\t(\S+) ([0-9]{1,15} [0-9]{1,15}(?:;[0-9]{1,15} [0-9]{1,15})*)\t(.*)"
)
_IGNORED = frozenset("REAMN#*")
_LINE_BREAK = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_SPACE = re.compile(r"\s+")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]" if os.name != "nt" else r'[\x00-\x1f\x7f\\<>:"|?*]')
_LONGEST = 200  # bytes of a file's name: with an ending and a number no system refuses it


def recognises(sample: Sample) -> bool:
    if sample.folder:
        return any(name.endswith(".ann") for name in sample.names)
    if sample.path.suffix == ".txt":
        return sample.path.with_suffix(".ann").is_file()
    return sample.path.suffix == ".ann"


def read(source: Source, options: TextOptions) -> Iterator[Sentence]:
    if not source.path.is_dir() and source.path.suffix not in (".txt", ".ann"):
        raise DataError(f"{source.path}: not a file of brat's; give a folder, a .txt or an .ann")
    # Not Path.stem and its like: a name may be "." or have dots anywhere.
    names = {str(path)[:-4]: str(path) for path in source.files("*.txt", "*.ann")}
    pairs = ((where, name) for name, where in names.items())
    return source.each(pairs, lambda name, where: _read_pair(source, name, options))


def _read_pair(source: Source, name: str, options: TextOptions) -> list[Sentence]:
    path, annotated = Path(name + ".txt"), Path(name + ".ann")
    for one, other in ((path, annotated), (annotated, path)):
        if not one.is_file():
            raise DataError(
                f"{other}: there is no {one.name} beside it; a text and its annotations, even if "
                "none, are two files of one name"
            )
    text = source.text(path, "UTF-8")  # so written, it does not drop a byte order mark
    folder = source.path if source.path.is_dir() else source.path.parent
    doc = path.relative_to(folder).as_posix()[:-4]
    document = TextDocument(text, _annotations(source, annotated, text), doc, str(annotated))
    sentences = to_sentences(document, options)
    line, counted = 1, 0
    for sentence in sentences:
        assert sentence.offsets is not None
        begin = sentence.offsets[0][0]
        line += text.count("\n", counted, begin)
        counted = begin
        sentence.where = f"{path}:{line}"
    return sentences


def _annotations(source: Source, path: Path, text: str) -> list[Irregular]:
    found: dict[str, Irregular] = {}
    for where, line in source.lines(path):
        if not line.strip() or line[0] in _IGNORED:
            continue
        try:
            name, annotation = _annotation(line, text, where)
            if name in found:
                raise DataError(f"{where}: {name} stands here a second time; give it a new number")
        except DataError as error:
            source.refuse(error)
            continue
        found[name] = annotation
    return list(found.values())


def _annotation(line: str, text: str, where: str) -> tuple[str, Irregular]:
    match = _ANNOTATION.fullmatch(line)
    if match is None:
        raise DataError(
            f"{where}: not a line of brat's ({line[:80]!r}); write T1<tab>Label 0 5<tab>text, or "
            f"begin with one of {' '.join(sorted(_IGNORED))}"
        )
    name, label, numbers, covered = match.groups()
    pairs = (part.split(" ") for part in numbers.split(";"))
    parts = [(int(start), int(end)) for start, end in pairs]
    check_annotations(text, [Irregular(tuple(parts), label)], where)
    there = " ".join(text[start:end] for start, end in parts)
    if there.split() != covered.split():
        raise DataError(
            f"{where}: {name} says {covered[:80]!r} but its characters are {there[:80]!r}; correct "
            "its offsets, or take the text that was annotated"
        )
    whole = parts[:1]
    for start, end in parts[1:]:
        if text[whole[-1][1] : start].strip():
            whole.append((start, end))
        else:
            whole[-1] = whole[-1][0], end
    return name, Irregular(tuple(whole), label)


def write(sentences: Iterable[Sentence], path: Path, options: TextOptions) -> None:
    for number, document in enumerate(to_documents(sentences), 1):
        lines = [_to_line(i, a, document) for i, a in enumerate(document.annotations, 1)]
        text, annotated = _new_pair(path, document.doc, number)
        text.write_bytes(document.text.encode())
        annotated.write_bytes("".join(lines).encode())


def _to_line(number: int, annotation: Irregular, document: TextDocument) -> str:
    label = annotation.label
    if not label or _SPACE.search(label):
        raise DataError(
            f"{document.where or 'sentence'}: the label '{label}' is empty or holds white space, "
            "which brat's files cannot; rename it, or write another format"
        )
    parts = [piece for part in annotation.parts for piece in _pieces(document.text, *part)]
    offsets = ";".join(f"{start} {end}" for start, end in parts)
    covered = " ".join(document.text[start:end] for start, end in parts)
    return f"T{number}\t{label} {offsets}\t{_LINE_BREAK.sub(' ', covered)}\n"


def _pieces(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """A part of an annotation, cut where lines end within it."""
    for space in _SPACE.finditer(text, start, end):
        inside = start < space.start() and space.end() < end
        if inside and ("\n" in space.group() or "\r" in space.group()):
            yield start, space.start()
            start = space.end()
    yield start, end


def _new_pair(folder: Path, doc: str | None, number: int) -> tuple[Path, Path]:
    """Two files that are not there yet, named after the document; "a/b" is b in the folder a."""
    name = doc or f"{number:06}"  # so that the files' order is the documents'
    if not _is_relative(name):
        name = _flat(name)
    while True:
        text, annotated = folder / f"{name}.txt", folder / f"{name}.ann"
        try:
            text.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            pass  # a file has the name of the folder
        else:
            if not text.exists() and not annotated.exists():
                return text, annotated
        name = f"{_flat(name)}-{number}"


def _is_relative(name: str) -> bool:
    if _UNSAFE.search(name) or len(name.encode()) > _LONGEST:
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


def _flat(name: str) -> str:
    """A name for a file in the folder itself."""
    safe = _UNSAFE.sub("_", name.replace("/", "_"))
    return safe.encode()[:_LONGEST].decode("utf-8", "ignore")


FORMAT = Format(
    name="brat",
    summary="brat standoff: a folder of texts (.txt) with their annotations (.ann)",
    recognises=recognises,
    read=read,
    write=write,
    options=TextOptions,
    holds=Holds(irregular=True, text=True),
    folder=True,
)
