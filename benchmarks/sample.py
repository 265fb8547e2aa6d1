"""Sentences to measure on: an even sample of the corpus, or the corpus several times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from diffusionner.corpus import Sentence


def documents(sentences: Sequence[Sentence]) -> list[list[Sentence]]:
    """Group neighbouring sentences by document; a sentence without one is a group of its own."""
    numbered = enumerate(sentences)
    runs = groupby(numbered, key=lambda one: one[0] if one[1].doc is None else one[1].doc)
    return [[sentence for _, sentence in run] for _, run in runs]


def draw(sentences: Sequence[Sentence], count: int) -> list[Sentence]:
    """Return about `count` sentences: whole documents evenly from the corpus, or all, repeated.

    Repetitions have documents of their own, so that they are not each other's context.
    """
    if count >= len(sentences):
        times = -(-count // len(sentences))
        return [_again(s, turn) for turn in range(times) for s in sentences][:count]
    groups = documents(sentences)
    wanted = max(1, round(count * len(groups) / len(sentences)))
    chosen = [groups[i * len(groups) // wanted] for i in range(wanted)]
    return [sentence for group in chosen for sentence in group]


def exactly(sentences: Sequence[Sentence], count: int) -> list[Sentence]:
    """Like `draw`, but return exactly `count` sentences."""
    some = draw(sentences, count)
    return draw(some, max(count, len(some)))[:count]


def spread(sentences: Sequence[Sentence], count: int) -> list[Sentence]:
    """Return `count` single sentences (at least one, at most all) evenly from the corpus."""
    count = min(max(1, count), len(sentences))
    return [sentences[i * len(sentences) // count] for i in range(count)]


def texts(sentences: Sequence[Sentence]) -> list[str]:
    """Return one text per document and one paragraph per sentence.

    They are split into the same sentences again, so the encoder has the same work.
    """
    return [
        "\n\n".join(" ".join(sentence.words) for sentence in group)
        for group in documents(sentences)
    ]


def _again(sentence: Sentence, turn: int) -> Sentence:
    if turn == 0 or sentence.doc is None:
        return sentence
    return replace(sentence, doc=f"{sentence.doc} ({turn})")
