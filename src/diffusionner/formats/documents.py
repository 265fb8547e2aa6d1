"""Conversion between documents (text with annotated characters) and sentences of words."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import regex

from diffusionner.corpus import Discontinuous, Irregular, Sentence, Span, check_fragments
from diffusionner.errors import DataError
from diffusionner.text import split_sentences

_WORDS = ("rules", "spaces")

Offsets = list[tuple[int, int]]


@dataclass(frozen=True)
class TextOptions:
    """words: `rules` splits text as the model does; `spaces` at white space, a sentence a line."""

    words: str = "rules"

    def __post_init__(self) -> None:
        if self.words not in _WORDS:
            raise ValueError(f"words is one of {', '.join(_WORDS)}, not '{self.words}'")


class Annotation(NamedTuple):
    """A labelled part of a text, or several; `parts` are character offsets in order."""

    parts: tuple[tuple[int, int], ...]
    label: str


@dataclass(slots=True)
class TextDocument:
    """A text with annotations by character."""

    text: str
    annotations: list[Annotation] = field(default_factory=list)
    doc: str | None = None
    where: str = ""


def contiguous(start: int, end: int, label: str) -> Annotation:
    """Return an annotation that has one part."""
    return Annotation(((start, end),), label)


def to_sentences(
    document: TextDocument,
    options: TextOptions | None = None,
    sentences: Sequence[Offsets] | None = None,
) -> list[Sentence]:
    """Split a document into sentences with entities.

    sentences: word offsets per sentence, if the source has them. Sentences that share an
    annotation are joined.
    """
    text = document.text
    check_annotations(text, document.annotations, document.where)
    if sentences is None:
        sentences = split_text(text, (options or TextOptions()).words)
    if not sentences:
        if document.annotations:
            raise DataError(f"{document.where}: entities in a text without words; remove them")
        return []
    joined = _join_across_annotations(sentences, document.annotations)
    result = [
        Sentence(
            words=[text[start:end] for start, end in offsets],
            doc=document.doc,
            where=document.where,
            text=text,
            offsets=offsets,
        )
        for offsets in joined
    ]
    starts = [offsets[0][0] for offsets in joined]
    for annotation in document.annotations:
        number = max(0, bisect_right(starts, annotation.parts[0][0]) - 1)
        add_annotation(result[number], annotation)
    return result


def split_text(text: str, words: str) -> list[Offsets]:
    """Return the word offsets of each sentence, split by rules or at white space."""
    if words == "rules":
        return [list(zip(s.starts, s.ends, strict=True)) for s in split_sentences(text)]
    lines = ([m.span() for m in regex.finditer(r"\S+", text, pos=line.start(), endpos=line.end())]
             for line in regex.finditer(r"[^\n]+", text))  # fmt: skip
    return [line for line in lines if line]


def _join_across_annotations(
    sentences: Sequence[Offsets], annotations: Sequence[Annotation]
) -> list[Offsets]:
    starts = [offsets[0][0] for offsets in sentences]
    # Number of annotations that each sentence shares with the previous one, as differences:
    # linear in the number of annotations, however many sentences they cover.
    changes = [0] * (len(sentences) + 1)
    for parts, _ in annotations:
        first = max(0, bisect_right(starts, parts[0][0]) - 1)
        last = bisect_left(starts, parts[-1][1]) - 1
        if first < last:
            changes[first + 1] += 1
            changes[last + 1] -= 1
    result: list[Offsets] = []
    for offsets, shared in zip(sentences, accumulate(changes), strict=False):
        if shared:
            result[-1].extend(offsets)
        else:
            result.append(list(offsets))
    return result


def add_annotation(sentence: Sentence, annotation: Annotation) -> None:
    """Add an annotation as an entity if its parts are whole words, else as irregular."""
    _, offsets = sentence.characters()
    fragments: Offsets = []
    for part in _join_touching(annotation.parts):
        first = bisect_left(offsets, (part[0], -1))
        last = bisect_left(offsets, part[1], key=lambda word: word[1])
        if not first <= last < len(offsets) or (offsets[first][0], offsets[last][1]) != part:
            sentence.irregular.append(Irregular(*annotation))
            return
        fragments.append((first, last + 1))
    add_fragments(sentence, fragments, annotation.label)


def add_fragments(sentence: Sentence, fragments: Iterable[tuple[int, int]], label: str) -> None:
    """Add an entity given by fragments of words; consecutive words are one fragment."""
    joined = _join_touching(fragments)
    if len(joined) == 1:
        sentence.entities.append(Span(*joined[0], label))
        return
    entity = Discontinuous(tuple(joined), label)
    check_fragments(entity, len(sentence.words), sentence.where or "sentence")
    sentence.discontinuous.append(entity)


def _join_touching(parts: Iterable[tuple[int, int]]) -> Offsets:
    joined: Offsets = []
    for start, end in parts:
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, end))
    return joined


def check_annotations(text: str, annotations: Iterable[Annotation], where: str) -> None:
    """Raise DataError if an annotation lies outside its text or its parts are not in order."""
    size = len(text)
    for parts, label in annotations:
        if not parts:
            raise DataError(f"{where}: entity {label} has no characters; give its fragments")
        previous = 0
        for start, end in parts:
            if start == end:
                raise DataError(f"{where}: entity {label} [{start}, {end}) is empty; remove it")
            if not 0 <= start < end <= size:
                raise DataError(
                    f"{where}: entity {label} [{start}, {end}) lies outside its text of "
                    f"{size} characters; offsets count characters from 0, end exclusive"
                )
            if start < previous:
                raise DataError(
                    f"{where}: the fragment [{start}, {end}) of entity {label} starts before the "
                    f"end of the one before, {previous}; give fragments from left to right"
                )
            previous = end


def check_pair(text: Path, annotations: Path) -> None:
    """Raise DataError if one of the two files of a standoff document is missing."""
    for path, other in ((text, annotations), (annotations, text)):
        if not path.is_file():
            raise DataError(
                f"{other}: {path.name} is missing; a text and its annotations (even if there are "
                "none) are two files with the same name"
            )


def to_documents(sentences: Iterable[Sentence]) -> Iterator[TextDocument]:
    """Reassemble documents from their sentences.

    Sentences that share a text restore it. Without a text, words are joined by spaces, one
    sentence per line; a sentence without a text and without a document becomes its own document.
    """
    for group in group_by_document(sentences):
        first = group[0]
        text, annotations, shift = first.text, [], 0
        if text is None:
            text = "\n".join(sentence.characters()[0] for sentence in group)
        for sentence in group:
            annotations += character_annotations(sentence, shift)
            shift += len(sentence.characters()[0]) + 1 if first.text is None else 0
        yield TextDocument(text, annotations, first.doc, first.where)


def group_by_document(sentences: Iterable[Sentence]) -> Iterator[list[Sentence]]:
    """Yield the consecutive sentences of each document."""
    group: list[Sentence] = []
    for sentence in sentences:
        if group:
            last = group[-1]
            if last.text is not None or sentence.text is not None:
                same = follows_in_text(sentence, last)
            else:
                same = last.doc is not None and last.doc == sentence.doc
            if not same:
                yield group
                group = []
        group.append(sentence)
    if group:
        yield group


def follows_in_text(sentence: Sentence, previous: Sentence) -> bool:
    """Return True if a sentence comes after another one in the same text."""
    # Comparing text by value would merge records that happen to have equal texts. Identity alone
    # would too, because Python caches short strings; hence the comparison of offsets.
    if sentence.text is not previous.text or sentence.doc != previous.doc:
        return False
    if not sentence.offsets or not previous.offsets:
        return False
    return sentence.offsets[0][0] >= previous.offsets[-1][1]


def character_annotations(sentence: Sentence, shift: int = 0) -> list[Annotation]:
    """Return all annotations of a sentence by character: contiguous entities come first."""
    _, offsets = sentence.characters()
    of_words = (
        ([(offsets[start][0], offsets[end - 1][1]) for start, end in e.fragments], e.label)
        for e in sentence.all_entities
    )
    return [
        Annotation(tuple((start + shift, end + shift) for start, end in parts), label)
        for parts, label in (*of_words, *sentence.irregular)
    ]
