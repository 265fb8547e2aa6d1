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

from diffusionner.corpus import Sentence
from diffusionner.formats.document_slices import join_slices, slice_documents
from diffusionner.formats.documents import (
    Offsets,
    TextDocument,
    TextOptions,
    character_annotations,
    contiguous,
    to_sentences,
)
from diffusionner.formats.format import Capabilities, Format
from diffusionner.formats.json_files import write_lines
from diffusionner.formats.json_records import Record, convert_records, with_document
from diffusionner.formats.source import Sample, Source, shorten

_SHAPE = '{"text": "...", "spans": [{"start": 0, "end": 3, "label": "..."}]}'
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
    return join_slices(convert_records(source, _SHAPE, lambda record: _convert(record, options)))


def _convert(record: Record, options: TextOptions) -> list[tuple[int | None, Sentence]]:
    text = record.get("text", str)
    answer = record.fields.get("answer", _ACCEPT)
    if answer not in _ANSWERS:
        answers = ", ".join(_ANSWERS)
        raise record.error(f"the answer must be one of {answers}, not {shorten(repr(answer))}")
    if answer != _ACCEPT:
        return []
    meta = Record(record.fields.get("meta") or {}, record.where, '{"meta": {"doc": "..."}}')
    spans = (
        record.objects("spans") if record.has("spans") and record.optional("spans", list) else []
    )
    annotations = [contiguous(*span.span()) for span in spans]
    document = TextDocument(text, annotations, meta.document(), record.where)
    if record.optional("tokens", list) is None:
        return [(None, sentence) for sentence in to_sentences(document, options)]
    offsets, ids = _tokens(record, text)
    for span in spans:
        _check_tokens(span, offsets, ids)
    # Other tools may use the key `text_start` for something that is not a number.
    begin = meta.fields.get("text_start")
    return [
        (begin if type(begin) is int else None, sentence)
        for sentence in to_sentences(document, sentences=[offsets] if offsets else [])
    ]


def _tokens(record: Record, text: str) -> tuple[Offsets, dict[int, int]]:
    """Return the characters of each token, and the index of each token by its id."""
    offsets: Offsets = []
    ids: dict[int, int] = {}
    previous = 0
    for index, token in enumerate(record.objects("tokens")):
        start, end, word = token.integer("start"), token.integer("end"), token.get("text")
        problem = ""
        if not previous <= start < end <= len(text):
            size = f"{len(text)} characters"
            problem = f"is empty, overlaps the previous one or lies outside its text of {size}"
        elif text[start:end] != word:
            problem = f"is {shorten(repr(word))}, but the text has {shorten(repr(text[start:end]))}"
        if problem:
            problem = f"token {index} at [{start}, {end}) {problem}"
            raise record.error(f"{problem}; leave out 'tokens' to have the text split")
        ids[token.integer("id") if "id" in token.fields else index] = index
        offsets.append((start, end))
        previous = end
    return offsets, ids


def _check_tokens(span: Record, offsets: Offsets, ids: dict[int, int]) -> None:
    """Raise DataError if a span's tokens contradict its characters."""
    start, end, label = span.span()
    for key, side, expected in (("token_start", 0, start), ("token_end", 1, end)):
        if span.fields.get(key) is None:
            continue
        number = span.integer(key)
        index = ids.get(number)
        if index is None or offsets[index][side] != expected:
            found = "there is none" if index is None else f"it is at {list(offsets[index])}"
            raise span.error(
                f"span {label} [{start}, {end}) has {key} {number}, but {found}; correct one of "
                "them, or leave out the span's tokens (token_end is inclusive)"
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
    meta = with_document({}, sentence.doc)
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
    capabilities=Capabilities(irregular=True, text=True),
)
