"""The JSON of DiffusionNER's reference code, which PIQN and SpERT share.

An array (JSON lines are read too) of `{"tokens": [...], "entities": [{"type", "start", "end"}],
"orig_id", "ltokens", "rtokens", "relations"}`; offsets count words, `end` is exclusive. Read are
the words, the entities and, as the document's name, `doc_id`, else `orig_id` or `org_id`. All else
is ignored: `ltokens` and `rtokens` repeat words of the neighbouring sentences, which stand in the
file as sentences of their own; relations, parts of speech and the like are not what we look for.

Written are `ltokens` and `rtokens`, all words of the sentence before and of the one after in the
same document, and `orig_id` (null if there is no document), which the reference code asks for.

A types file, `{"entities": {"PER": {"short": "...", "verbose": "..."}}, "relations": {}}`, lists
the labels. With the option `types` a corpus is read only if its labels are all there; when one is
written, the labels that the file does not have yet are added to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError, nearest
from diffusionner.files import write_bytes
from diffusionner.formats import records
from diffusionner.formats.base import Format, Holds, Sample, Source

_SHAPE = '{"tokens": ["..."], "entities": [{"type": "...", "start": 0, "end": 1}]}'
_TYPES = '{"entities": {"PER": {"short": "PER", "verbose": "Person"}}, "relations": {}}'
_DOCUMENT = ("doc_id", "orig_id", "org_id")
_OWN_KEYS = {"ltokens", "rtokens", "relations", "orig_id", "org_id"}


@dataclass(frozen=True)
class ReferenceOptions:
    types: str = ""  # path of the types file


def recognises(sample: Sample) -> bool:
    """Entities have a `type` where ours have a `label`; without any, other keys must tell."""
    keys = sample.keys
    if not {"tokens", "entities"} <= keys or "label" in keys:
        return False
    entities = [e for e in sample.members("entities") if isinstance(e, dict)]
    if entities:
        return all("type" in entity and "label" not in entity for entity in entities)
    return bool(keys & _OWN_KEYS)


def read(source: Source, options: ReferenceOptions) -> Iterator[Sentence]:
    known = _read_types(Path(options.types))["entities"] if options.types else None

    def convert(record: Any, where: str) -> list[Sentence]:
        sentence = _sentence(record, where)
        for span in sentence.entities:
            if known is not None and span.label not in known:
                raise DataError(
                    f"{where}: type '{span.label}' is not in {options.types}; "
                    f"{nearest(span.label, known)}"
                )
        return [sentence]

    return source.each(source.records(), convert)


def _sentence(record: Any, where: str) -> Sentence:
    records.member(record, "tokens", object, where, _SHAPE)
    words = records.words(record["tokens"], "tokens", where)
    entities = []
    for entity in records.member(record, "entities", list, where, _SHAPE):
        for key in ("type", "start", "end"):
            records.member(entity, key, object, where, _SHAPE)
        start = records.integer(entity["start"], "'start' of an entity", where)
        end = records.integer(entity["end"], "'end' of an entity", where)
        entities.append(Span(start, end, records.label(entity["type"], where)))
    names = (records.document(record.get(key), key, where) for key in _DOCUMENT)
    return Sentence(words, entities, next(filter(None, names), None), where)


def write(sentences: Iterable[Sentence], path: Path, options: ReferenceOptions) -> None:
    types = _read_types(Path(options.types), missing=True) if options.types else None
    labels: set[str] = set()
    records.write_array(_to_records(sentences, labels), path)
    if types is not None:
        for label in sorted(labels - set(types["entities"])):
            types["entities"][label] = {"short": label, "verbose": label}
        content = json.dumps(types, ensure_ascii=False, indent=2) + "\n"
        write_bytes(Path(options.types), content.encode())


def _to_records(sentences: Iterable[Sentence], labels: set[str]) -> Iterator[dict[str, Any]]:
    """The records, each when the sentence after it is known; `labels` collects those in use."""
    before: Sentence | None = None
    current: Sentence | None = None
    for after in sentences:
        if current is not None:
            yield _to_record(before, current, after)
        labels.update(span.label for span in after.entities)
        before, current = current, after
    if current is not None:
        yield _to_record(before, current, None)


def _to_record(
    before: Sentence | None, current: Sentence, after: Sentence | None
) -> dict[str, Any]:
    return {
        "tokens": current.words,
        "entities": [
            {"type": label, "start": start, "end": end} for start, end, label in current.entities
        ],
        "relations": [],
        "orig_id": current.doc,
        "ltokens": _context(before, current),
        "rtokens": _context(after, current),
    }


def _context(neighbour: Sentence | None, current: Sentence) -> list[str]:
    if neighbour is None or current.doc is None or neighbour.doc != current.doc:
        return []
    return neighbour.words


def _read_types(path: Path, missing: bool = False) -> dict[str, Any]:
    """A types file; if it may be missing, one without types."""
    if missing and not path.exists():
        return {"entities": {}, "relations": {}}
    text = Source(path).text()
    try:
        types = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not valid JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}:1: JSON that cannot be decoded ({error})") from error
    records.member(types, "entities", dict, f"{path}:1", _TYPES)
    records.check_surrogates(types, text, f"{path}:1")
    return types


FORMAT = Format(
    name="reference",
    summary="JSON of DiffusionNER's reference code, PIQN and SpERT: tokens, entities with a type",
    recognises=recognises,
    read=read,
    write=write,
    options=ReferenceOptions,
    holds=Holds(),
)
