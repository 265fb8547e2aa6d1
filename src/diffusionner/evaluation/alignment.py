"""Alignment of gold and predicted sentences, by words or, if the tokens differ, by characters."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate

from diffusionner.corpus import Sentence, is_annotated
from diffusionner.errors import DataError
from diffusionner.evaluation.mentions import JoinedWords, Mention, sentence_mentions
from diffusionner.evaluation.report import Pair
from diffusionner.formats.documents import character_annotations, group_by_document

_EXCERPT = 60  # characters of a sentence or text in a message
_ADVICE = (
    "both files must contain the same sentences with the same words in the same order, "
    "or the same texts"
)


def align(
    gold: Sequence[Sentence], predicted: Sequence[Sentence], names: tuple[str, str]
) -> tuple[list[Pair], bool]:
    """Return pairs of gold and predicted sentences, and True if they were aligned by characters.

    If the words are equal, sentences are paired directly. If only the texts are equal, predictions
    are mapped to the gold words; those that do not align with token boundaries become irregular.
    Otherwise a DataError names the first difference.
    """
    if [s.words for s in gold] == [s.words for s in predicted]:
        both = zip(gold, predicted, strict=True)
        return [_pair(one, sentence_mentions(other)) for one, other in both], False
    # Sentences without a text may stand for one line each or together for a document.
    for whole in (True, False):
        ours, theirs = list(_documents(gold, whole)), list(_documents(predicted, whole))
        if [d.text for d in ours] == [d.text for d in theirs]:
            documents = zip(ours, theirs, strict=True)
            return [pair for one, other in documents for pair in _map_to_gold(one, other)], True
    if all(s.text is not None for s in (*gold, *predicted)):
        texts = [[(d.sentences[0][0], d.text) for d in side] for side in (ours, theirs)]
        raise _mismatch(texts, names, "character", "texts")
    words = [[(s, s.words) for s in side] for side in (gold, predicted)]
    raise _mismatch(words, names, "word", "sentences")


@dataclass(slots=True)
class _Document:
    text: str  # without trailing white space
    sentences: list[tuple[Sentence, int]]  # with the start of the text that it refers to


def _documents(sentences: Sequence[Sentence], whole: bool) -> Iterator[_Document]:
    """whole: join adjacent sentences of one document that have no text, one line each."""
    for group in group_by_document(sentences):
        if group[0].text is not None:
            yield _Document(group[0].text.rstrip(), [(sentence, 0) for sentence in group])
            continue
        for part in [group] if whole else [[sentence] for sentence in group]:
            lines = [sentence.characters()[0] for sentence in part]
            starts = accumulate((len(line) + 1 for line in lines), initial=0)
            yield _Document("\n".join(lines).rstrip(), list(zip(part, starts, strict=False)))


def _map_to_gold(gold: _Document, predicted: _Document) -> list[Pair]:
    joined = [JoinedWords(sentence.words) for sentence, _ in gold.sentences]
    offsets = [
        [(start + shift, end + shift) for start, end in sentence.characters()[1]]
        for sentence, shift in gold.sentences
    ]
    starts = [words[0][0] for words in offsets]
    mentions: list[set[Mention]] = [set() for _ in joined]
    for sentence, shift in predicted.sentences:
        for annotation in character_annotations(sentence, shift):
            number = max(0, bisect_right(starts, annotation.parts[0][0]) - 1)
            mention = joined[number].mention_in_text(*annotation, offsets[number])
            mentions[number].add(mention)
    return [_pair(one, found) for (one, _), found in zip(gold.sentences, mentions, strict=True)]


def _pair(gold: Sentence, predicted: Set[Mention]) -> Pair:
    """Predictions of labels that the sentence was not annotated for do not count."""
    counted = frozenset(one for one in predicted if is_annotated(gold, one.label))
    return Pair(sentence_mentions(gold), counted, gold)


def _mismatch(
    sides: Sequence[Sequence[tuple[Sentence, Sequence[str]]]],
    names: tuple[str, str],
    unit: str,
    items: str,
) -> DataError:
    """Return the error that names the first difference."""
    gold, predicted = sides
    for number, ((one, ours), (other, theirs)) in enumerate(zip(gold, predicted, strict=False)):
        if ours != theirs:
            pairs = enumerate(zip(ours, theirs, strict=False))
            shorter = min(len(ours), len(theirs))
            at = next((i for i, (a, b) in pairs if a != b), shorter)
            place = one.where or f"{names[0]}, number {number + 1}"
            other_place = other.where or f"{names[1]}, number {number + 1}"
            return DataError(
                f"{place} and {other_place} differ from {unit} {at} on: {_excerpt(ours[at:])} "
                f"against {_excerpt(theirs[at:])}; {_ADVICE}"
            )
    number = min(len(gold), len(predicted))
    longer, more, less = (gold, *names) if len(gold) > number else (predicted, *names[::-1])
    sentence, content = longer[number]
    place = sentence.where or f"{more}, number {number + 1}"
    return DataError(
        f"{place}: {_excerpt(content)} has no counterpart, {less} ends after {number} {items}; "
        f"{_ADVICE}"
    )


def _excerpt(content: Sequence[str]) -> str:
    text = content if isinstance(content, str) else " ".join(content[:_EXCERPT])
    if not text:
        return "nothing"
    return repr(text if len(text) <= _EXCERPT else text[: _EXCERPT - 1] + "…")
