"""Passages in which mentions are marked inline, each with the types that were looked for.

    ### domain: veterinary clinic | genre: case note | id: W2-03-07
    types: animal breed; symptom; date
    absent: surgical instrument
    describe: symptom = a sign of illness that is observed in or reported of the animal
    ⟦Labrador Retriever|animal breed⟧, seen on ⟦3 March|date⟧ for ⟦limping|symptom⟧ ...

Marks nest. Every mention of the listed `types` is marked; those of `absent` do not occur. With the
option descriptions=true, a described type becomes "symptom: a sign of illness ...".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from diffusionner.corpus import Sentence
from diffusionner.errors import DataError
from diffusionner.formats.documents import (
    Annotation,
    TextDocument,
    TextOptions,
    contiguous,
    to_sentences,
)
from diffusionner.formats.format import Capabilities, Format
from diffusionner.formats.source import Sample, Source, shorten
from diffusionner.label_set import label_text

_HEAD, _OPEN, _CLOSE, _BAR = "###", "⟦", "⟧", "|"


@dataclass(frozen=True)
class PassageOptions(TextOptions):
    """descriptions: add the description of a type to its label."""

    descriptions: bool = False


@dataclass
class _Passage:
    where: str
    doc: str | None = None
    types: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    descriptions: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


def recognises(sample: Sample) -> bool:
    if sample.folder:
        first = next((f for f in sorted(sample.path.rglob("*.txt")) if f.is_file()), None)
        return first is not None and recognises(Sample(first))
    lines = sample.lines
    headed = any(a.startswith(_HEAD) and b.startswith("types:") for a, b in pairwise(lines))
    return headed and _OPEN in sample.head


def read(source: Source, options: PassageOptions) -> Iterator[Sentence]:
    passages = ((passage.where, passage) for passage in _passages(source))

    def convert(passage: _Passage, where: str) -> list[Sentence]:
        return _to_sentences(passage, options)

    return source.convert_each(passages, convert)


def _passages(source: Source) -> Iterator[_Passage]:
    for path in source.files("*.txt"):
        passage: _Passage | None = None
        for where, line in source.lines(path):
            if line.startswith(_HEAD):
                if passage is not None:
                    yield passage
                parts = (part.partition(":") for part in line[len(_HEAD) :].split(_BAR))
                ids = [value.strip() for name, _, value in parts if name.strip() == "id"]
                passage = _Passage(where, next(iter(ids), None))
            elif passage is not None:
                _add_line(passage, line)
            elif line.strip():
                source.report(DataError(f"{where}: text before the first '{_HEAD}'; remove it"))
        if passage is not None:
            yield passage


def _add_line(passage: _Passage, line: str) -> None:
    name, colon, value = line.partition(":")
    if passage.lines or not colon or name not in ("types", "absent", "describe"):
        passage.lines.append(line)
    elif name == "describe":
        described, _, meaning = value.partition("=")
        passage.descriptions[described.strip()] = meaning.strip()
    else:
        listed = passage.types if name == "types" else passage.absent
        listed += [one.strip() for one in value.split(";") if one.strip()]


def _to_sentences(passage: _Passage, options: PassageOptions) -> list[Sentence]:
    where, body = passage.where, "\n".join(passage.lines).strip()
    text, marks = _parse(body, where)
    if not passage.types:
        raise DataError(f"{where}: the passage has no line 'types:'; list what was looked for")
    marked = {label for _, label in marks}
    if present := marked.intersection(passage.absent):
        raise DataError(
            f"{where}: {shorten(repr(min(present)))} is marked and listed as absent; remove one"
        )
    unlisted = marked - set(passage.types)
    if unlisted:
        raise DataError(
            f"{where}: {shorten(repr(min(unlisted)))} is marked but not among the types; add it to "
            "the line 'types:'"
        )
    described = passage.descriptions if options.descriptions else {}
    names = _labels([*passage.types, *passage.absent], described)
    annotations = [mark._replace(label=names[mark.label]) for mark in marks]
    sentences = to_sentences(TextDocument(text, annotations, passage.doc, where), options)
    for sentence in sentences:
        sentence.types = tuple(sorted(set(names.values())))
    return sentences


def _labels(types: list[str], described: Mapping[str, str]) -> dict[str, str]:
    return {name: label_text(name, described.get(name, "")) for name in types}


def _parse(body: str, where: str) -> tuple[str, list[Annotation]]:
    """Return the text without marks, and the marks by character."""
    text: list[str] = []
    starts: list[int] = []
    marks: list[Annotation] = []
    place = 0
    while place < len(body):
        character = body[place]
        if character == _OPEN:
            starts.append(len(text))
        elif character == _BAR and starts:
            end = body.find(_CLOSE, place)
            label = body[place + 1 : end].strip()
            if end < 0 or not label or _OPEN in label or _BAR in label:
                raise _damaged(where, body, place)
            start = starts.pop()
            if start == len(text):
                raise _damaged(where, body, place)
            marks.append(contiguous(start, len(text), label))
            place = end
        elif character == _CLOSE:
            raise _damaged(where, body, place)
        else:
            text.append(character)
        place += 1
    if starts:
        raise _damaged(where, body, len(body) - 1)
    return "".join(text), sorted(marks)


def _damaged(where: str, body: str, place: int) -> DataError:
    around = shorten(repr(body[max(0, place - 20) : place + 20]))
    return DataError(
        f"{where}: marks are written {_OPEN}text|type{_CLOSE}; this is not one: {around}"
    )


FORMAT = Format(
    name="passages",
    summary="texts with mentions marked inline, and the types that were looked for",
    recognises=recognises,
    read=read,
    options=PassageOptions,
    capabilities=Capabilities(crossing=False, irregular=True, text=True, types=True),
)
