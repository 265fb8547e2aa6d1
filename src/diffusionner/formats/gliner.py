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
from diffusionner.formats.format import Format, NoOptions
from diffusionner.formats.json_files import write_array
from diffusionner.formats.json_records import Record, convert_records, with_document
from diffusionner.formats.source import Sample, Source

_SHAPE = '{"tokenized_text": ["..."], "ner": [[0, 1, "..."]]}'


def recognises(sample: Sample) -> bool:
    return "tokenized_text" in sample.keys


def read(source: Source, options: NoOptions) -> Iterator[Sentence]:
    return convert_records(source, _SHAPE, _convert)


def _convert(record: Record) -> Iterator[Sentence]:
    words = record.words("tokenized_text")
    entities = [Span(start, end + 1, label) for start, end, label in record.triples("ner")]
    yield Sentence(words, entities, record.document(), record.where)


def write(sentences: Iterable[Sentence], path: Path, options: NoOptions) -> None:
    write_array(map(_to_record, sentences), path)


def _to_record(sentence: Sentence) -> dict[str, Any]:
    entities = [[start, end - 1, label] for start, end, label in sentence.entities]
    return with_document({"tokenized_text": sentence.words, "ner": entities}, sentence.doc)


FORMAT = Format(
    name="gliner",
    summary="GLiNER's JSON: tokenized_text and ner, whose offsets count words, end inclusive",
    recognises=recognises,
    read=read,
    write=write,
)
