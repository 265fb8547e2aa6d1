"""GLiNER's JSON: `{"tokenized_text": [...], "ner": [[start, end, "label"], ...]}`.

Offsets count words and `end` is inclusive. Reads an array or JSON lines; writes an array, which is
what GLiNER's training scripts load. `doc`, a key of ours that GLiNER ignores, is the document's
name; other keys are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence, Span
from diffusionner.formats import json_fields as fields
from diffusionner.formats.format import Format, NoOptions
from diffusionner.formats.json_files import read_values, write_array
from diffusionner.formats.source import Sample, Source

_SHAPE = '{"tokenized_text": ["..."], "ner": [[0, 1, "..."]]}'


def recognises(sample: Sample) -> bool:
    return "tokenized_text" in sample.keys


def read(source: Source, options: NoOptions) -> Iterator[Sentence]:
    return source.convert_each(read_values(source), _convert)


def _convert(record: Any, where: str) -> Iterator[Sentence]:
    words = fields.words(record, "tokenized_text", where, _SHAPE)
    entities = []
    for entity in fields.get(record, "ner", list, where, _SHAPE):
        start, end, label = fields.triple(entity, where, _SHAPE)
        entities.append(Span(start, end + 1, label))
    yield Sentence(words, entities, fields.document(record, where), where)


def write(sentences: Iterable[Sentence], path: Path, options: NoOptions) -> None:
    write_array(map(_to_record, sentences), path)


def _to_record(sentence: Sentence) -> dict[str, Any]:
    entities = [[start, end - 1, label] for start, end, label in sentence.entities]
    return fields.with_document({"tokenized_text": sentence.words, "ner": entities}, sentence.doc)


FORMAT = Format(
    name="gliner",
    summary="GLiNER's JSON: tokenized_text and ner, whose offsets count words, end inclusive",
    recognises=recognises,
    read=read,
    write=write,
)
