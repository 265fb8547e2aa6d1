"""Elements out of an XML file of any size, each with the line on which it begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree
from xml.parsers import expat

from diffusionner.errors import DataError
from diffusionner.formats.base import MAX_RECORD, too_long, unreadable

CHUNK = 2**16
_DEEPEST = 100  # elements within elements; no corpus comes near


class Element(ElementTree.Element):
    """An element that knows its line."""

    line = 0


def elements(chunks: Iterable[bytes], path: Path, tag: str) -> Iterator[Element]:
    """Each `tag` element, none inside another; nothing else of the file is kept.

    Files are not to be trusted: no entity is expanded but XML's own five and characters by number,
    and no other file is looked at.
    """
    reader = _Reader(path, tag)
    for chunk in chunks:
        yield from reader.feed(chunk)
    yield from reader.feed(b"", last=True)


def chunks(path: Path) -> Iterator[bytes]:
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
        self.builder: ElementTree.TreeBuilder | None = None  # of an element being read
        self.depth = 0  # in that element
        self.size = 0  # bytes since the last element
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.EntityDeclHandler = self._refuse_entity
        self.parser.SkippedEntityHandler = self._refuse_entity

    def feed(self, chunk: bytes, last: bool = False) -> Iterator[Element]:
        try:
            self.parser.Parse(chunk, last)
        except expat.ExpatError as error:
            raise DataError(
                f"{self.path}:{error.lineno}: not well-formed XML "
                f"({expat.ErrorString(error.code)}, column {error.offset + 1}); "
                "check that the file is whole and unchanged"
            ) from error
        except (LookupError, ValueError) as error:
            raise DataError(
                f"{self._where()}: XML in an encoding that is not known ({error}); convert it to "
                "UTF-8"
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
        if self.depth > _DEEPEST:
            raise DataError(
                f"{self._where()}: elements nested more than {_DEEPEST} deep; check that it is "
                "the file you meant"
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

    def _refuse_entity(self, name: str, *_: object) -> None:
        raise DataError(
            f"{self._where()}: the XML entity '{name}' is not one of XML's own; write the "
            "characters themselves"
        )
