"""BERT-MRC's JSON: a record for each sentence and label, which asks where such entities are.

`{"context": "words joined by spaces", "entity_label", "query", "qas_id": "0.1", "impossible",
"span_position": ["2;4"], "start_position": [2], "end_position": [4]}`; positions count words and
the last is the entity's own. Records that follow one another with the same context, and the same
number before the dot of `qas_id`, are one sentence. Queries are not kept: written ones are the
labels' names. `doc`, a key of ours that BERT-MRC ignores, has the document's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError, nearest
from diffusionner.formats import records
from diffusionner.formats.base import Format, Holds, Sample, Source

_SHAPE = '{"context": "a b c", "entity_label": "...", "span_position": ["0;1"]}'
_POSITION = re.compile(r"(\d{1,9})[;,](\d{1,9})", re.ASCII)
_NO_LABEL = "O"  # of the record of a sentence without entities


@dataclass(frozen=True)
class MrcOptions:
    """labels: those to ask for in every sentence that is written, joined by +.

    When they are not given a sentence has records only for the labels that it has entities of.
    """

    labels: str = ""


def recognises(sample: Sample) -> bool:
    return {"context", "entity_label", "span_position"} <= sample.keys


def read(source: Source, options: MrcOptions) -> Iterator[Sentence]:
    current: Sentence | None = None
    key: tuple[str, str, str | None] | None = None
    for where, record in source.records():
        try:
            context = records.member(record, "context", str, where, _SHAPE)
            question = records.member({"qas_id": "", **record}, "qas_id", str, where, _SHAPE)
            doc = records.document(record.get("doc"), "doc", where)
            words = _words(context, where)
            spans = _spans(record, where)
        except DataError as error:
            source.refuse(error)
            continue
        previous, key = key, (context, question.partition(".")[0], doc)
        if current is None or key != previous:
            if current is not None:
                yield current
            current = Sentence(words, doc=doc, where=where)
        current.entities += spans
    if current is not None:
        yield current


def _words(context: str, where: str) -> list[str]:
    # Not split(): no-break and ideographic spaces are words of some Chinese corpora.
    words = context.split(" ")
    if not all(words):
        raise DataError(
            f"{where}: 'context' has a space too many; put one between two words, none at the ends"
        )
    return words


def _spans(record: dict[str, Any], where: str) -> list[Span]:
    label = records.member(record, "entity_label", str, where, _SHAPE)
    positions = []
    for text in records.member(record, "span_position", list, where, _SHAPE):
        found = _POSITION.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise DataError(
                f"{where}: {text!r} in 'span_position' is no position; write its first and last "
                'word, as in "2;4"'
            )
        positions.append((int(found[1]), int(found[2])))
    for key, at in (("start_position", 0), ("end_position", 1)):
        if key in record:
            numbers = records.member(record, key, list, where, _SHAPE)
            given = {records.integer(number, f"a number in '{key}'", where) for number in numbers}
            if given != {position[at] for position in positions}:
                raise DataError(f"{where}: '{key}' does not agree with 'span_position'; correct it")
    if record.get("impossible") is True and positions:
        raise DataError(f"{where}: 'impossible' does not agree with 'span_position'; correct it")
    return [Span(start, end + 1, records.label(label, where)) for start, end in positions]


def write(sentences: Iterable[Sentence], path: Path, options: MrcOptions) -> None:
    labels = sorted(set(filter(None, options.labels.split("+"))))
    records.write_array(_to_records(sentences, labels), path)


def _to_records(sentences: Iterable[Sentence], labels: list[str]) -> Iterator[dict[str, Any]]:
    for number, sentence in enumerate(sentences):
        used = {span.label for span in sentence.entities}
        for label in sorted(used.difference(labels)) if labels else ():
            raise DataError(
                f"{sentence.where or 'sentence'}: label '{label}' is not among the labels to "
                f"write; {nearest(label, labels)}"
            )
        for question, label in enumerate(labels or sorted(used) or [_NO_LABEL], 1):
            positions = [(s, e - 1) for s, e, kind in sentence.entities if kind == label]
            record = {
                "context": " ".join(sentence.words),
                "end_position": [end for _, end in positions],
                "entity_label": label,
                "impossible": not positions,
                "qas_id": f"{number}.{question}",
                "query": label,
                "span_position": [f"{start};{end}" for start, end in positions],
                "start_position": [start for start, _ in positions],
            }
            yield record if sentence.doc is None else {**record, "doc": sentence.doc}


def _writable(word: str) -> bool:
    # BERT-MRC itself parts words at any white space, and positions would be off.
    return word.split() == [word]


FORMAT = Format(
    name="mrc",
    summary="BERT-MRC's JSON: a record for each sentence and label, with span positions",
    recognises=recognises,
    read=read,
    write=write,
    options=MrcOptions,
    holds=Holds(word=_writable),
)
