"""The JSON of DiffusionNER's reference code, which PIQN and SpERT share.

An array (JSON lines are read too) of `{"tokens": [...], "entities": [{"type", "start", "end"}],
"orig_id", "ltokens", "rtokens", "relations"}`; offsets count words, `end` is exclusive. Reads the
words, the entities and the document's name (`doc_id`, else `orig_id` or `org_id`); all else is
ignored. `ltokens` and `rtokens` repeat neighbouring sentences that are in the file anyway.

Writes `ltokens` and `rtokens` (all words of the previous and the next sentence of the document) and
`orig_id` (null without a document), which the reference code requires.

A types file, `{"entities": {"PER": {"short": "...", "verbose": "..."}}, "relations": {}}`, lists
the labels. With the option `types`, reading fails if a label is missing from that file, and writing
adds missing labels to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence, Span
from diffusionner.errors import nearest
from diffusionner.files import write_bytes
from diffusionner.formats.format import Format
from diffusionner.formats.json_files import parse_json, write_array
from diffusionner.formats.json_records import Record, convert_records
from diffusionner.formats.source import Sample, Source

_SHAPE = '{"tokens": ["..."], "entities": [{"type": "...", "start": 0, "end": 1}]}'
_TYPES = '{"entities": {"PER": {"short": "PER", "verbose": "Person"}}, "relations": {}}'
_DOCUMENT = ("doc_id", "orig_id", "org_id")
_OWN_KEYS = {"ltokens", "rtokens", "relations", "orig_id", "org_id"}


@dataclass(frozen=True)
class ReferenceOptions:
    types: str = ""  # path of the types file


def recognises(sample: Sample) -> bool:
    """Check for entities with `type` instead of `label`; without entities, for other keys."""
    keys = sample.keys
    if not {"tokens", "entities"} <= keys or "label" in keys:
        return False
    entities = [e for e in sample.members("entities") if isinstance(e, dict)]
    if entities:
        return all("type" in entity and "label" not in entity for entity in entities)
    return bool(keys & _OWN_KEYS)


def read(source: Source, options: ReferenceOptions) -> Iterator[Sentence]:
    known = _read_types(Path(options.types))["entities"] if options.types else None

    def convert(record: Record) -> Iterator[Sentence]:
        words = record.words("tokens")
        spans = [Span(*entity.span(label="type")) for entity in record.objects("entities")]
        for span in spans:
            if known is not None and span.label not in known:
                raise record.error(
                    f"type '{span.label}' is not in {options.types}; {nearest(span.label, known)}"
                )
        names = filter(None, map(record.document, _DOCUMENT))
        yield Sentence(words, spans, next(names, None), record.where)

    return convert_records(source, _SHAPE, convert)


def write(sentences: Iterable[Sentence], path: Path, options: ReferenceOptions) -> None:
    types = _read_types(Path(options.types), create=True) if options.types else None
    labels: set[str] = set()
    write_array(_to_records(sentences, labels), path)
    if types is not None:
        for label in sorted(labels - set(types["entities"])):
            types["entities"][label] = {"short": label, "verbose": label}
        content = json.dumps(types, ensure_ascii=False, indent=2) + "\n"
        write_bytes(Path(options.types), content.encode())


def _to_records(sentences: Iterable[Sentence], labels: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the records and collect the labels in use."""
    before: Sentence | None = None
    current: Sentence | None = None
    for after in chain(sentences, [None]):
        if current is not None:
            labels.update(span.label for span in current.entities)
            yield {
                "tokens": current.words,
                "entities": [
                    {"type": label, "start": start, "end": end}
                    for start, end, label in current.entities
                ],
                "relations": [],
                "orig_id": current.doc,
                "ltokens": _context(before, current),
                "rtokens": _context(after, current),
            }
        before, current = current, after


def _context(neighbour: Sentence | None, current: Sentence) -> list[str]:
    if neighbour is None or current.doc is None or neighbour.doc != current.doc:
        return []
    return neighbour.words


def _read_types(path: Path, create: bool = False) -> dict[str, Any]:
    """Read a types file; if it may be created and does not exist, return one without types."""
    if create and not path.exists():
        return {"entities": {}, "relations": {}}
    types = Record(parse_json(Source(path).text(), f"{path}:1"), f"{path}:1", _TYPES)
    types.get("entities", dict)
    return types.fields


FORMAT = Format(
    name="reference",
    summary="JSON of DiffusionNER's reference code, PIQN and SpERT: tokens, entities with a type",
    recognises=recognises,
    read=read,
    write=write,
    options=ReferenceOptions,
)
