"""Prodigy's JSON lines: one text per line, its tokens, and spans by characters and by tokens.

`{"text", "tokens": [{"text", "start", "end", "id", "ws"}], "spans": [{"start", "end", "label",
"token_start", "token_end"}], "answer", "meta"}`; only `token_end` is inclusive. A record with
`tokens` is one sentence with these words; otherwise the text is split. Records whose answer is not
`accept` are skipped. `meta.doc` is the document's name.

Writes one record per sentence with its slice of the text (see `document_slices`), which starts at
`meta.text_start`, so that words, sentences and the document's text can be restored. A span that
does not align with tokens has no `token_start` and `token_end`. Sentences without a text are
written with their words joined by spaces, and are read back with that text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from diffusionner.corpus import Irregular, Sentence
from diffusionner.errors import DataError
from diffusionner.formats import json_fields as fields
from diffusionner.formats.document_slices import join_slices, slice_documents
from diffusionner.formats.documents import (
    Offsets,
    TextDocument,
    TextOptions,
    character_annotations,
    to_sentences,
)
from diffusionner.formats.format import Capabilities, Format
from diffusionner.formats.json_files import read_values, write_lines
from diffusionner.formats.source import Sample, Source, shorten

_SHAPE = '{"text": "...", "spans": [{"start": 0, "end": 3, "label": "..."}]}'
_TOKEN = '{"text": "...", "start": 0, "end": 3, "id": 0, "ws": true}'
_ACCEPT = "accept"
_ANSWERS = (_ACCEPT, "reject", "ignore")


def recognises(sample: Sample) -> bool:
    """Check for a text with `spans`, with tokens that are objects, or with an answer."""
    if "text" not in sample.keys:
        return False
    if tokens := sample.members("tokens"):
        return all(isinstance(token, dict) for token in tokens)
    return any(
        isinstance(record.get("spans"), list) or record.get("answer") in _ANSWERS
        for record in sample.records
    )


def read(source: Source, options: TextOptions) -> Iterator[Sentence]:
    return join_slices(
        source.convert_each(
            read_values(source), lambda record, where: _convert(record, where, options)
        )
    )


def _convert(
    record: Any, where: str, options: TextOptions
) -> Iterable[tuple[int | None, Sentence]]:
    text = fields.get(record, "text", str, where, _SHAPE)
    answer = record.get("answer", _ACCEPT)
    if answer not in _ANSWERS:
        raise DataError(
            f"{where}: the answer must be one of {', '.join(_ANSWERS)}, not {shorten(repr(answer))}"
        )
    if answer != _ACCEPT:
        return []
    meta = record.get("meta") or {}
    if not isinstance(meta, dict):
        raise DataError(f"{where}: 'meta' must be an object, not {fields.describe(meta)}")
    spans = []
    if record.get("spans") is not None:
        spans = fields.get(record, "spans", list, where, _SHAPE)
    found = [fields.span(span, where, _SHAPE) for span in spans]
    annotations = [Irregular(((start, end),), label) for start, end, label in found]
    document = TextDocument(text, annotations, fields.document(meta, where), where)
    if record.get("tokens") is None:
        return [(None, sentence) for sentence in to_sentences(document, options)]
    offsets, ids = _tokens(record, where)
    for span in spans:
        _check_tokens(span, offsets, ids, where)
    # Other tools may use the key `text_start` for something that is not a number.
    begin = meta.get("text_start")
    return [
        (begin if type(begin) is int else None, sentence)
        for sentence in to_sentences(document, sentences=[offsets] if offsets else [])
    ]


def _tokens(record: dict[str, Any], where: str) -> tuple[Offsets, dict[int, int]]:
    """Return the characters of each token, and the index of each token by its id."""
    text = record["text"]
    offsets: Offsets = []
    ids: dict[int, int] = {}
    previous = 0
    for index, token in enumerate(fields.get(record, "tokens", list, where, _SHAPE)):
        start, end, word = (
            fields.get(token, key, object, where, _TOKEN) for key in ("start", "end", "text")
        )
        start = fields.integer(start, f"'start' of token {index}", where)
        end = fields.integer(end, f"'end' of token {index}", where)
        if not previous <= start < end <= len(text):
            raise DataError(
                f"{where}: token {index} at [{start}, {end}) is empty, overlaps the previous one "
                f"or lies outside its text of {len(text)} characters; leave out 'tokens' to have "
                "the text split"
            )
        if text[start:end] != word:
            raise DataError(
                f"{where}: token {index} is {shorten(repr(word))}, but the text has "
                f"{shorten(repr(text[start:end]))} at [{start}, {end}); leave out 'tokens' to "
                "have the text split"
            )
        ids[fields.integer(token.get("id", index), f"'id' of token {index}", where)] = index
        offsets.append((start, end))
        previous = end
    return offsets, ids


def _check_tokens(span: dict[str, Any], offsets: Offsets, ids: dict[int, int], where: str) -> None:
    """Raise DataError if a span's tokens contradict its characters."""
    start, end, label = span["start"], span["end"], span["label"]
    for key, side, expected in (("token_start", 0, start), ("token_end", 1, end)):
        if span.get(key) is None:
            continue
        index = ids.get(fields.integer(span[key], f"'{key}' of a span", where))
        if index is None or offsets[index][side] != expected:
            found = "there is none" if index is None else f"it is at {list(offsets[index])}"
            raise DataError(
                f"{where}: span {label} [{start}, {end}) has {key} {span[key]}, but {found}; "
                "correct one of them, or leave out the span's tokens (token_end is inclusive)"
            )


def write(sentences: Iterable[Sentence], path: Path, options: TextOptions) -> None:
    write_lines((_to_record(begin, part) for begin, part in slice_documents(sentences)), path)


def _to_record(begin: int, sentence: Sentence) -> dict[str, Any]:
    text, offsets = sentence.characters()
    tokens = [
        {"text": word, "start": start, "end": end, "id": number, "ws": text[end : end + 1] == " "}
        for number, (word, (start, end)) in enumerate(zip(sentence.words, offsets, strict=True))
    ]
    spans: list[dict[str, Any]] = [
        {"start": start, "end": end, "label": label}
        for ((start, end),), label in character_annotations(sentence)
    ]
    for span, entity in zip(spans, sentence.entities, strict=False):  # entities come first
        span["token_start"], span["token_end"] = entity.start, entity.end - 1
    record: dict[str, Any] = {"text": text, "tokens": tokens, "spans": spans, "answer": _ACCEPT}
    meta = fields.with_document({}, sentence.doc)
    if sentence.text is not None:
        meta["text_start"] = begin
    if meta:
        record["meta"] = meta
    return record


FORMAT = Format(
    name="prodigy",
    summary="Prodigy's JSON lines: a text with tokens and spans, accepted answers only",
    recognises=recognises,
    read=read,
    write=write,
    options=TextOptions,
    capabilities=Capabilities(irregular="contiguous", text=True),
)
