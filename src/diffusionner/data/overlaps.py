"""Nesting and crossing of the entities of a sentence."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeVar

from diffusionner.corpus import Span

Bounds = tuple[int, int]  # start and exclusive end, in words
BoundsOrSpan = TypeVar("BoundsOrSpan", bound=tuple[Any, ...])


def nested_entities(entities: Iterable[Span]) -> set[Span]:
    """Return the entities that contain another or lie inside another.

    Two labels on the same words count as nested; entities that only cross do not.
    """
    ordered = sorted(set(entities), key=_outer_first)
    if len(ordered) < 2:
        return set()
    # In this order, a span lies inside another if an earlier one ends at the same word or later,
    # and contains another if a later one ends at the same word or earlier.
    ends = [span.end for span in ordered]
    max_end_before = [0, *accumulate(ends, max)]
    min_end_after = [*list(accumulate(reversed(ends), min))[::-1], ends[-1] + 1]
    return {
        span
        for index, span in enumerate(ordered)
        if max_end_before[index] >= span.end or min_end_after[index + 1] <= span.end
    }


def nesting_depths(entities: Iterable[Span]) -> dict[Span, int]:
    """Return for each entity the number of distinct spans that contain it."""
    ends: list[int] = []  # of the spans so far, sorted
    depth: dict[Bounds, int] = {}
    for start, end in sorted({span[:2] for span in entities}, key=_outer_first):
        depth[start, end] = len(ends) - bisect_left(ends, end)
        insort(ends, end)
    return {span: depth[span[:2]] for span in entities}


def crossing_pairs(
    spans: Iterable[BoundsOrSpan],
) -> Iterator[tuple[BoundsOrSpan, BoundsOrSpan]]:
    """Yield each span that crosses an earlier one, preceded by that one."""
    active: list[BoundsOrSpan] = []
    for span in sorted(set(spans), key=_outer_first):
        active = [other for other in active if other[1] > span[0]]
        for other in active:
            if other[0] < span[0] and other[1] < span[1]:
                yield other, span
                break
        active.append(span)


def max_disjoint(spans: Iterable[Bounds]) -> int:
    """Return the size of the largest subset without overlaps."""
    count = last = 0
    for start, end in sorted(spans, key=lambda bounds: bounds[1]):
        if start >= last:
            count, last = count + 1, end
    return count


def max_without_crossing(spans: Collection[Bounds]) -> int:
    """Return the size of the largest subset of distinct spans without crossings."""
    if next(crossing_pairs(spans), None) is None:
        return len(spans)
    # A set without crossings is a forest. The best tree rooted at a span is the span and the best
    # sequence of trees inside it, so smaller spans come first.
    by_start = sorted(spans)
    starts = [start for start, _ in by_start]
    trees: dict[Bounds, int] = {}
    for span in sorted(spans, key=lambda bounds: bounds[1] - bounds[0]):
        candidates = by_start[bisect_left(starts, span[0]) : bisect_left(starts, span[1])]
        inner = [other for other in candidates if other[1] <= span[1] and other != span]
        trees[span] = 1 + _max_disjoint_weight(inner, trees)
    return _max_disjoint_weight(by_start, trees)


def _max_disjoint_weight(spans: Sequence[Bounds], weights: dict[Bounds, int]) -> int:
    """Return the largest total weight of spans without overlaps."""
    ordered = sorted(spans, key=lambda bounds: bounds[1])
    ends = [end for _, end in ordered]
    best = [0]  # best[n]: using only the first n spans
    for span in ordered:
        before = bisect_right(ends, span[0])
        best.append(max(best[-1], best[before] + weights[span]))
    return best[-1]


def _outer_first(span: tuple[Any, ...]) -> tuple[int, int]:
    return span[0], -span[1]
