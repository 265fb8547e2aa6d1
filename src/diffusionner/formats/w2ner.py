"""W2NER's JSON: `{"sentence": [...], "ner": [{"index": [3, 4, 6], "type": "..."}]}`, in an array.

`index` lists an entity's words, in order. A list with gaps is a discontinuous entity, kept by its
characters. `doc`, a key of ours that W2NER ignores, has the document's name; other keys, such as
the `word` of the Chinese corpora, are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from diffusionner.corpus import Irregular, Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats import records
from diffusionner.formats.base import Format, Holds, NoOptions, Sample, Source
from diffusionner.formats.texts import word_parts

_SHAPE = '{"sentence": ["..."], "ner": [{"index": [0, 1], "type": "..."}]}'


def recognises(sample: Sample) -> bool:
    # GLiNER's `ner` has lists for members; of a record cut off only the names are known.
    return {"sentence", "ner"} <= sample.keys and not any(
        isinstance(record.get("sentence"), str) for record in sample.records
    )


def read(source: Source, options: NoOptions) -> Iterator[Sentence]:
    return source.each(source.records(), _convert)


def _convert(record: Any, where: str) -> list[Sentence]:
    records.member(record, "sentence", object, where, _SHAPE)
    words = records.words(record["sentence"], "sentence", where)
    doc = records.document(record.get("doc"), "doc", where)
    sentence = Sentence(words, doc=doc, where=where)
    for entity in records.member(record, "ner", list, where, _SHAPE):
        index = records.member(entity, "index", list, where, _SHAPE)
        label = records.label(records.member(entity, "type", object, where, _SHAPE), where)
        parts = _parts(index, label, where)
        if len(parts) == 1:
            sentence.entities.append(Span(*parts[0], label))
        else:
            sentence.irregular.append(_by_characters(sentence, parts, label))
    return [sentence]


def _parts(index: Sequence[Any], label: str, where: str) -> list[tuple[int, int]]:
    """Word numbers as runs, `end` exclusive."""
    numbers = [records.integer(number, "a word in 'index'", where) for number in index]
    if not numbers:
        raise DataError(f"{where}: 'index' of entity {label} is empty; list its words")
    if any(one >= other for one, other in pairwise(numbers)):
        raise DataError(
            f"{where}: 'index' of entity {label} is not in order: {numbers}; "
            "list each of its words once, from left to right"
        )
    breaks = [i + 1 for i, (one, other) in enumerate(pairwise(numbers)) if other != one + 1]
    return [
        (numbers[first], numbers[last - 1] + 1)
        for first, last in pairwise([0, *breaks, len(numbers)])
    ]


def _by_characters(sentence: Sentence, parts: list[tuple[int, int]], label: str) -> Irregular:
    if parts[0][0] < 0 or parts[-1][1] > len(sentence.words):
        raise DataError(
            f"{sentence.where}: entity {label} {parts} lies outside its sentence of "
            f"{len(sentence.words)} words; 'index' counts words from 0"
        )
    _, offsets = sentence.characters()
    return Irregular(tuple((offsets[s][0], offsets[e - 1][1]) for s, e in parts), label)


def write(sentences: Iterable[Sentence], path: Path, options: NoOptions) -> None:
    records.write_array(map(_to_record, sentences), path)


def _to_record(sentence: Sentence) -> dict[str, Any]:
    entities: list[tuple[list[tuple[int, int]], str]] = [
        ([(start, end)], label) for start, end, label in sentence.entities
    ]
    for irregular in sentence.irregular:
        parts = word_parts(sentence, irregular)
        assert parts is not None  # by `holds`
        entities.append((parts, irregular.label))
    ner = [
        {"index": [i for start, end in parts for i in range(start, end)], "type": label}
        for parts, label in entities
    ]
    record = {"sentence": sentence.words, "ner": ner}
    return record if sentence.doc is None else {**record, "doc": sentence.doc}


FORMAT = Format(
    name="w2ner",
    summary="W2NER's JSON: entities as lists of words, discontinuous ones too",
    recognises=recognises,
    read=read,
    write=write,
    holds=Holds(irregular="parts"),
)
