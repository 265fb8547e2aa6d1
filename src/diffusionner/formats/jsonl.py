"""Our own JSON lines: one sentence per line, by words, or one text per line, by characters.

`{"doc"?, "tokens": [...], "entities": [{"start", "end", "label"}]}` counts words;
`{"doc"?, "text": "...", "entities": [...]}` counts characters; `end` is exclusive. Sentences of a
text are written with both: `text` is the sentence's slice of it (see `document_slices`),
`text_start` the start of the slice, and `offsets` the characters of each word in the slice.
Annotations that are discontinuous or do not align with token boundaries are in `irregular`, by
characters. `types` lists the labels that were annotated, if not all. Other keys are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import regex

from diffusionner.corpus import Irregular, Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats import json_fields as fields
from diffusionner.formats.document_slices import join_slices, slice_documents
from diffusionner.formats.documents import (
    Offsets,
    TextDocument,
    TextOptions,
    check_annotations,
    to_sentences,
)
from diffusionner.formats.format import Capabilities, Format
from diffusionner.formats.json_files import read_values, write_lines
from diffusionner.formats.source import Sample, Source

_WORDS = '{"tokens": ["..."], "entities": [{"start": 0, "end": 1, "label": "..."}]}'
_TEXT = '{"text": "...", "entities": [{"start": 0, "end": 3, "label": "..."}]}'
_IRREGULAR = '{"parts": [[0, 2], [5, 7]], "label": "..."}'
_OBJECT = regex.compile(r'\s*(\[\s*)?(\{\s*["}]|\])')


def recognises(sample: Sample) -> bool:
    """Accept any JSON that no other format claims: the error then shows a valid record."""
    return _OBJECT.match(sample.head) is not None


def read(source: Source, options: TextOptions) -> Iterator[Sentence]:
    return join_slices(
        source.convert_each(
            read_values(source), lambda record, where: parse_record(record, where, options)
        )
    )


def parse_record(
    record: Any, where: str, options: TextOptions
) -> Iterable[tuple[int | None, Sentence]]:
    """Return sentences, each with the start of its slice of the text, if it is one."""
    if isinstance(record, dict) and "text" in record and "tokens" not in record:
        return [(None, s) for s in to_sentences(_document(record, where), options)]
    sentence = Sentence(
        words=fields.words(record, "tokens", where, _WORDS),
        entities=_entities(record, where, _WORDS),
        doc=fields.document(record, where),
        where=where,
        irregular=_irregular(record, where),
        types=_types(record, where),
    )
    if "text" not in record or "offsets" not in record:
        if sentence.irregular:
            check_annotations(" ".join(sentence.words), sentence.irregular, where)
        return [(None, sentence)]
    text = sentence.text = fields.get(record, "text", str, where, _TEXT)
    check_annotations(text, sentence.irregular, where)
    offsets = sentence.offsets = _pairs(record["offsets"], where)
    # Slicing alone accepts offsets below 0 and beyond the end.
    bounds = [0, *chain.from_iterable(offsets), len(text)]
    if (
        any(one > other for one, other in pairwise(bounds))
        or [text[start:end] for start, end in offsets] != sentence.words
    ):
        raise DataError(
            f"{where}: 'offsets' do not match the words in 'tokens'; correct them, or leave out "
            "'offsets' and 'text'"
        )
    return [(fields.integer(record.get("text_start", 0), "'text_start'", where), sentence)]


def _document(record: dict[str, Any], where: str) -> TextDocument:
    text = fields.get(record, "text", str, where, _TEXT)
    annotations = [
        Irregular(((start, end),), label) for start, end, label in _entities(record, where, _TEXT)
    ]
    annotations += _irregular(record, where)
    return TextDocument(text, annotations, fields.document(record, where), where)


def _entities(record: dict[str, Any], where: str, shape: str) -> list[Span]:
    entities = fields.get({"entities": [], **record}, "entities", list, where, shape)
    return [Span(*fields.span(entity, where, shape)) for entity in entities]


def _irregular(record: dict[str, Any], where: str) -> list[Irregular]:
    given = record.get("irregular", [])
    return [
        Irregular(
            tuple(_pairs(fields.get(entry, "parts", list, where, _IRREGULAR), where)),
            fields.label(entry.get("label"), where),
        )
        for entry in (given if isinstance(given, list) else [given])
    ]


def _types(record: dict[str, Any], where: str) -> tuple[str, ...] | None:
    types = record.get("types")
    if types is None:
        return None
    if not isinstance(types, list):
        raise DataError(
            f"{where}: 'types' must be a list of labels, not {fields.describe(types)}; leave it "
            "out if all labels were annotated"
        )
    return tuple(fields.label(label, where) for label in types)


def _pairs(value: Any, where: str) -> Offsets:
    if not isinstance(value, list) or any(
        not isinstance(pair, list) or len(pair) != 2 or any(type(n) is not int for n in pair)
        for pair in value
    ):
        raise DataError(f"{where}: expected pairs of numbers, such as [[0, 2], [5, 7]]")
    return [(start, end) for start, end in value]


def write(sentences: Iterable[Sentence], path: Path, options: TextOptions) -> None:
    write_lines((to_record(begin, part) for begin, part in slice_documents(sentences)), path)


def to_record(begin: int, sentence: Sentence) -> dict[str, Any]:
    """Return the JSON object of a sentence whose slice of the text starts at `begin`."""
    record: dict[str, Any] = {} if sentence.doc is None else {"doc": sentence.doc}
    record["tokens"] = sentence.words
    record["entities"] = [span._asdict() for span in sentence.entities]
    if sentence.types is not None:
        record["types"] = sentence.types
    if sentence.text is not None and sentence.offsets is not None:
        record["text"] = sentence.text
        record["text_start"] = begin
        record["offsets"] = sentence.offsets
    if sentence.irregular:
        record["irregular"] = [annotation._asdict() for annotation in sentence.irregular]
    return record


FORMAT = Format(
    name="jsonl",
    summary="JSON lines by words (tokens) or characters (text): represents everything",
    recognises=recognises,
    read=read,
    write=write,
    options=TextOptions,
    capabilities=Capabilities(irregular=True, text=True, types=True),
    extensions=(".jsonl", ".ndjson"),
)
