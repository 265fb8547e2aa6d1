"""The text of a document in pieces, for formats that write a record for each sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, pairwise

from diffusionner.corpus import Irregular, Sentence
from diffusionner.formats.texts import follows


def cut(sentences: Iterable[Sentence]) -> Iterator[tuple[int, Sentence]]:
    """Each sentence as if its piece of the text were all of it, and where that piece begins.

    A piece reaches to the first word of the next sentence. A sentence without text stays as it is.
    """
    begin = 0
    for sentence, following in pairwise(chain(sentences, [None])):
        assert sentence is not None
        if sentence.text is None or not sentence.offsets:
            yield 0, sentence
            begin = 0
            continue
        end = _border(sentence, following) if following is not None else None
        piece = _shifted(sentence, -begin)
        piece.text = sentence.text[begin:end]
        yield begin, piece
        begin = end or 0


def _border(sentence: Sentence, following: Sentence) -> int | None:
    """Where the piece of the following sentence begins, if its annotations let it be cut there."""
    if not following.offsets or not follows(following, sentence):
        return None
    border = following.offsets[0][0]
    if any(parts[-1][1] > border for parts, _ in sentence.irregular):
        return None
    if any(parts[0][0] < border for parts, _ in following.irregular):
        return None
    return border


def join(pieces: Iterable[tuple[int | None, Sentence]]) -> Iterator[Sentence]:
    """What `cut` took apart; a sentence whose piece begins nowhere is whole."""
    gathered: list[tuple[int, Sentence]] = []
    end = 0
    for begin, sentence in pieces:
        if gathered and not (begin == end and sentence.doc == gathered[-1][1].doc):
            yield from _put_together(gathered)
            gathered = []
        if begin is None:
            yield sentence
        else:
            assert sentence.text is not None
            gathered.append((begin, sentence))
            end = begin + len(sentence.text)
    yield from _put_together(gathered)


def _put_together(pieces: list[tuple[int, Sentence]]) -> Iterator[Sentence]:
    text = "".join(sentence.text or "" for _, sentence in pieces)
    for begin, sentence in pieces:
        whole = _shifted(sentence, begin - pieces[0][0])
        whole.text = text
        yield whole


def _shifted(sentence: Sentence, shift: int) -> Sentence:
    return replace(
        sentence,
        offsets=[(start + shift, end + shift) for start, end in sentence.offsets or ()],
        irregular=[
            Irregular(tuple((start + shift, end + shift) for start, end in parts), label)
            for parts, label in sentence.irregular
        ],
    )
