"""ACE 2004 and 2005 as distributed by the LDC: a folder of pairs `X.sgm` and `X.apf.xml`.

An entity is the extent of a mention, labelled with its entity's type (FAC, GPE, LOC, ORG, PER, VEH,
WEA). Offsets count the characters of the .sgm file without its tags; `&amp;` counts as five, so the
text is not unescaped. Every tag ends a sentence. Text outside <TEXT> (document names, dates,
headlines) is usually not annotated: only its sentences with a mention are kept.

ACE 2005 has up to four versions of a document: of folders that contain the same file, timex2norm
takes precedence over adj, fp2 and fp1.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diffusionner.corpus import Sentence
from diffusionner.errors import DataError
from diffusionner.formats.documents import (
    Annotation,
    TextDocument,
    TextOptions,
    check_pair,
    contiguous,
    split_text,
    to_sentences,
)
from diffusionner.formats.format import Format
from diffusionner.formats.source import Sample, Source
from reproduce.formats.xml_elements import Element, read_chunks, read_elements

_TEXT = ".sgm"
_ANNOTATIONS = ".apf.xml"
_VERSIONS = ("timex2norm", "adj", "fp2", "fp1")
_TAG = re.compile(r"<([/!?]?)([A-Za-z][^\s<>/]*)[^<>]*>")
_NUMBER = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True)
class AceOptions(TextOptions):
    """documents: a file that lists the documents to read, one name per line, in order."""

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
    return source.convert_each(places, lambda place, _: _read_document(source, *place, options))


def _documents(source: Source) -> dict[str, Path]:
    """Return the names of the documents with their folders."""
    if not source.path.is_dir() and not source.path.name.endswith((_TEXT, _ANNOTATIONS)):
        raise DataError(
            f"{source.path}: not an ACE file; give a folder of {_TEXT} and {_ANNOTATIONS} files"
        )
    found: dict[str, Path] = {}
    for file in source.files("*" + _TEXT, "*" + _ANNOTATIONS):
        name, folder = _document_name(file.name), file.parent
        other = found.setdefault(name, folder)
        if folder != other and _version(folder) == _version(other):
            source.report(DataError(f"{file}: {other} has the same document; remove one of them"))
        elif _version(folder) < _version(other):
            found[name] = folder
    return found


def _document_name(file: str) -> str:
    return file.removesuffix(_ANNOTATIONS).removesuffix(_TEXT)


def _version(folder: Path) -> int:
    return _VERSIONS.index(folder.name) if folder.name in _VERSIONS else len(_VERSIONS)


def _listed(source: Source, found: dict[str, Path], path: Path) -> dict[str, Path]:
    chosen: dict[str, Path] = {}
    for where, line in source.lines(path):
        name = _document_name(re.split(r"[/\\]", line.strip())[-1])
        if not name:
            continue
        if name not in found:
            source.report(
                DataError(f"{where}: there is no document '{name}' in {source.path}; correct it")
            )
        elif name in chosen:
            source.report(DataError(f"{where}: '{name}' is listed twice; remove it"))
        else:
            chosen[name] = found[name]
    return chosen


def _read_document(source: Source, folder: Path, name: str, options: AceOptions) -> list[Sentence]:
    path, annotations = folder / (name + _TEXT), folder / (name + _ANNOTATIONS)
    check_pair(path, annotations)
    text, blocks = _strip_tags(source.text(path))
    words = [
        [(start + block.start, end + block.start) for start, end in sentence]
        for block in blocks
        for sentence in split_text(text[block.start : block.end], options.words)
    ]
    mentions = _mentions(source, annotations, text)
    document = TextDocument(text, mentions, name, str(annotations))
    kept = []
    for sentence in to_sentences(document, sentences=words):
        assert sentence.offsets is not None
        begin = sentence.offsets[0][0]
        block = blocks[bisect_right(blocks, begin, key=lambda b: b.start) - 1]
        line = block.line + text.count("\n", block.start, begin)
        sentence.where = f"{path}:{line}"
        if block.body or sentence.entities or sentence.irregular:
            kept.append(sentence)
    return kept


@dataclass
class _Block:
    """Text between two tags."""

    start: int
    end: int
    line: int  # in the file, at its start
    body: bool  # inside <TEXT>


def _strip_tags(raw: str) -> tuple[str, list[_Block]]:
    blocks: list[_Block] = []
    parts: list[str] = []
    line, raw_start, end = 1, 0, 0  # `raw_start` is in the file, `end` in the text
    tags = list(_TAG.finditer(raw))
    body = not any(tag[2].upper() == "TEXT" and not tag[1] for tag in tags)
    for tag in [*tags, None]:
        part = raw[raw_start : tag.start()] if tag else raw[raw_start:]
        if part:
            blocks.append(_Block(end, end + len(part), line, body))
            parts.append(part)
            end += len(part)
        if tag:
            line += part.count("\n") + tag.group().count("\n")
            raw_start = tag.end()
            if tag[2].upper() == "TEXT":
                body = tag[1] != "/"
    return "".join(parts), blocks


def _mentions(source: Source, path: Path, text: str) -> list[Annotation]:
    found: list[Annotation] = []
    document = None
    for document in read_elements(read_chunks(path), path, "document"):
        for entity in document.iter("entity"):
            for mention in entity.iter("entity_mention"):
                assert isinstance(mention, Element)
                try:
                    label = entity.get("TYPE", "")
                    found.append(_mention(mention, label, text, f"{path}:{mention.line}"))
                except DataError as error:
                    source.report(error)
    if document is None:
        raise DataError(f"{path}: no <document>; check that this is an ACE annotation file")
    return found


def _mention(mention: Element, label: str, text: str, where: str) -> Annotation:
    name = f"mention {mention.get('ID', '')}"
    if not label:
        raise DataError(f"{where}: the entity of {name} has no TYPE; add it")
    sequence = mention.find("extent/charseq")
    if sequence is None:
        raise DataError(f"{where}: {name} has no <charseq> in an <extent>; add it")
    start, last = sequence.get("START", ""), sequence.get("END", "")
    if not _NUMBER.fullmatch(start) or not _NUMBER.fullmatch(last):
        raise DataError(
            f"{where}: {name} from '{start}' to '{last}': START and END must be numbers"
        )
    begin, end = int(start), int(last) + 1
    if not begin < end <= len(text):
        raise DataError(
            f"{where}: {name} from {start} to {last} lies outside its text of {len(text)} "
            "characters; START and END count characters from 0, without tags"
        )
    expected, found = "".join(sequence.itertext()), text[begin:end]
    if html.unescape(expected).split() != html.unescape(found).split():
        raise DataError(
            f"{where}: {name} is {expected[:80]!r}, but the text at its offsets is "
            f"{found[:80]!r}; use the text that was annotated, unchanged"
        )
    return contiguous(begin, end, label)


FORMAT = Format(
    name="ace",
    summary="ACE 2004 and 2005 source: a folder of .sgm texts with .apf.xml annotations",
    recognises=recognises,
    read=read,
    options=AceOptions,
)
