"""doccano's JSON lines: a text a line, annotated by characters, `end` exclusive.

Read are `{"text", "label": [[start, end, "label"], ...]}`, the same with `labels`, and
`{"text", "entities": [{"start_offset", "end_offset", "label"}]}` of the export with relations
(`annotations` in the oldest), whose relations and comments are ignored. The first is written, with
`doc`, a key of ours, where the document has a name.

doccano's editor has counted UTF-16 code units in some versions, so that entities behind an emoji
are shifted: read such a file with the option offsets=utf16.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence
from diffusionner.formats import records
from diffusionner.formats.base import Format, Holds, Sample, Source
from diffusionner.formats.offsets import OffsetOptions, by_characters, counted
from diffusionner.formats.texts import TextDocument, to_documents, to_sentences

_LISTS = ("label", "labels")
_OBJECTS = ("entities", "annotations")
_SHAPE = '{"text": "...", "label": [[0, 3, "..."]]}'
_ENTITY = '{"label": "...", "start_offset": 0, "end_offset": 3}'


def recognises(sample: Sample) -> bool:
    """Lists where Label Studio has objects, and `start_offset` where jsonl has `start`."""
    if "text" not in sample.keys or "tokens" in sample.keys:
        return False
    lists = [record.get(key) for record in sample.records for key in _LISTS]
    if any(isinstance(value, list) for value in lists):
        return not any(isinstance(e, dict) for key in _LISTS for e in sample.members(key))
    entities = [e for key in _OBJECTS for e in sample.members(key) if isinstance(e, dict)]
    if entities:
        return any("start_offset" in entity for entity in entities)
    return "entities" in sample.keys and bool(sample.keys & {"relations", "Comments"})


def read(source: Source, options: OffsetOptions) -> Iterator[Sentence]:
    return source.each(source.records(), lambda record, at: _convert(record, at, options))


def _convert(record: Any, where: str, options: OffsetOptions) -> list[Sentence]:
    text = records.member(record, "text", str, where, _SHAPE)
    annotations = by_characters(text, _spans(record, where), options.offsets, where)
    doc = records.document(record.get("doc"), "doc", where)
    return to_sentences(TextDocument(text, annotations, doc, where), options)


def _spans(record: dict[str, Any], where: str) -> list[tuple[int, int, str]]:
    key = next((key for key in (*_LISTS, *_OBJECTS) if key in record), _LISTS[0])
    entities = records.member(record, key, list, where, _SHAPE)
    if key in _LISTS:
        return [records.triple(entity, where, _SHAPE) for entity in entities]
    found = []
    for entity in entities:
        start, end, label = (
            records.member(entity, name, object, where, _ENTITY)
            for name in ("start_offset", "end_offset", "label")
        )
        found.append(
            (
                records.integer(start, "'start_offset'", where),
                records.integer(end, "'end_offset'", where),
                records.label(label, where),
            )
        )
    return found


def write(sentences: Iterable[Sentence], path: Path, options: OffsetOptions) -> None:
    numbered = enumerate(to_documents(sentences), 1)
    records.write_lines((_to_record(n, document, options) for n, document in numbered), path)


def _to_record(number: int, document: TextDocument, options: OffsetOptions) -> dict[str, Any]:
    offsets = counted(document.text, options.offsets)
    record: dict[str, Any] = {"id": number, "text": document.text}
    record["label"] = [
        [offsets[start], offsets[end], label] for ((start, end),), label in document.annotations
    ]
    if document.doc is not None:
        record["doc"] = document.doc
    return record


FORMAT = Format(
    name="doccano",
    summary="doccano's JSON lines: texts annotated by character",
    recognises=recognises,
    read=read,
    write=write,
    options=OffsetOptions,
    holds=Holds(irregular="cut", text=True),
)
