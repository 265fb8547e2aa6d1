"""Between documents, texts annotated by character, and sentences of words."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import regex

from diffusionner.corpus import Irregular, Sentence, Span
from diffusionner.errors import DataError
from diffusionner.text import split_sentences

WORDS = ("rules", "spaces")


@dataclass(frozen=True)
class TextOptions:
    """words: `rules` splits text as the model does; `spaces` at white space, a line a sentence."""

    words: str = "rules"

    def __post_init__(self) -> None:
        if self.words not in WORDS:
            raise ValueError(f"words is one of {', '.join(WORDS)}, not '{self.words}'")


@dataclass(slots=True)
class TextDocument:
    """A text and the annotations on it."""

    text: str
    annotations: list[Irregular] = field(default_factory=list)
    doc: str | None = None
    where: str = ""


def to_sentences(
    document: TextDocument,
    options: TextOptions | None = None,
    sentences: Sequence[Sequence[tuple[int, int]]] | None = None,
) -> list[Sentence]:
    """Split a document into sentences of words and give each its entities.

    sentences: the characters of the words of each, where the source says so. An annotation
    that reaches over a sentence's end joins the two.
    """
    text = document.text
    check_annotations(text, document.annotations, document.where)
    if sentences is None:
        sentences = split_text(text, (options or TextOptions()).words)
    joined = _join(sentences, document.annotations)
    result = [
        Sentence(
            words=[text[start:end] for start, end in offsets],
            doc=document.doc,
            where=document.where,
            text=text,
            offsets=list(offsets),
        )
        for offsets in joined
    ]
    if not result:
        if document.annotations:
            raise DataError(f"{document.where}: entities in a text without words; remove them")
        return []
    begins = [offsets[0][0] for offsets in joined]
    for annotation in document.annotations:
        number = max(0, bisect_right(begins, annotation.parts[0][0]) - 1)
        _place(result[number], annotation)
    return result


def _place(sentence: Sentence, annotation: Irregular) -> None:
    assert sentence.offsets is not None
    if len(annotation.parts) == 1:
        (start, end), label = annotation.parts[0], annotation.label
        first = bisect_left(sentence.offsets, (start, -1))
        last = bisect_left(sentence.offsets, end, key=lambda word: word[1])
        if (
            first <= last < len(sentence.offsets)
            and sentence.offsets[first][0] == start
            and sentence.offsets[last][1] == end
        ):
            sentence.entities.append(Span(first, last + 1, label))
            return
    sentence.irregular.append(Irregular(annotation.parts, annotation.label))


def to_documents(sentences: Iterable[Sentence]) -> Iterator[TextDocument]:
    """Put the sentences of a document together again.

    Sentences that share a text give it back as it was. Those that have none become a text of
    words joined by spaces, a sentence a line; without a document each is one of its own.
    """
    return map(_merge, gather(sentences))


def gather(sentences: Iterable[Sentence]) -> Iterator[list[Sentence]]:
    """The sentences of each document."""
    gathered: list[Sentence] = []
    for sentence in sentences:
        if gathered and not _together(gathered[-1], sentence):
            yield gathered
            gathered = []
        gathered.append(sentence)
    if gathered:
        yield gathered


def annotations_of(sentence: Sentence, shift: int = 0) -> list[Irregular]:
    """A sentence's entities by their characters, the irregular ones too."""
    _, offsets = sentence.characters()
    found = [
        Irregular(((offsets[start][0] + shift, offsets[end - 1][1] + shift),), label)
        for start, end, label in sentence.entities
    ]
    for parts, label in sentence.irregular:
        found.append(Irregular(tuple((s + shift, e + shift) for s, e in parts), label))
    return found


def follows(sentence: Sentence, previous: Sentence) -> bool:
    """Whether a sentence comes, right away or later, after another of the same text."""
    # Equal texts are not enough: two records may well say the same. Nor is one object enough:
    # Python has but one of each short string.
    if sentence.text is not previous.text or sentence.doc != previous.doc:
        return False
    if not sentence.offsets or not previous.offsets:
        return False
    return sentence.offsets[0][0] >= previous.offsets[-1][1]


def _together(one: Sentence, other: Sentence) -> bool:
    if one.text is not None or other.text is not None:
        return follows(other, one)
    return one.doc is not None and one.doc == other.doc


def _merge(sentences: Sequence[Sentence]) -> TextDocument:
    first = sentences[0]
    if first.text is not None:
        annotations = [a for sentence in sentences for a in annotations_of(sentence)]
        return TextDocument(first.text, annotations, first.doc, first.where)
    lines: list[str] = []
    annotations = []
    shift = 0
    for sentence in sentences:
        line, _ = sentence.characters()
        annotations += annotations_of(sentence, shift)
        lines.append(line)
        shift += len(line) + 1
    return TextDocument("\n".join(lines), annotations, first.doc, first.where)


def word_parts(sentence: Sentence, irregular: Irregular) -> list[tuple[int, int]] | None:
    """An irregular annotation's parts as words, `end` exclusive; None if it cuts through one."""
    _, offsets = sentence.characters()
    starts = {start: index for index, (start, _) in enumerate(offsets)}
    ends = {end: index + 1 for index, (_, end) in enumerate(offsets)}
    if any(start not in starts or end not in ends for start, end in irregular.parts):
        return None
    return [(starts[start], ends[end]) for start, end in irregular.parts]


def check_annotations(text: str, annotations: Iterable[Irregular], where: str) -> None:
    """Raise DataError when an annotation does not fit its text."""
    size = len(text)
    for parts, label in annotations:
        if not parts:
            raise DataError(f"{where}: entity {label} has no characters; give its parts")
        previous = 0
        for start, end in parts:
            if not 0 <= start < end <= size:
                raise DataError(
                    f"{where}: entity {label} [{start}, {end}) lies outside its text of "
                    f"{size} characters; offsets count characters from 0, end exclusive"
                )
            if start < previous:
                raise DataError(
                    f"{where}: the parts of entity {label} at {start} are not in order or "
                    "overlap; give them from left to right"
                )
            previous = end


def split_text(text: str, words: str) -> list[list[tuple[int, int]]]:
    """The characters of the words of each sentence, by rules or at spaces."""
    if words == "rules":
        return [list(zip(s.starts, s.ends, strict=True)) for s in split_sentences(text)]
    lines = ([m.span() for m in regex.finditer(r"\S+", text, pos=line.start(), endpos=line.end())]
             for line in regex.finditer(r"[^\n]+", text))  # fmt: skip
    return [line for line in lines if line]


def _join(
    sentences: Sequence[Sequence[tuple[int, int]]], annotations: Sequence[Irregular]
) -> list[list[tuple[int, int]]]:
    begins = [offsets[0][0] for offsets in sentences]
    # For each sentence, how many annotations it has in common with the one before: +1 where such
    # a run of sentences begins, -1 after its end, which takes no longer for longer runs.
    changes = [0] * (len(sentences) + 1)
    for parts, _ in annotations:
        first = max(0, bisect_right(begins, parts[0][0]) - 1)
        last = bisect_left(begins, parts[-1][1]) - 1
        if first < last:
            changes[first + 1] += 1
            changes[last + 1] -= 1
    result: list[list[tuple[int, int]]] = []
    for offsets, shared in zip(sentences, accumulate(changes), strict=False):
        if shared:
            result[-1].extend(offsets)
        else:
            result.append(list(offsets))
    return result
