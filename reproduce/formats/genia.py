"""GENIA 3.02 XML: the benchmark for nested entities, read from the archive as published.

Words are separated by white space or tags; an entity is a `cons` of one of the types below. If two
entities of different types have the same span, the benchmark keeps the innermost, except in one
document, where it keeps the outermost. Terms in coordinations, whose `sem` is an expression, are
not entities.
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
from diffusionner.formats.format import Format
from diffusionner.formats.source import HEAD, Sample, Source, unreadable
from reproduce.formats.xml_elements import CHUNK, Element, read_chunks, read_elements

_PARTS = ("all", "train_dev", "test")
SENTENCES = 18546  # in the corpus: train_dev, followed by test
TRAIN_DEV = 16692

_TYPE = re.compile(r"G#(DNA|RNA|cell_line|cell_type|protein)(_|$)")
_KEEPS_OUTERMOST = "MEDLINE:96074843"
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class GeniaOptions:
    """part: `train_dev` or `test` of the benchmark's split, or `all`."""

    part: str = "all"

    def __post_init__(self) -> None:
        if self.part not in _PARTS:
            raise ValueError(f"part is one of {', '.join(_PARTS)}, not '{self.part}'")


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
    for article in read_elements(_xml_chunks(source), source.path, "article"):
        for sentence in _sentences(article, source):
            number += 1
            if options.part == "all" or (options.part == "test") == (number > TRAIN_DEV):
                yield sentence
    if options.part != "all" and number != SENTENCES:
        raise DataError(
            f"{source.path}: {number} sentences, but the benchmark has {SENTENCES}; give the whole "
            "corpus, version 3.02, or read part=all"
        )


def _xml_chunks(source: Source) -> Iterator[bytes]:
    """Read the file or, if it is an archive, the XML file in it."""
    if not Sample(source.path).raw.startswith(_GZIP):
        yield from read_chunks(source.path)
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
                        pass  # the checksum at the end is verified only when it is read
                    return
    except (EOFError, gzip.BadGzipFile, tarfile.TarError, zlib.error) as error:
        raise DataError(
            f"{source.path}: the archive is damaged or truncated ({error}); download it again"
        ) from error
    except OSError as error:
        raise unreadable(source.path, error) from error
    raise DataError(
        f"{source.path}: no XML file in this archive; give GENIAcorpus3.02.tgz or the XML file"
    )


def _sentences(article: Element, source: Source) -> Iterator[Sentence]:
    """Yield the sentences of an article, whose text has one sentence per line."""
    doc = (article.findtext("articleinfo/bibliomisc") or "").strip() or None
    found: list[Sentence] = []
    text = ""
    for element in article.iter("sentence"):
        assert isinstance(element, Element)
        where = f"{source.path}:{element.line}"
        line = _Line(len(text))
        line.add(element)
        if not line.offsets:
            source.report(DataError(f"{where}: a sentence without words; remove it"))
            continue
        text += line.text + "\n"
        labels: dict[tuple[int, int], str] = {}
        for start, end, label in line.entities:
            if (start, end) not in labels or doc == _KEEPS_OUTERMOST:
                labels[start, end] = label
        words = [text[start:end] for start, end in line.offsets]
        entities = [Span(start, end, labels[start, end]) for start, end in sorted(labels)]
        found.append(Sentence(words, entities, doc, where, offsets=line.offsets))
    text = text[:-1]
    for sentence in found:
        sentence.text = text
        yield sentence


class _Line:
    """A sentence, assembled from the text between tags."""

    def __init__(self, begin: int) -> None:
        self.begin = begin  # in the article's text
        self.text = ""
        self.offsets: list[tuple[int, int]] = []
        self.entities: list[Span] = []  # inner before outer

    def add(self, element: ElementTree.Element) -> None:
        first = len(self.offsets)
        self._add_text(element.text or "")
        for child in element:
            self.add(child)
            self._add_text(child.tail or "")
        kind = _TYPE.match(element.get("sem", ""))
        if kind:
            self.entities.append(Span(first, len(self.offsets), kind[1]))

    def _add_text(self, text: str) -> None:
        at = self.begin + len(self.text)
        self.offsets += [(at + m.start(), at + m.end()) for m in re.finditer(r"\S+", text)]
        self.text += text


FORMAT = Format(
    name="genia",
    summary="GENIA 3.02 XML or its archive; part=train_dev and part=test are the benchmark's",
    recognises=recognises,
    read=read,
    options=GeniaOptions,
)
