"""GENIA 3.02 XML: the benchmark of nested entities, from the archive as it is published.

A word is what stands between white space or tags, an entity is a `cons` of the types below. Where
two of different types are one span, the benchmark keeps the innermost; a single document has the
outermost instead. Terms in coordinations, whose `sem` is an expression, are no entities.
"""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats.base import HEAD, Format, Sample, Source, unreadable
from diffusionner.formats.markup import CHUNK, Element, chunks, elements

PARTS = ("all", "train_dev", "test")
SENTENCES = 18546  # of the corpus, in this order: train_dev, then test
TRAIN_DEV = 16692

_TYPE = re.compile(r"G#(DNA|RNA|cell_line|cell_type|protein)(_|$)")
_OUTERMOST = "MEDLINE:96074843"
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class GeniaOptions:
    """part: `train_dev` or `test` of the benchmark's split, or `all`."""

    part: str = "all"

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise ValueError(f"part is one of {', '.join(PARTS)}, not '{self.part}'")


def recognises(sample: Sample) -> bool:
    head = sample.raw
    if head.startswith(_GZIP):
        try:
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, HEAD)
        except zlib.error:
            return False
    return b"<bibliomisc>" in head and b"<sentence>" in head


def read(source: Source, options: GeniaOptions) -> Iterator[Sentence]:
    number = 0
    for article in elements(_xml(source), source.path, "article"):
        for sentence in _sentences(article, source):
            number += 1
            if options.part == "all" or (options.part == "test") == (number > TRAIN_DEV):
                yield sentence
    if options.part != "all" and number != SENTENCES:
        raise DataError(
            f"{source.path}: {number} sentences, but the benchmark is made of {SENTENCES}; give "
            "the whole corpus, version 3.02, or read part=all"
        )


def _xml(source: Source) -> Iterator[bytes]:
    """The file, or the XML file in it if it is an archive."""
    if not Sample(source.path).raw.startswith(_GZIP):
        yield from chunks(source.path)
        return
    try:
        with (
            gzip.open(source.path) as unpacked,
            tarfile.open(fileobj=unpacked, mode="r|") as archive,
        ):
            for member in archive:
                file = archive.extractfile(member) if member.name.endswith(".xml") else None
                if file is not None:
                    while chunk := file.read(CHUNK):
                        yield chunk
                    while unpacked.read(CHUNK):
                        pass  # to the checksum at the end
                    return
    except (EOFError, gzip.BadGzipFile, tarfile.TarError, zlib.error) as error:
        raise DataError(
            f"{source.path}: the archive is damaged or cut short ({error}); fetch it again"
        ) from error
    except OSError as error:
        raise unreadable(source.path, error) from error
    raise DataError(
        f"{source.path}: no XML file in this archive; give GENIAcorpus3.02.tgz or the XML file"
    )


def _sentences(article: Element, source: Source) -> Iterator[Sentence]:
    """The sentences of an article; its text is theirs, a line each."""
    doc = (article.findtext("articleinfo/bibliomisc") or "").strip() or None
    found: list[Sentence] = []
    pieces: list[str] = []
    begin = 0
    for element in article.iter("sentence"):
        assert isinstance(element, Element)
        reading = _Reading(begin)
        reading.walk(element)
        if not reading.offsets:
            source.refuse(
                DataError(f"{source.path}:{element.line}: a sentence without words; remove it")
            )
            continue
        labels: dict[tuple[int, int], str] = {}
        for start, end, label in reading.entities:
            if (start, end) not in labels or doc == _OUTERMOST:
                labels[start, end] = label
        text = "".join(reading.pieces)
        found.append(
            Sentence(
                words=[text[start - begin : end - begin] for start, end in reading.offsets],
                entities=[Span(start, end, labels[start, end]) for start, end in sorted(labels)],
                doc=doc,
                where=f"{source.path}:{element.line}",
                offsets=reading.offsets,
            )
        )
        pieces.append(text)
        begin += len(text) + 1
    whole = "\n".join(pieces)
    for sentence in found:
        sentence.text = whole
        yield sentence


class _Reading:
    """A sentence as it is put together from the text between tags."""

    def __init__(self, at: int) -> None:
        self.at = at  # in the article's text
        self.pieces: list[str] = []
        self.offsets: list[tuple[int, int]] = []
        self.entities: list[Span] = []  # an inner one before those around it

    def walk(self, element: ElementTree.Element) -> None:
        first = len(self.offsets)
        self._add(element.text or "")
        for child in element:
            self.walk(child)
            self._add(child.tail or "")
        kind = _TYPE.match(element.get("sem", ""))
        if kind:
            self.entities.append(Span(first, len(self.offsets), kind[1]))

    def _add(self, text: str) -> None:
        for word in re.finditer(r"\S+", text):
            self.offsets.append((self.at + word.start(), self.at + word.end()))
        self.pieces.append(text)
        self.at += len(text)


FORMAT = Format(
    name="genia",
    summary="GENIA 3.02 XML or its archive; part=train_dev and part=test are the benchmark's",
    recognises=recognises,
    read=read,
    options=GeniaOptions,
)
