"""W2NER's JSON: an array of `{"sentence": [...], "ner": [{"index": [3, 4, 6], "type": "..."}]}`.

`index` lists the words of an entity in order; one with gaps is discontinuous. `doc`, a key of ours
that W2NER ignores, is the document's name; other keys, such as the `word` of the Chinese corpora,
are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence
from diffusionner.formats.documents import Offsets, add_fragments
from diffusionner.formats.format import Capabilities, Format, NoOptions
from diffusionner.formats.json_files import write_array
from diffusionner.formats.json_records import Record, convert_records, with_document
from diffusionner.formats.source import Sample, Source

_SHAPE = '{"sentence": ["..."], "ner": [{"index": [0, 1], "type": "..."}]}'


def recognises(sample: Sample) -> bool:
    # A truncated record has keys but no values: it counts as ours unless `sentence` is a string.
    return {"sentence", "ner"} <= sample.keys and not any(
        isinstance(record.get("sentence"), str) for record in sample.records
    )


def read(source: Source, options: NoOptions) -> Iterator[Sentence]:
    return convert_records(source, _SHAPE, _convert)


def _convert(record: Record) -> Iterator[Sentence]:
    sentence = Sentence(record.words("sentence"), doc=record.document(), where=record.where)
    for entity in record.objects("ner"):
        label = entity.label("type")
        add_fragments(sentence, _fragments(entity, label), label)
    yield sentence


def _fragments(entity: Record, label: str) -> Offsets:
    """Group word numbers into fragments, `end` exclusive."""
    index = entity.get("index", list)
    numbers = [entity.check_integer(number, "a word in 'index'") for number in index]
    if not numbers:
        raise entity.error(f"'index' of entity {label} is empty; list its words")
    if any(one >= other for one, other in pairwise(numbers)):
        raise entity.error(
            f"'index' of entity {label} is not in order: {numbers}; list each of its words once, "
            "from left to right"
        )
    breaks = [i + 1 for i, (one, other) in enumerate(pairwise(numbers)) if other != one + 1]
    bounds = pairwise([0, *breaks, len(numbers)])
    return [(numbers[first], numbers[last - 1] + 1) for first, last in bounds]


def write(sentences: Iterable[Sentence], path: Path, options: NoOptions) -> None:
    write_array(map(_to_record, sentences), path)


def _to_record(sentence: Sentence) -> dict[str, Any]:
    entities = [
        {"index": [i for start, end in e.fragments for i in range(start, end)], "type": e.label}
        for e in sentence.all_entities
    ]
    return with_document({"sentence": sentence.words, "ner": entities}, sentence.doc)


FORMAT = Format(
    name="w2ner",
    summary="W2NER's JSON: entities as lists of words, including discontinuous ones",
    recognises=recognises,
    read=read,
    write=write,
    capabilities=Capabilities(discontinuous=True),
)
