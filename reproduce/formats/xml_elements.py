"""Streaming access to the elements of an XML file, each with its line number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree
from xml.parsers import expat

from diffusionner.errors import DataError
from diffusionner.formats.source import MAX_RECORD, too_long, unreadable

CHUNK = 2**16
_MAX_DEPTH = 100  # far more than any corpus needs


class Element(ElementTree.Element):
    """An element with the line on which it begins."""

    line = 0


def read_elements(chunks: Iterable[bytes], path: Path, tag: str) -> Iterator[Element]:
    """Yield each `tag` element; the rest of the file is not kept.

    Input is not trusted: only XML's five predefined entities and character references are expanded,
    and no other file is opened.
    """
    reader = _Reader(path, tag)
    for chunk in chunks:
        yield from reader.feed(chunk)
    yield from reader.feed(b"", last=True)


def read_chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk
    except OSError as error:
        raise unreadable(path, error) from error


class _Reader:
    def __init__(self, path: Path, tag: str) -> None:
        self.path = path
        self.tag = tag
        self.found: list[Element] = []
        self.builder: ElementTree.TreeBuilder | None = None  # of the element being read
        self.depth = 0  # inside that element
        self.size = 0  # bytes since the last element
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.EntityDeclHandler = self._reject_entity
        self.parser.SkippedEntityHandler = self._reject_entity

    def feed(self, chunk: bytes, last: bool = False) -> Iterator[Element]:
        try:
            self.parser.Parse(chunk, last)
        except expat.ExpatError as error:
            raise DataError(
                f"{self.path}:{error.lineno}: not well-formed XML "
                f"({expat.ErrorString(error.code)}, column {error.offset + 1}); check that the "
                "file is complete and unchanged"
            ) from error
        except (LookupError, ValueError) as error:
            raise DataError(
                f"{self._where()}: unknown XML encoding ({error}); convert the file to UTF-8"
            ) from error
        self.size = 0 if self.found else self.size + len(chunk)
        if self.size > MAX_RECORD:
            raise too_long(self._where())
        yield from self.found
        self.found.clear()

    def _where(self) -> str:
        return f"{self.path}:{self.parser.CurrentLineNumber}"

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if self.builder is None:
            if tag != self.tag:
                return
            self.builder = ElementTree.TreeBuilder(element_factory=Element)
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise DataError(
                f"{self._where()}: elements nested more than {_MAX_DEPTH} deep; check that this is "
                "the right file"
            )
        element = self.builder.start(tag, attributes)
        assert isinstance(element, Element)
        element.line = self.parser.CurrentLineNumber

    def _text(self, text: str) -> None:
        if self.builder is not None:
            self.builder.data(text)

    def _end(self, tag: str) -> None:
        if self.builder is None:
            return
        self.builder.end(tag)
        self.depth -= 1
        if not self.depth:
            element = self.builder.close()
            assert isinstance(element, Element)
            self.found.append(element)
            self.builder = None

    def _reject_entity(self, name: str, *_: object) -> None:
        raise DataError(
            f"{self._where()}: the XML entity '{name}' is not predefined; write the characters "
            "themselves"
        )
