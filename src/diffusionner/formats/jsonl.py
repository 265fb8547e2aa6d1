"""JSON lines, our own: a sentence a line, by words, or a text a line, by characters.

`{"doc"?, "tokens": [...], "entities": [{"start", "end", "label"}]}` counts words;
`{"doc"?, "text": "...", "entities": [...]}` counts characters; `end` is exclusive. Sentences cut
out of a text are written with both: `text` is then the sentence's part of it (to where the next
begins), `text_start` where that begins, and `offsets` has the words' characters in that part.
Annotations that are no run of whole words stand in `irregular`, by characters. `types`, where there
are any, are the labels that were looked for, if not all. Other keys are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import regex

from diffusionner.corpus import Irregular, Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats import pieces, records
from diffusionner.formats.base import Format, Holds, Sample, Source
from diffusionner.formats.texts import (
    TextDocument,
    TextOptions,
    check_annotations,
    to_sentences,
)

_WORDS = '{"tokens": ["..."], "entities": [{"start": 0, "end": 1, "label": "..."}]}'
_TEXT = '{"text": "...", "entities": [{"start": 0, "end": 3, "label": "..."}]}'
_OBJECT = regex.compile(r'\s*(\[\s*)?(\{\s*["}]|\])')


def recognises(sample: Sample) -> bool:
    """Whatever JSON no other format claims: the error then shows how a record looks."""
    return _OBJECT.match(sample.head) is not None


def read(source: Source, options: TextOptions) -> Iterator[Sentence]:
    found = source.each(source.records(), lambda record, at: convert(record, at, options))
    return pieces.join(found)


def sentence_from_json(record: Any, where: str) -> Sentence:
    """The sentence a decoded JSON object stands for."""
    records.member(record, "tokens", object, where, _WORDS)
    words = records.words(record["tokens"], "tokens", where)
    entities = _entities(record, where, _WORDS)
    doc = records.document(record.get("doc"), "doc", where)
    irregular = _irregular(record, where)
    return Sentence(words, entities, doc, where, irregular=irregular, types=_types(record, where))


def sentence_to_json(sentence: Sentence) -> dict[str, Any]:
    """The words and entities as `sentence_from_json` reads them; `doc` only where there is one."""
    record: dict[str, Any] = {} if sentence.doc is None else {"doc": sentence.doc}
    record["tokens"] = list(sentence.words)
    record["entities"] = [
        {"start": start, "end": end, "label": label} for start, end, label in sentence.entities
    ]
    if sentence.types is not None:
        record["types"] = list(sentence.types)
    return record


def write(sentences: Iterable[Sentence], path: Path, options: TextOptions) -> None:
    records.write_lines((to_record(*piece) for piece in pieces.cut(sentences)), path)


def to_record(begin: int, sentence: Sentence) -> dict[str, Any]:
    record = sentence_to_json(sentence)
    if sentence.text is not None and sentence.offsets is not None:
        record["text"] = sentence.text
        record["text_start"] = begin
        record["offsets"] = sentence.offsets
    if sentence.irregular:
        record["irregular"] = [annotation._asdict() for annotation in sentence.irregular]
    return record


def _entities(record: dict[str, Any], where: str, shape: str) -> list[Span]:
    entities = record.get("entities", [])
    if not isinstance(entities, list):
        raise DataError(
            f"{where}: 'entities' must be a list, not {records.name(entities)}; write {shape}"
        )
    spans = []
    for entity in entities:
        if not isinstance(entity, dict):
            raise DataError(
                f"{where}: an entity must be an object, not {records.name(entity)}; write {shape}"
            )
        try:
            start, end, label = entity["start"], entity["end"], entity["label"]
        except KeyError as missing:
            raise DataError(f"{where}: an entity has no {missing}; write {shape}") from missing
        spans.append(
            Span(
                records.integer(start, "'start' of an entity", where),
                records.integer(end, "'end' of an entity", where),
                records.label(label, where),
            )
        )
    return spans


def _types(record: dict[str, Any], where: str) -> tuple[str, ...] | None:
    given = record.get("types")
    if given is None:
        return None
    if not isinstance(given, list):
        raise DataError(
            f"{where}: 'types' must be a list of labels, not {records.name(given)}; leave it out "
            "if all labels were looked for"
        )
    return tuple(records.label(label, where) for label in given)


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


def convert(record: Any, where: str, options: TextOptions) -> Iterable[tuple[int | None, Sentence]]:
    """Sentences, with where their piece of the text begins if it is one."""
    if isinstance(record, dict) and "text" in record and "tokens" not in record:
        return [(None, s) for s in to_sentences(_document(record, where), options)]
    sentence = sentence_from_json(record, where)
    if "text" not in record or "offsets" not in record:
        if sentence.irregular:
            check_annotations(" ".join(sentence.words), sentence.irregular, where)
        return [(None, sentence)]
    text = sentence.text = records.member(record, "text", str, where, _TEXT)
    check_annotations(text, sentence.irregular, where)
    offsets = sentence.offsets = _pairs(record["offsets"], where)
    # Python would count offsets below 0 from the end and cut those beyond it.
    bounds = [0, *chain.from_iterable(offsets), len(text)]
    if (
        any(one > other for one, other in pairwise(bounds))
        or [text[start:end] for start, end in offsets] != sentence.words
    ):
        raise DataError(
            f"{where}: 'offsets' do not give the words in 'tokens'; leave out 'offsets' and "
            "'text', or correct them"
        )
    return [(records.integer(record.get("text_start", 0), "'text_start'", where), sentence)]


FORMAT = Format(
    name="jsonl",
    summary="JSON lines by words (tokens) or characters (text): holds everything",
    recognises=recognises,
    read=read,
    write=write,
    options=TextOptions,
    holds=Holds(irregular=True, text=True, types=True),
    extensions=(".jsonl", ".ndjson"),
)
