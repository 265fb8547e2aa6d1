"""Which predicted mention stands for which gold one.

Both matchings are one to one and optimal within a sentence, so they depend neither on the order of
the mentions nor on the order of the sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from enum import Enum
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from diffusionner.evaluation.mentions import Mention, shared


class Kind(Enum):
    """What became of a mention."""

    CORRECT = "correct"
    TYPE = "type"  # right boundaries, wrong type
    BOUNDARY = "boundary"  # right type, boundaries that overlap
    BOTH = "both"  # both wrong, boundaries that overlap
    MISSED = "missed"
    SPURIOUS = "spurious"


class Judgement(NamedTuple):
    """A gold and a predicted mention that belong together, or one alone."""

    kind: Kind
    gold: Mention | None
    predicted: Mention | None


def judge(gold: Collection[Mention], predicted: Collection[Mention]) -> list[Judgement]:
    """Put every mention of a sentence into exactly one judgement.

    Of all ways to pair what is not correct, the one with most type errors is taken, of these the
    one with most boundary errors, then with most of both, then with the greatest overlap.
    """
    exact = set(gold) & set(predicted)
    result = [Judgement(Kind.CORRECT, mention, mention) for mention in sorted(exact)]
    for wanted, found in _groups(set(gold) - exact, set(predicted) - exact):
        result += _pair(wanted, found)
    return result


def _pair(wanted: list[Mention], found: list[Mention]) -> Iterator[Judgement]:
    free_wanted, free_found = set(wanted), set(found)
    if wanted and found:
        # More than the pairs there can be: then one of a better kind outweighs all of the next.
        base = min(len(wanted), len(found)) + 1
        worth = {Kind.TYPE: base**2, Kind.BOUNDARY: base, Kind.BOTH: 1}
        value = np.zeros((len(wanted), len(found)))
        for i, one in enumerate(wanted):
            for j, other in enumerate(found):
                common = shared(one, other)
                if common:
                    likeness = common / (_size(one) + _size(other) - common)
                    value[i, j] = worth[_kind(one, other)] + likeness / (2 * base)
        for i, j in zip(*linear_sum_assignment(value, maximize=True), strict=True):
            if value[i, j]:
                yield Judgement(_kind(wanted[i], found[j]), wanted[i], found[j])
                free_wanted.discard(wanted[i])
                free_found.discard(found[j])
    for mention in sorted(free_wanted):
        yield Judgement(Kind.MISSED, mention, None)
    for mention in sorted(free_found):
        yield Judgement(Kind.SPURIOUS, None, mention)


def count_overlapping(gold: Collection[Mention], predicted: Collection[Mention]) -> Counter[str]:
    """By label, how many of a sentence's mentions have a partner that overlaps them.

    As many as can be paired, one to one, with one of the same label that shares a word with them.
    """
    result: Counter[str] = Counter()
    for label in {mention.label for mention in gold} & {mention.label for mention in predicted}:
        own_gold = [mention for mention in gold if mention.label == label]
        own_predicted = [mention for mention in predicted if mention.label == label]
        for wanted, found in _groups(own_gold, own_predicted):
            if wanted and found:
                overlap = np.array([[shared(g, p) > 0 for p in found] for g in wanted])
                chosen = linear_sum_assignment(overlap, maximize=True)
                result[label] += int(overlap[chosen].sum())
    return result


def _groups(
    gold: Collection[Mention], predicted: Collection[Mention]
) -> Iterator[tuple[list[Mention], list[Mention]]]:
    """Apart what does not overlap, so that the work stays small in a sentence of any size."""
    group: tuple[list[Mention], list[Mention]] = ([], [])
    reach: int | None = None
    sides = [(mention, 0) for mention in gold] + [(mention, 1) for mention in predicted]
    for mention, side in sorted(sides):
        if reach is not None and mention.start >= reach:
            yield group
            group, reach = ([], []), None
        group[side].append(mention)
        reach = mention.end if reach is None else max(reach, mention.end)
    if reach is not None:
        yield group


def _kind(gold: Mention, predicted: Mention) -> Kind:
    if gold.parts == predicted.parts:
        return Kind.TYPE
    return Kind.BOUNDARY if gold.label == predicted.label else Kind.BOTH


def _size(mention: Mention) -> int:
    return sum(end - start for start, end in mention.parts)
