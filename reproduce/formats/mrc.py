"""BERT-MRC's JSON: one record for each sentence and label, with a query for such entities.

`{"context": "words joined by spaces", "entity_label", "query", "qas_id": "0.1", "impossible",
"span_position": ["2;4"], "start_position": [2], "end_position": [4]}`; positions count words, end
inclusive. Consecutive records with the same context and the same number before the dot of `qas_id`
are one sentence. Queries are not kept: the label is written as the query. `doc`, a key of ours that
BERT-MRC ignores, is the document's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError, nearest
from diffusionner.formats.format import Capabilities, Format
from diffusionner.formats.json_files import write_array
from diffusionner.formats.json_records import Record, convert_records, with_document
from diffusionner.formats.source import Sample, Source

_SHAPE = '{"context": "a b c", "entity_label": "...", "span_position": ["0;1"]}'
_POSITION = re.compile(r"(\d{1,9})[;,](\d{1,9})", re.ASCII)
_NO_LABEL = "O"  # label of the record of a sentence without entities


@dataclass(frozen=True)
class MrcOptions:
    """labels: labels to write a record for in every sentence, joined by +.

    Without it, a sentence only has records for the labels of its own entities.
    """

    labels: str = ""


def recognises(sample: Sample) -> bool:
    return {"context", "entity_label", "span_position"} <= sample.keys


def read(source: Source, options: MrcOptions) -> Iterator[Sentence]:
    current: Sentence | None = None
    previous: tuple[str, str, str | None] | None = None
    for query, sentence in convert_records(source, _SHAPE, _convert):
        key = (" ".join(sentence.words), query, sentence.doc)
        if current is not None and key == previous:
            current.entities += sentence.entities
            continue
        if current is not None:
            yield current
        current, previous = sentence, key
    if current is not None:
        yield current


def _convert(record: Record) -> Iterator[tuple[str, Sentence]]:
    """Yield the sentence's number and the sentence, with the entities of one label."""
    # Not split(): no-break and ideographic spaces are words in some Chinese corpora.
    words = record.get("context", str).split(" ")
    if not all(words):
        raise record.error(
            "'context' has an extra space; put one between words and none at the ends"
        )
    number = (record.optional("qas_id", str) or "").partition(".")[0]
    yield number, Sentence(words, _spans(record), record.document(), record.where)


def _spans(record: Record) -> list[Span]:
    positions = []
    for text in record.get("span_position", list):
        found = _POSITION.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise record.error(
                f"{text!r} in 'span_position' is not a position; write its first and last word, "
                'as in "2;4"'
            )
        positions.append((int(found[1]), int(found[2])))
    for key, side in (("start_position", 0), ("end_position", 1)):
        if key in record.fields:
            numbers = record.get(key, list)
            given = {record.check_integer(number, f"a number in '{key}'") for number in numbers}
            if given != {position[side] for position in positions}:
                raise record.error(f"'{key}' contradicts 'span_position'; correct one")
    if record.fields.get("impossible") is True and positions:
        raise record.error("'impossible' contradicts 'span_position'; correct one")
    label = record.label("entity_label") if positions else record.get("entity_label", str)
    return [Span(start, end + 1, label) for start, end in positions]


def write(sentences: Iterable[Sentence], path: Path, options: MrcOptions) -> None:
    labels = sorted(set(filter(None, options.labels.split("+"))))
    write_array(_to_records(sentences, labels), path)


def _to_records(sentences: Iterable[Sentence], labels: list[str]) -> Iterator[dict[str, Any]]:
    for number, sentence in enumerate(sentences):
        used = {span.label for span in sentence.entities}
        for label in sorted(used.difference(labels)) if labels else ():
            raise DataError(
                f"{sentence.where or 'sentence'}: label '{label}' is not among the labels to "
                f"write; {nearest(label, labels)}"
            )
        for query, label in enumerate(labels or sorted(used) or [_NO_LABEL], 1):
            positions = [(s, e - 1) for s, e, kind in sentence.entities if kind == label]
            record = {
                "context": " ".join(sentence.words),
                "end_position": [end for _, end in positions],
                "entity_label": label,
                "impossible": not positions,
                "qas_id": f"{number}.{query}",
                "query": label,
                "span_position": [f"{start};{end}" for start, end in positions],
                "start_position": [start for start, _ in positions],
            }
            yield with_document(record, sentence.doc)


FORMAT = Format(
    name="mrc",
    summary="BERT-MRC's JSON: a record for each sentence and label, with span positions",
    recognises=recognises,
    read=read,
    write=write,
    options=MrcOptions,
    # BERT-MRC splits words at any white space, which would shift the positions.
    capabilities=Capabilities(word=lambda word: word.split() == [word]),
)
