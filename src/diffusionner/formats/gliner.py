"""GLiNER's JSON: `{"tokenized_text": [...], "ner": [[start, end, "label"], ...]}`.

Offsets count words and `end` is the last word of the entity, inclusive. An array or JSON lines are
read; an array is written, since that is what GLiNER's training scripts load. `doc`, a key of ours
that GLiNER ignores, has the document's name; other keys are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence, Span
from diffusionner.formats import records
from diffusionner.formats.base import Format, NoOptions, Sample, Source

_SHAPE = '{"tokenized_text": ["..."], "ner": [[0, 1, "..."]]}'


def recognises(sample: Sample) -> bool:
    return "tokenized_text" in sample.keys


def read(source: Source, options: NoOptions) -> Iterator[Sentence]:
    return source.each(source.records(), _convert)


def _convert(record: Any, where: str) -> Iterator[Sentence]:
    records.member(record, "tokenized_text", object, where, _SHAPE)
    words = records.words(record["tokenized_text"], "tokenized_text", where)
    entities = []
    for entity in records.member(record, "ner", list, where, _SHAPE):
        start, end, label = records.triple(entity, where, _SHAPE)
        entities.append(Span(start, end + 1, label))
    yield Sentence(words, entities, records.document(record.get("doc"), "doc", where), where)


def write(sentences: Iterable[Sentence], path: Path, options: NoOptions) -> None:
    records.write_array(map(_to_record, sentences), path)


def _to_record(sentence: Sentence) -> dict[str, Any]:
    record: dict[str, Any] = {
        "tokenized_text": sentence.words,
        "ner": [[start, end - 1, label] for start, end, label in sentence.entities],
    }
    if sentence.doc is not None:
        record["doc"] = sentence.doc
    return record


FORMAT = Format(
    name="gliner",
    summary="GLiNER's JSON: tokenized_text and ner, whose offsets count words, end inclusive",
    recognises=recognises,
    read=read,
    write=write,
)
