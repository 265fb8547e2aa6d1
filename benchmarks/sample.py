"""The sentences that are measured on: an even sample of the corpus, or the corpus several times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from diffusionner.corpus import Sentence


def documents(sentences: Sequence[Sentence]) -> list[list[Sentence]]:
    """Neighbouring sentences of one document together; one without a document stands alone."""
    numbered = enumerate(sentences)
    runs = groupby(numbered, key=lambda one: one[0] if one[1].doc is None else one[1].doc)
    return [[sentence for _, sentence in run] for _, run in runs]


def draw(sentences: Sequence[Sentence], count: int) -> list[Sentence]:
    """About `count` sentences: whole documents from all over the corpus, or it all, repeated.

    A repetition has documents of its own, so that it is no context of the one before.
    """
    if count >= len(sentences):
        times = -(-count // len(sentences))
        return [_again(s, turn) for turn in range(times) for s in sentences][:count]
    groups = documents(sentences)
    wanted = max(1, round(count * len(groups) / len(sentences)))
    chosen = [groups[i * len(groups) // wanted] for i in range(wanted)]
    return [sentence for group in chosen for sentence in group]


def exactly(sentences: Sequence[Sentence], count: int) -> list[Sentence]:
    """As `draw`, but that many, however long the documents are."""
    some = draw(sentences, count)
    return draw(some, max(count, len(some)))[:count]


def spread(sentences: Sequence[Sentence], count: int) -> list[Sentence]:
    """So many single sentences (at least one, at most all) from all over the corpus."""
    count = min(max(1, count), len(sentences))
    return [sentences[i * len(sentences) // count] for i in range(count)]


def texts(sentences: Sequence[Sentence]) -> list[str]:
    """The words joined again, a text a document and a paragraph a sentence: so they are cut into
    the same sentences, and the encoder has the same work.
    """
    return [
        "\n\n".join(" ".join(sentence.words) for sentence in group)
        for group in documents(sentences)
    ]


def _again(sentence: Sentence, turn: int) -> Sentence:
    if turn == 0 or sentence.doc is None:
        return sentence
    return replace(sentence, doc=f"{sentence.doc} ({turn})")
