"""Our own JSON lines: one sentence per line, by words, or one text per line, by characters.

`{"doc"?, "tokens": [...], "entities": [{"start", "end", "label"}]}` counts words;
`{"doc"?, "text": "...", "entities": [...]}` counts characters; `end` is exclusive. Sentences of a
text are written with both: `text` is the sentence's slice of it (see `document_slices`),
`text_start` the start of the slice, and `offsets` the characters of each word in the slice.
Discontinuous entities also have `fragments`, as in `{"start": 3, "end": 8, "label": "...",
"fragments": [[3, 5], [7, 8]]}`; their `start` and `end` may be left out. Annotations that do not
align with token boundaries are in `irregular`, by characters. `types` lists the labels that were
annotated, if not all. Other keys are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import regex

from diffusionner.corpus import Discontinuous, Sentence, Span, check_fragments
from diffusionner.formats.document_slices import join_slices, slice_documents
from diffusionner.formats.documents import (
    Annotation,
    Offsets,
    TextDocument,
    TextOptions,
    add_annotation,
    check_annotations,
    to_sentences,
)
from diffusionner.formats.format import Capabilities, Format
from diffusionner.formats.json_files import write_lines
from diffusionner.formats.json_records import Record, convert_records
from diffusionner.formats.source import Sample, Source, check_label

SHAPE = '{"tokens": ["..."], "entities": [{"start": 0, "end": 1, "label": "..."}]}'
_TEXT = '{"text": "...", "entities": [{"start": 0, "end": 3, "label": "..."}]}'
_OBJECT = regex.compile(r'\s*(\[\s*)?(\{\s*["}]|\])')


def recognises(sample: Sample) -> bool:
    """Accept any JSON that no other format claims: the error then shows a valid record."""
    return _OBJECT.match(sample.head) is not None


def read(source: Source, options: TextOptions) -> Iterator[Sentence]:
    records = convert_records(source, SHAPE, lambda record: parse_record(record, options))
    return join_slices(records)


def parse_record(record: Record, options: TextOptions) -> list[tuple[int | None, Sentence]]:
    """Return sentences, each with the start of its slice of the text, if it is one."""
    fields, where = record.fields, record.where
    if "text" in fields and "tokens" not in fields:
        record.shape = _TEXT
        text = record.get("text", str)
        entities = [Annotation(tuple(parts), label) for parts, label in _entities(record)]
        annotations = entities + _irregular(record)
        document = TextDocument(text, annotations, record.document(), where)
        return [(None, sentence) for sentence in to_sentences(document, options)]
    types = record.optional("types", list)
    sentence = Sentence(
        words=record.words("tokens"),
        doc=record.document(),
        where=where,
        types=None if types is None else tuple(check_label(label, where) for label in types),
    )
    for fragments, label in _entities(record):
        if len(fragments) == 1:
            sentence.entities.append(Span(*fragments[0], label))
        else:
            entity = Discontinuous(tuple(fragments), label)
            check_fragments(entity, len(sentence.words), where)
            sentence.discontinuous.append(entity)
    if "text" not in fields or "offsets" not in fields:
        _add_irregular(sentence, record)
        return [(None, sentence)]
    text = sentence.text = record.get("text", str)
    offsets = sentence.offsets = _pairs(record, "offsets")
    # Slicing alone accepts offsets below 0 and beyond the end.
    bounds = [0, *chain.from_iterable(offsets), len(text)]
    found = [text[start:end] for start, end in offsets]
    if found != sentence.words or any(one > other for one, other in pairwise(bounds)):
        raise record.error(
            "'offsets' do not match the words in 'tokens'; correct them, or leave out 'offsets' "
            "and 'text'"
        )
    _add_irregular(sentence, record)
    return [(record.integer("text_start") if "text_start" in fields else 0, sentence)]


def _entities(record: Record) -> list[tuple[Offsets, str]]:
    """Return the fragments and the label of each entity."""
    entities = record.objects("entities") if record.has("entities") else []
    return [_fragments(entity) for entity in entities]


def _fragments(entity: Record) -> tuple[Offsets, str]:
    if not entity.has("fragments") or entity.fields["fragments"] is None:
        start, end, label = entity.span()
        return [(start, end)], label
    fragments, label = _pairs(entity, "fragments"), entity.label("label")
    if len(fragments) < 2:
        raise entity.error(
            f"entity {label} has fewer than two 'fragments'; leave them out and give 'start' and "
            "'end'"
        )
    for key, offset in (("start", fragments[0][0]), ("end", fragments[-1][1])):
        if entity.fields.get(key) is not None and entity.integer(key) != offset:
            raise entity.error(
                f"'{key}' {entity.integer(key)} of entity {label} contradicts its fragments "
                f"{list(map(list, fragments))}; correct one, or leave out 'start' and 'end'"
            )
    return fragments, label


def _irregular(record: Record) -> list[Annotation]:
    annotations = record.objects("irregular") if record.has("irregular") else []
    return [Annotation(tuple(_pairs(a, "parts")), a.label("label")) for a in annotations]


def _add_irregular(sentence: Sentence, record: Record) -> None:
    """Add the annotations by characters; those of whole words become entities."""
    annotations = _irregular(record)
    if annotations:
        check_annotations(sentence.characters()[0], annotations, record.where)
    for annotation in annotations:
        add_annotation(sentence, annotation)


def _pairs(record: Record, key: str) -> Offsets:
    pairs = record.get(key, list)
    if any(
        not isinstance(pair, list) or len(pair) != 2 or any(type(n) is not int for n in pair)
        for pair in pairs
    ):
        raise record.error(f"'{key}' must be pairs of numbers, such as [[0, 2], [5, 7]]")
    return [(start, end) for start, end in pairs]


def write(sentences: Iterable[Sentence], path: Path, options: TextOptions) -> None:
    write_lines((to_record(begin, part) for begin, part in slice_documents(sentences)), path)


def to_record(begin: int, sentence: Sentence) -> dict[str, Any]:
    """Return the JSON object of a sentence whose slice of the text starts at `begin`."""
    record: dict[str, Any] = {} if sentence.doc is None else {"doc": sentence.doc}
    record["tokens"] = sentence.words
    record["entities"] = [span._asdict() for span in sentence.entities] + [
        {"start": e.start, "end": e.end, "label": e.label, "fragments": e.fragments}
        for e in sentence.discontinuous
    ]
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
    capabilities=Capabilities(discontinuous=True, irregular=True, text=True, types=True),
    extensions=(".jsonl", ".ndjson"),
)
