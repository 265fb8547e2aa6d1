"""Gold and predicted sentences brought together: by words or, where those differ, by characters."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate

from diffusionner.corpus import Sentence, is_annotated
from diffusionner.errors import DataError
from diffusionner.evaluation.mentions import Layout, Mention, mentions_of
from diffusionner.evaluation.scorer import Pair
from diffusionner.formats.texts import annotations_of, gather

_EXCERPT = 60  # characters of a sentence or text that a message shows
_ADVICE = (
    "both files must hold the same sentences, word for word and in the same order, "
    "or else the same texts"
)


def align(
    gold: Sequence[Sentence], predicted: Sequence[Sentence], names: tuple[str, str]
) -> tuple[list[Pair], bool]:
    """The sentences of both in pairs, and whether they had to be compared by characters.

    By words, if these are the same. If the texts are, predictions are carried over to the gold's
    words, and those that begin or end within one are then irregular. Else DataError.
    """
    if len(gold) == len(predicted) and all(
        one.words == other.words for one, other in zip(gold, predicted, strict=True)
    ):
        pairs = [
            Pair(mentions_of(one), _counted(mentions_of(other), one), one)
            for one, other in zip(gold, predicted, strict=True)
        ]
        return pairs, False
    # Sentences that have no text may stand for a line each or for a document together.
    for whole in (True, False):
        documents = list(_documents(gold, whole)), list(_documents(predicted, whole))
        if [d.text.rstrip() for d in documents[0]] == [d.text.rstrip() for d in documents[1]]:
            both = zip(*documents, strict=True)
            return [pair for one, other in both for pair in _carry_over(one, other)], True
    if all(s.text is not None for s in (*gold, *predicted)):
        raise _texts_differ(*documents, names)
    raise _words_differ(gold, predicted, names)


@dataclass(slots=True)
class _Document:
    """A text with its sentences and, for each, where the text that it counts in begins."""

    text: str
    sentences: list[tuple[Sentence, int]]

    @property
    def first(self) -> Sentence:
        return self.sentences[0][0]


def _documents(sentences: Sequence[Sentence], whole: bool) -> Iterator[_Document]:
    """whole: neighbours of one document that have no text make one, a line each."""
    for group in gather(sentences):
        if whole or group[0].text is not None:
            yield _merge(group)
        else:
            yield from (_merge([sentence]) for sentence in group)


def _merge(sentences: Sequence[Sentence]) -> _Document:
    if sentences[0].text is not None:
        return _Document(sentences[0].text, [(sentence, 0) for sentence in sentences])
    lines = [sentence.characters()[0] for sentence in sentences]
    begins = accumulate((len(line) + 1 for line in lines), initial=0)
    return _Document("\n".join(lines), list(zip(sentences, begins, strict=False)))


def _carry_over(gold: _Document, predicted: _Document) -> list[Pair]:
    places = []
    for sentence, shift in gold.sentences:
        offsets = [(start + shift, end + shift) for start, end in sentence.characters()[1]]
        places.append((Layout(sentence.words), offsets))
    begins = [offsets[0][0] for _, offsets in places]
    found: list[set[Mention]] = [set() for _ in places]
    for sentence, shift in predicted.sentences:
        for annotation in annotations_of(sentence, shift):
            number = max(0, bisect_right(begins, annotation.parts[0][0]) - 1)
            layout, offsets = places[number]
            found[number].add(layout.of_characters(*annotation, offsets))
    return [
        Pair(mentions_of(sentence), _counted(mentions, sentence), sentence)
        for (sentence, _), mentions in zip(gold.sentences, found, strict=True)
    ]


def _counted(found: Set[Mention], gold: Sentence) -> frozenset[Mention]:
    """Without what nobody looked for in that sentence, which may be there all the same."""
    return frozenset(one for one in found if is_annotated(gold, one.label))


def _words_differ(
    gold: Sequence[Sentence], predicted: Sequence[Sentence], names: tuple[str, str]
) -> DataError:
    both = zip(gold, predicted, strict=False)
    for number, (one, other) in enumerate(both):
        if one.words != other.words:
            at = _first_difference(one.words, other.words)
            return DataError(
                f"{_place(one, number, names[0])}: from word {at} on it {_says(one.words[at:])}, "
                f"but {_place(other, number, names[1])} {_says(other.words[at:])}; {_ADVICE}"
            )
    return _ends_early(gold, predicted, names, "sentences")


def _texts_differ(
    gold: Sequence[_Document], predicted: Sequence[_Document], names: tuple[str, str]
) -> DataError:
    both = zip(gold, predicted, strict=False)
    for number, (one, other) in enumerate(both):
        if one.text.rstrip() != other.text.rstrip():
            at = _first_difference(one.text, other.text)
            return DataError(
                f"{_place(one.first, number, names[0])}: from character {at} on the text "
                f"{_says([one.text[at:]])}, but {_place(other.first, number, names[1])} "
                f"{_says([other.text[at:]])}; {_ADVICE}"
            )
    firsts = [d.first for d in gold], [d.first for d in predicted]
    return _ends_early(*firsts, names, "texts")


def _ends_early(
    gold: Sequence[Sentence], predicted: Sequence[Sentence], names: tuple[str, str], what: str
) -> DataError:
    number = min(len(gold), len(predicted))
    longer, more, less = (gold, *names) if len(gold) > number else (predicted, *names[::-1])
    return DataError(
        f"{_place(longer[number], number, more)}: it {_says(longer[number].words)}, but {less} "
        f"has ended after {number} {what}; {_ADVICE}"
    )


def _first_difference(one: Sequence[str], other: Sequence[str]) -> int:
    both = zip(one, other, strict=False)
    shorter = min(len(one), len(other))
    return next((i for i, (a, b) in enumerate(both) if a != b), shorter)


def _place(sentence: Sentence, number: int, name: str) -> str:
    return sentence.where or f"{name}, number {number + 1}"


def _says(words: Sequence[str]) -> str:
    """The beginning of what is left."""
    text = " ".join(words[:_EXCERPT])
    if not text:
        return "has ended"
    return f"reads {text if len(text) <= _EXCERPT else text[: _EXCERPT - 1] + '…'!r}"
