"""ACE 2004 and 2005 as the LDC gives them out: a folder of pairs `X.sgm` and `X.apf.xml`.

An entity is the extent of a mention, labelled with the type of what it mentions (FAC, GPE, LOC,
ORG, PER, VEH, WEA). Offsets count the characters of the .sgm file without its tags, where `&amp;`
is five: the text stays just so. Every tag ends a sentence. Of what stands outside <TEXT> (names
of documents, dates, headlines), which is not annotated as a rule, only sentences with a mention are
taken.

ACE 2005 has up to four versions of a document: of folders that hold the same file, timex2norm comes
before adj, fp2 and fp1.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diffusionner.corpus import Irregular, Sentence
from diffusionner.errors import DataError
from diffusionner.formats.base import Format, Sample, Source
from diffusionner.formats.markup import Element, chunks, elements
from diffusionner.formats.texts import TextDocument, TextOptions, split_text, to_sentences

_TEXT = ".sgm"
_ANNOTATIONS = ".apf.xml"
_VERSIONS = ("timex2norm", "adj", "fp2", "fp1")
_TAG = re.compile(r"<([/!?]?)([A-Za-z][^\s<>/]*)[^<>]*>")
_NUMBER = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True)
class AceOptions(TextOptions):
    """documents: a file that lists the documents to take, a name a line, in their order."""

    documents: str = ""


def recognises(sample: Sample) -> bool:
    if sample.folder:
        return any(name.endswith(_ANNOTATIONS) for name in sample.names)
    return sample.path.name.endswith((_TEXT, _ANNOTATIONS))


def read(source: Source, options: AceOptions) -> Iterator[Sentence]:
    found = _documents(source)
    if options.documents:
        found = _listed(source, found, Path(options.documents))
    places = ((str(folder), (folder, name)) for name, folder in found.items())
    return source.each(places, lambda place, where: _read_document(source, *place, options))


def _documents(source: Source) -> dict[str, Path]:
    """The names of the documents and the folders they are in."""
    if not source.path.is_dir() and not source.path.name.endswith((_TEXT, _ANNOTATIONS)):
        raise DataError(
            f"{source.path}: not a file of ACE's; give a folder of {_TEXT} and {_ANNOTATIONS} files"
        )
    found: dict[str, Path] = {}
    for file in source.files("*" + _TEXT, "*" + _ANNOTATIONS):
        name, folder = _bare(file.name), file.parent
        other = found.setdefault(name, folder)
        if folder != other and _version(folder) == _version(other):
            source.refuse(DataError(f"{file}: {other} has the same document; remove one of them"))
        elif _version(folder) < _version(other):
            found[name] = folder
    return found


def _bare(name: str) -> str:
    return name.removesuffix(_ANNOTATIONS).removesuffix(_TEXT)


def _version(folder: Path) -> int:
    return _VERSIONS.index(folder.name) if folder.name in _VERSIONS else len(_VERSIONS)


def _listed(source: Source, found: dict[str, Path], path: Path) -> dict[str, Path]:
    chosen: dict[str, Path] = {}
    for where, line in source.lines(path):
        name = _bare(re.split(r"[/\\]", line.strip())[-1])
        if not name:
            continue
        if name not in found:
            source.refuse(
                DataError(f"{where}: there is no document '{name}' in {source.path}; correct it")
            )
        elif name in chosen:
            source.refuse(DataError(f"{where}: '{name}' stands here a second time; remove it"))
        else:
            chosen[name] = found[name]
    return chosen


def _read_document(source: Source, folder: Path, name: str, options: AceOptions) -> list[Sentence]:
    path, annotated = folder / (name + _TEXT), folder / (name + _ANNOTATIONS)
    for one, other in ((path, annotated), (annotated, path)):
        if not one.is_file():
            raise DataError(
                f"{other}: there is no {one.name} beside it; a text and its annotations are two "
                "files of one name"
            )
    text, blocks = _strip_tags(source.text(path))
    words = []
    for block in blocks:
        for sentence in split_text(text[block.start : block.end], options.words):
            words.append([(s + block.start, e + block.start) for s, e in sentence])
    mentions = _mentions(source, annotated, text)
    document = TextDocument(text, mentions, name, str(annotated))
    taken = []
    starts = [block.start for block in blocks]
    line = counted = 0
    for found in to_sentences(document, sentences=words):
        assert found.offsets is not None
        begin = found.offsets[0][0]
        block = blocks[bisect_right(starts, begin) - 1]
        if counted <= block.start:
            line, counted = block.line, block.start
        line += text.count("\n", counted, begin)
        counted = begin
        found.where = f"{path}:{line}"
        if block.body or found.entities or found.irregular:
            taken.append(found)
    return taken


@dataclass
class _Block:
    """What stands between two tags."""

    start: int
    end: int
    line: int  # of the file, at its start
    body: bool  # within <TEXT>


def _strip_tags(raw: str) -> tuple[str, list[_Block]]:
    pieces: list[str] = []
    blocks: list[_Block] = []
    line, start, end = 1, 0, 0  # start, in the file, of what follows the last tag; end, of the text
    tags = list(_TAG.finditer(raw))
    body = not any(tag[2].upper() == "TEXT" for tag in tags)
    for tag in [*tags, None]:
        piece = raw[start : tag.start()] if tag else raw[start:]
        if piece:
            blocks.append(_Block(end, end + len(piece), line, body))
            pieces.append(piece)
            end += len(piece)
        if tag:
            line += piece.count("\n") + tag.group().count("\n")
            start = tag.end()
            if tag[2].upper() == "TEXT":
                body = tag[1] != "/"
    return "".join(pieces), blocks


def _mentions(source: Source, path: Path, text: str) -> list[Irregular]:
    found: list[Irregular] = []
    document = None
    for document in elements(chunks(path), path, "document"):
        for entity in document.iter("entity"):
            for mention in entity.iter("entity_mention"):
                assert isinstance(mention, Element)
                try:
                    label = entity.get("TYPE", "")
                    found.append(_mention(mention, label, text, f"{path}:{mention.line}"))
                except DataError as error:
                    source.refuse(error)
    if document is None:
        raise DataError(f"{path}: no <document> in it; check that it is an ACE annotation file")
    return found


def _mention(mention: Element, label: str, text: str, where: str) -> Irregular:
    name = f"mention {mention.get('ID', '')}"
    if not label:
        raise DataError(f"{where}: {name} is of an entity without TYPE; add it")
    sequence = mention.find("extent/charseq")
    if sequence is None:
        raise DataError(f"{where}: {name} has no <charseq> in an <extent>; add it")
    start, last = sequence.get("START", ""), sequence.get("END", "")
    if not _NUMBER.fullmatch(start) or not _NUMBER.fullmatch(last):
        raise DataError(f"{where}: {name} from '{start}' to '{last}': START and END are numbers")
    begin, end = int(start), int(last) + 1
    if not begin < end <= len(text):
        raise DataError(
            f"{where}: {name} from {start} to {last} lies outside its text of {len(text)} "
            "characters; START and END count characters from 0 and without tags"
        )
    says, there = "".join(sequence.itertext()), text[begin:end]
    if html.unescape(says).split() != html.unescape(there).split():
        raise DataError(
            f"{where}: {name} says {says[:80]!r} but its characters are {there[:80]!r}; take the "
            "text that was annotated, unchanged"
        )
    return Irregular(((begin, end),), label)


FORMAT = Format(
    name="ace",
    summary="ACE 2004 and 2005 source: a folder of .sgm texts with .apf.xml annotations",
    recognises=recognises,
    read=read,
    options=AceOptions,
)
