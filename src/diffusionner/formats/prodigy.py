"""Prodigy's JSON lines: a text a line, its tokens, and spans by characters and by tokens.

`{"text", "tokens": [{"text", "start", "end", "id", "ws"}], "spans": [{"start", "end", "label",
"token_start", "token_end"}], "answer", "meta"}`, where only `token_end` is inclusive. A record with
`tokens` is one sentence and they are its words; without, the text is split. Only accepted answers
are read, and records without an answer. `meta.doc` has the document's name.

Written is a record for each sentence with its piece of the text (see `pieces`), which begins at
`meta.text_start` of the whole: so the words, the sentences and the document's text come back. A
span that cuts a word has no `token_start` and `token_end`. Words without a text are joined by
spaces, and come back with that as their text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from diffusionner.corpus import Irregular, Sentence
from diffusionner.errors import DataError
from diffusionner.formats import pieces, records
from diffusionner.formats.base import Format, Holds, Sample, Source
from diffusionner.formats.texts import TextDocument, TextOptions, annotations_of, to_sentences

_SHAPE = '{"text": "...", "spans": [{"start": 0, "end": 3, "label": "..."}]}'
_TOKEN = '{"text": "...", "start": 0, "end": 3, "id": 0, "ws": true}'
_ANSWERS = ("accept", "reject", "ignore")


def recognises(sample: Sample) -> bool:
    """A text with `spans`, with tokens that are objects, or with one of Prodigy's answers."""
    if "text" not in sample.keys:
        return False
    if tokens := sample.members("tokens"):
        return all(isinstance(token, dict) for token in tokens)
    return any(
        isinstance(record.get("spans"), list) or record.get("answer") in _ANSWERS
        for record in sample.records
    )


def read(source: Source, options: TextOptions) -> Iterator[Sentence]:
    found = source.each(source.records(), lambda record, at: _convert(record, at, options))
    return pieces.join(found)


def _convert(
    record: Any, where: str, options: TextOptions
) -> Iterable[tuple[int | None, Sentence]]:
    text = records.member(record, "text", str, where, _SHAPE)
    answer = record.get("answer", _ANSWERS[0])
    if answer not in _ANSWERS:
        raise DataError(
            f"{where}: the answer must be one of {', '.join(_ANSWERS)}, "
            f"not {records.short(repr(answer))}"
        )
    if answer != _ANSWERS[0]:
        return []
    meta = record.get("meta") or {}
    if not isinstance(meta, dict):
        raise DataError(f"{where}: 'meta' must be an object, not {records.name(meta)}")
    document = TextDocument(text, [], records.document(meta.get("doc"), "meta.doc", where), where)
    spans = []
    if record.get("spans") is not None:
        spans = records.member(record, "spans", list, where, _SHAPE)
    if record.get("tokens") is None:
        document.annotations = [_annotation(span, where) for span in spans]
        return [(None, sentence) for sentence in to_sentences(document, options)]
    offsets, ids = _tokens(record, where)
    for span in spans:
        annotation = _annotation(span, where)
        _check_tokens(span, annotation, offsets, ids, where)
        document.annotations.append(annotation)
    sentences = to_sentences(document, sentences=[offsets] if offsets else [])
    # Elsewhere the key may be in use for something else: then it is no number.
    begin = meta.get("text_start")
    return [(begin if type(begin) is int else None, sentence) for sentence in sentences]


def _annotation(span: Any, where: str) -> Irregular:
    start, end, label = (
        records.member(span, key, object, where, _SHAPE) for key in ("start", "end", "label")
    )
    start = records.integer(start, "'start' of a span", where)
    end = records.integer(end, "'end' of a span", where)
    return Irregular(((start, end),), records.label(label, where))


def _tokens(record: dict[str, Any], where: str) -> tuple[list[tuple[int, int]], dict[int, int]]:
    """The characters of each token, and which token has which id."""
    text = record["text"]
    offsets: list[tuple[int, int]] = []
    ids: dict[int, int] = {}
    previous = 0
    for index, token in enumerate(records.member(record, "tokens", list, where, _SHAPE)):
        start, end, word = (
            records.member(token, key, object, where, _TOKEN) for key in ("start", "end", "text")
        )
        start = records.integer(start, f"'start' of token {index}", where)
        end = records.integer(end, f"'end' of token {index}", where)
        if not previous <= start < end <= len(text):
            raise DataError(
                f"{where}: token {index} at [{start}, {end}) is empty, overlaps the one before or "
                f"lies outside its text of {len(text)} characters; leave out 'tokens' to have the "
                "text split"
            )
        if text[start:end] != word:
            raise DataError(
                f"{where}: token {index} is {records.short(repr(word))}, but the text has "
                f"{records.short(repr(text[start:end]))} at [{start}, {end}); leave out 'tokens' "
                "to have the text split"
            )
        ids[records.integer(token.get("id", index), f"'id' of token {index}", where)] = index
        offsets.append((start, end))
        previous = end
    return offsets, ids


def _check_tokens(
    span: dict[str, Any],
    annotation: Irregular,
    offsets: Sequence[tuple[int, int]],
    ids: dict[int, int],
    where: str,
) -> None:
    """Raise DataError if a span's tokens are not its characters."""
    (start, end), label = annotation.parts[0], annotation.label
    for key, side, expected in (("token_start", 0, start), ("token_end", 1, end)):
        if span.get(key) is None:
            continue
        index = ids.get(records.integer(span[key], f"'{key}' of a span", where))
        if index is None or offsets[index][side] != expected:
            found = "there is none" if index is None else f"it is at {list(offsets[index])}"
            raise DataError(
                f"{where}: span {label} [{start}, {end}) has {key} {span[key]}, but {found}; "
                "correct one of them, or leave out the span's tokens (token_end is inclusive)"
            )


def write(sentences: Iterable[Sentence], path: Path, options: TextOptions) -> None:
    records.write_lines((_to_record(*piece) for piece in pieces.cut(sentences)), path)


def _to_record(begin: int, sentence: Sentence) -> dict[str, Any]:
    text, offsets = sentence.characters()
    tokens = [
        {"text": word, "start": start, "end": end, "id": number, "ws": text[end : end + 1] == " "}
        for number, (word, (start, end)) in enumerate(zip(sentence.words, offsets, strict=True))
    ]
    spans: list[dict[str, Any]] = []
    for ((start, end),), label in annotations_of(sentence):
        spans.append({"start": start, "end": end, "label": label})
    for span, entity in zip(spans, sentence.entities, strict=False):  # they come first
        span["token_start"], span["token_end"] = entity.start, entity.end - 1
    record: dict[str, Any] = {"text": text, "tokens": tokens, "spans": spans, "answer": "accept"}
    meta: dict[str, Any] = {} if sentence.doc is None else {"doc": sentence.doc}
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
    holds=Holds(irregular="cut", text=True),
)
