"""doccano's JSON lines: one text per line, annotated by characters, `end` exclusive.

Reads `{"text", "label": [[start, end, "label"], ...]}`, the same with `labels`, and the export with
relations, `{"text", "entities": [{"start_offset", "end_offset", "label"}]}` (`annotations` in the
oldest version), whose relations and comments are ignored. Writes the first shape, with `doc`, a key
of ours, for the document's name.

Some versions of doccano's editor count UTF-16 code units, so that entities after an emoji are
shifted: read such files with the option offsets=utf16.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence
from diffusionner.formats.documents import TextDocument, to_documents, to_sentences
from diffusionner.formats.format import Capabilities, Format
from diffusionner.formats.json_files import write_lines
from diffusionner.formats.json_records import Record, convert_records, with_document
from diffusionner.formats.offset_units import OffsetOptions, offsets_in, to_annotations
from diffusionner.formats.source import Sample, Source

_LISTS = ("label", "labels")
_OBJECTS = ("entities", "annotations")
_SHAPE = '{"text": "...", "label": [[0, 3, "..."]]}'


def recognises(sample: Sample) -> bool:
    """Check for lists (Label Studio has objects) or `start_offset` (jsonl has `start`)."""
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
    def convert(record: Record) -> list[Sentence]:
        text = record.get("text", str)
        annotations = to_annotations(text, _spans(record), options.offsets, record.where)
        document = TextDocument(text, annotations, record.document(), record.where)
        return to_sentences(document, options)

    return convert_records(source, _SHAPE, convert)


def _spans(record: Record) -> Iterable[tuple[int, int, str]]:
    key = next((key for key in (*_LISTS, *_OBJECTS) if key in record.fields), _LISTS[0])
    if key in _LISTS:
        return record.triples(key)
    return [entity.span("start_offset", "end_offset") for entity in record.objects(key)]


def write(sentences: Iterable[Sentence], path: Path, options: OffsetOptions) -> None:
    numbered = enumerate(to_documents(sentences), 1)
    write_lines((_to_record(n, document, options.offsets) for n, document in numbered), path)


def _to_record(number: int, document: TextDocument, unit: str) -> dict[str, Any]:
    offsets = offsets_in(unit, document.text)
    labels = [
        [offsets[start], offsets[end], label] for ((start, end),), label in document.annotations
    ]
    record = {"id": number, "text": document.text, "label": labels}
    return with_document(record, document.doc)


FORMAT = Format(
    name="doccano",
    summary="doccano's JSON lines: texts annotated by character",
    recognises=recognises,
    read=read,
    write=write,
    options=OffsetOptions,
    capabilities=Capabilities(irregular=True, text=True),
)
