"""Slices of document texts, for formats that write one record per sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, pairwise

from diffusionner.corpus import Irregular, Sentence
from diffusionner.formats.documents import follows_in_text


def slice_documents(sentences: Iterable[Sentence]) -> Iterator[tuple[int, Sentence]]:
    """Yield each sentence with its slice of the text, preceded by the start of that slice.

    A slice extends to the first word of the next sentence. Offsets are relative to the slice.
    Sentences without a text are unchanged.
    """
    begin = 0
    for sentence, following in pairwise(chain(sentences, [None])):
        assert sentence is not None
        if sentence.text is None or not sentence.offsets:
            yield 0, sentence
            begin = 0
            continue
        end = None if following is None else _boundary(sentence, following)
        yield begin, _shifted(sentence, -begin, sentence.text[begin:end])
        begin = end or 0


def _boundary(sentence: Sentence, following: Sentence) -> int | None:
    """Return the start of the following slice, or None if the text cannot be split there."""
    if not following.offsets or not follows_in_text(following, sentence):
        return None
    boundary = following.offsets[0][0]
    if any(parts[-1][1] > boundary for parts, _ in sentence.irregular):
        return None
    if any(parts[0][0] < boundary for parts, _ in following.irregular):
        return None
    return boundary


def join_slices(slices: Iterable[tuple[int | None, Sentence]]) -> Iterator[Sentence]:
    """Undo `slice_documents`; sentences whose slice has no start are unchanged."""
    group: list[tuple[int, Sentence]] = []
    end = 0
    for begin, sentence in slices:
        if group and not (begin == end and sentence.doc == group[-1][1].doc):
            yield from _join(group)
            group = []
        if begin is None:
            yield sentence
        else:
            group.append((begin, sentence))
            end = begin + len(sentence.text or "")
    yield from _join(group)


def _join(slices: list[tuple[int, Sentence]]) -> Iterator[Sentence]:
    text = "".join(sentence.text or "" for _, sentence in slices)
    for begin, sentence in slices:
        yield _shifted(sentence, begin - slices[0][0], text)


def _shifted(sentence: Sentence, shift: int, text: str) -> Sentence:
    return replace(
        sentence,
        text=text,
        offsets=[(start + shift, end + shift) for start, end in sentence.offsets or ()],
        irregular=[
            Irregular(tuple((start + shift, end + shift) for start, end in parts), label)
            for parts, label in sentence.irregular
        ],
    )
