"""JSON lines, our own: a sentence a line, by words, or a text a line, by characters.

`{"doc"?, "tokens": [...], "entities": [{"start", "end", "label"}]}` counts words;
`{"doc"?, "text": "...", "entities": [...]}` counts characters; `end` is exclusive. Sentences cut
out of a text are written with both: `text` is then the sentence's part of it (to where the next
begins), `text_start` where that begins, and `offsets` has the words' characters in that part.
Annotations that are no run of whole words stand in `irregular`, by characters. Other keys are
ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex

from diffusionner.corpus import Irregular, Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats import records
from diffusionner.formats.base import Format, Holds, Sample, Source
from diffusionner.formats.texts import TextDocument, TextOptions, to_sentences

_WORDS = '{"tokens": ["..."], "entities": [{"start": 0, "end": 1, "label": "..."}]}'
_TEXT = '{"text": "...", "entities": [{"start": 0, "end": 3, "label": "..."}]}'
_OBJECT = regex.compile(r'\s*(\[\s*)?(\{\s*["}]|\])')


def recognises(sample: Sample) -> bool:
    """Whatever JSON no other format claims: the error then shows how a record looks."""
    return _OBJECT.match(sample.head) is not None


def read(source: Source, options: TextOptions) -> Iterator[Sentence]:
    pieces: list[_Piece] = []  # of the text that is being put together
    for where, record in source.records():
        try:
            found = _convert(record, where, options)
        except DataError as error:
            source.refuse(error)
            continue
        if pieces and not (isinstance(found, _Piece) and found.begin == pieces[-1].end):
            yield from _put_together(pieces)
            pieces = []
        if isinstance(found, _Piece):
            pieces.append(found)
        else:
            yield from found
    yield from _put_together(pieces)


def sentence_from_json(record: Any, where: str) -> Sentence:
    """The sentence a decoded JSON object stands for."""
    records.member(record, "tokens", object, where, _WORDS)
    words = records.words(record["tokens"], "tokens", where)
    entities = [Span(start, end, label) for start, end, label in _entities(record, where, _WORDS)]
    doc = records.document(record.get("doc"), "doc", where)
    return Sentence(words, entities, doc, where, irregular=_irregular(record, where))


def sentence_to_json(sentence: Sentence) -> dict[str, Any]:
    """The words and entities as `sentence_from_json` reads them; `doc` only where there is one."""
    record: dict[str, Any] = {} if sentence.doc is None else {"doc": sentence.doc}
    record["tokens"] = list(sentence.words)
    record["entities"] = [
        {"start": start, "end": end, "label": label} for start, end, label in sentence.entities
    ]
    return record


def write(sentences: Iterable[Sentence], path: Path, options: TextOptions) -> None:
    records.write_lines(_to_records(sentences), path)


def _to_records(sentences: Iterable[Sentence]) -> Iterator[dict[str, Any]]:
    previous: Sentence | None = None
    begin = 0  # of the part of the text that the previous sentence has
    for sentence in sentences:
        if previous is not None:
            follows = previous.text is not None and sentence.text is previous.text
            end = sentence.offsets[0][0] if follows and sentence.offsets else None
            yield _to_record(previous, begin, end)
            begin = end or 0
        previous = sentence
    if previous is not None:
        yield _to_record(previous, begin, None)


def _to_record(sentence: Sentence, begin: int, end: int | None) -> dict[str, Any]:
    record = sentence_to_json(sentence)
    if sentence.text is not None and sentence.offsets is not None:
        record["text"] = sentence.text[begin:end]
        record["text_start"] = begin
        record["offsets"] = [[s - begin, e - begin] for s, e in sentence.offsets]
    if sentence.irregular:
        record["irregular"] = [
            {"parts": [[s - begin, e - begin] for s, e in parts], "label": label}
            for parts, label in sentence.irregular
        ]
    return record


def _entities(record: dict[str, Any], where: str, shape: str) -> Iterator[tuple[int, int, str]]:
    entities = record.get("entities", [])
    if not isinstance(entities, list):
        raise DataError(
            f"{where}: 'entities' must be a list, not {records.name(entities)}; write {shape}"
        )
    for entity in entities:
        if not isinstance(entity, dict):
            raise DataError(
                f"{where}: an entity must be an object, not {records.name(entity)}; write {shape}"
            )
        for key in ("start", "end", "label"):
            if key not in entity:
                raise DataError(f"{where}: an entity has no '{key}'; write {shape}")
        start = records.integer(entity["start"], "'start' of an entity", where)
        end = records.integer(entity["end"], "'end' of an entity", where)
        yield start, end, records.label(entity["label"], where)


def _document(record: dict[str, Any], where: str) -> TextDocument:
    text = records.member(record, "text", str, where, _TEXT)
    annotations = [
        Irregular(((start, end),), label) for start, end, label in _entities(record, where, _TEXT)
    ]
    annotations += _irregular(record, where)
    return TextDocument(text, annotations, records.document(record.get("doc"), "doc", where), where)


def _irregular(record: dict[str, Any], where: str) -> list[Irregular]:
    found = []
    given = record.get("irregular", [])
    for entry in given if isinstance(given, list) else [given]:
        parts = records.member(
            entry, "parts", list, where, '{"parts": [[0, 2], [5, 7]], "label": "..."}'
        )
        found.append(
            Irregular(tuple(_pairs(parts, where)), records.label(entry.get("label"), where))
        )
    return found


def _pairs(value: Any, where: str) -> list[tuple[int, int]]:
    if not isinstance(value, list) or any(
        not isinstance(pair, list) or len(pair) != 2 or any(type(n) is not int for n in pair)
        for pair in value
    ):
        raise DataError(f"{where}: expected pairs of numbers, such as [[0, 2], [5, 7]]")
    return [(start, end) for start, end in value]


@dataclass
class _Piece:
    """A sentence with its part of a text."""

    sentence: Sentence
    begin: int  # in the whole text
    text: str

    @property
    def end(self) -> int:
        return self.begin + len(self.text)


def _convert(record: Any, where: str, options: TextOptions) -> list[Sentence] | _Piece:
    if not isinstance(record, dict) or "text" not in record:
        return [sentence_from_json(record, where)]
    if "tokens" not in record:
        return to_sentences(_document(record, where), options)
    sentence = sentence_from_json(record, where)
    if "offsets" not in record:
        return [sentence]
    text = records.member(record, "text", str, where, _TEXT)
    sentence.offsets = _pairs(record["offsets"], where)
    if [text[start:end] for start, end in sentence.offsets] != sentence.words:
        raise DataError(
            f"{where}: 'offsets' do not give the words in 'tokens'; leave out 'offsets' and "
            "'text', or correct them"
        )
    return _Piece(
        sentence, records.integer(record.get("text_start", 0), "'text_start'", where), text
    )


def _put_together(pieces: list[_Piece]) -> Iterator[Sentence]:
    text = "".join(piece.text for piece in pieces)
    for piece in pieces:
        shift = piece.begin - pieces[0].begin
        sentence = piece.sentence
        assert sentence.offsets is not None
        sentence.text = text
        sentence.offsets = [(start + shift, end + shift) for start, end in sentence.offsets]
        sentence.irregular = [
            Irregular(tuple((start + shift, end + shift) for start, end in parts), label)
            for parts, label in sentence.irregular
        ]
        yield sentence


FORMAT = Format(
    name="jsonl",
    summary="JSON lines by words (tokens) or characters (text): holds everything",
    recognises=recognises,
    read=read,
    write=write,
    options=TextOptions,
    holds=Holds(irregular=True, text=True),
    extensions=(".jsonl", ".ndjson"),
)
