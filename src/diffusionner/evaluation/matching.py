"""Matching of predicted to gold mentions.

Both matchings are one-to-one and optimal within a sentence, so they do not depend on the order of
the mentions or sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from enum import Enum
from typing import NamedTuple

import numpy as np

from diffusionner.evaluation.mentions import Mention, common_characters


class Outcome(Enum):
    CORRECT = "correct", "boundaries and type", "✓", "c"
    TYPE = "wrong type", "correct boundaries", "≠", "t"
    BOUNDARY = "wrong boundary", "correct type, overlap", "↔", "b"
    BOTH = "both wrong", "overlap", "✗", "x"
    MISSED = "missed", "gold without partner", "−", "m"
    SPURIOUS = "spurious", "predicted without partner", "+", "s"

    def __init__(self, title: str, meaning: str, mark: str, css_class: str) -> None:
        self.title, self.meaning, self.mark = title, meaning, mark
        self.css_class = css_class  # a single letter, because the page repeats it for every entity


class Match(NamedTuple):
    """A gold and a predicted mention that belong together, or a single one without partner."""

    outcome: Outcome
    gold: Mention | None
    predicted: Mention | None


def match_mentions(gold: Collection[Mention], predicted: Collection[Mention]) -> list[Match]:
    """Assign every mention of a sentence to exactly one match.

    Among all ways to pair the mentions that are not correct, the one with the most type errors is
    chosen; ties are broken by the most boundary errors, then the most errors of both, then the
    largest overlap.
    """
    exact = set(gold) & set(predicted)
    matches = [Match(Outcome.CORRECT, mention, mention) for mention in sorted(exact)]
    for ours, theirs in _overlapping_groups(set(gold) - exact, set(predicted) - exact):
        matches += _match_group(ours, theirs)
    return matches


def count_overlapping(gold: Collection[Mention], predicted: Collection[Mention]) -> Counter[str]:
    """Return for each label the largest number of overlapping one-to-one pairs of that label."""
    result: Counter[str] = Counter()
    for label in {mention.label for mention in gold} & {mention.label for mention in predicted}:
        own_gold = [mention for mention in gold if mention.label == label]
        own_predicted = [mention for mention in predicted if mention.label == label]
        for ours, theirs in _overlapping_groups(own_gold, own_predicted):
            if ours and theirs:
                overlap = np.array([[common_characters(g, p) > 0 for p in theirs] for g in ours])
                chosen = _assignment(overlap)
                result[label] += int(overlap[chosen].sum())
    return result


def _match_group(gold: list[Mention], predicted: list[Mention]) -> Iterator[Match]:
    unmatched_gold, unmatched_predicted = set(gold), set(predicted)
    if gold and predicted:
        # More than the number of pairs, so that one better outcome outweighs all worse ones.
        base = min(len(gold), len(predicted)) + 1
        weights = {Outcome.TYPE: base**2, Outcome.BOUNDARY: base, Outcome.BOTH: 1}
        value = np.zeros((len(gold), len(predicted)))
        for i, one in enumerate(gold):
            for j, other in enumerate(predicted):
                common = common_characters(one, other)
                if common:
                    iou = common / (one.size + other.size - common)
                    value[i, j] = weights[_error_type(one, other)] + iou / (2 * base)
        for i, j in zip(*_assignment(value), strict=True):
            if value[i, j]:
                yield Match(_error_type(gold[i], predicted[j]), gold[i], predicted[j])
                unmatched_gold.discard(gold[i])
                unmatched_predicted.discard(predicted[j])
    for mention in sorted(unmatched_gold):
        yield Match(Outcome.MISSED, mention, None)
    for mention in sorted(unmatched_predicted):
        yield Match(Outcome.SPURIOUS, None, mention)


def _assignment(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and columns of the one-to-one assignment with the largest sum."""
    from scipy.optimize import linear_sum_assignment  # the extra `evaluate`

    rows, columns = linear_sum_assignment(value, maximize=True)
    return rows, columns


def _overlapping_groups(
    gold: Collection[Mention], predicted: Collection[Mention]
) -> Iterator[tuple[list[Mention], list[Mention]]]:
    """Yield groups that do not overlap each other, so that each assignment problem is small."""
    group: tuple[list[Mention], list[Mention]] = ([], [])
    group_end: int | None = None
    sides = [(mention, 0) for mention in gold] + [(mention, 1) for mention in predicted]
    for mention, side in sorted(sides):
        if group_end is not None and mention.start >= group_end:
            yield group
            group, group_end = ([], []), None
        group[side].append(mention)
        group_end = mention.end if group_end is None else max(group_end, mention.end)
    if group_end is not None:
        yield group


def _error_type(gold: Mention, predicted: Mention) -> Outcome:
    if gold.parts == predicted.parts:
        return Outcome.TYPE
    return Outcome.BOUNDARY if gold.label == predicted.label else Outcome.BOTH
