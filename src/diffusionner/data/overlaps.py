"""How the entities of a sentence lie to each other."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeVar

from diffusionner.corpus import Span

Bounds = tuple[int, int]  # a span's first word and the word behind its last
Lying = TypeVar("Lying", bound=tuple[Any, ...])  # bounds, or a span


def nested(entities: Iterable[Span]) -> set[Span]:
    """Those that lie inside another or have another inside.

    Two labels on the same words are nested too; entities that only cross are not.
    """
    ordered = sorted(set(entities), key=_outer_first)
    if len(ordered) < 2:
        return set()
    # In this order one lies inside another if an earlier one ends no sooner, and has another
    # inside if a later one ends no later.
    ends = [span.end for span in ordered]
    latest_before = [0, *accumulate(ends, max)]
    soonest_from = [*list(accumulate(reversed(ends), min))[::-1], ends[-1] + 1]
    return {
        span
        for index, span in enumerate(ordered)
        if latest_before[index] >= span.end or soonest_from[index + 1] <= span.end
    }


def depths(entities: Iterable[Span]) -> dict[Span, int]:
    """For each the number of spans that it lies inside: 0 for an outermost one."""
    ends: list[int] = []  # of the spans so far, sorted
    inside: dict[Bounds, int] = {}
    for start, end in sorted({span[:2] for span in entities}, key=_outer_first):
        inside[start, end] = len(ends) - bisect_left(ends, end)
        insort(ends, end)
    return {span: inside[span[:2]] for span in entities}


def crossing(spans: Iterable[Lying]) -> Iterator[tuple[Lying, Lying]]:
    """Each that overlaps an earlier one without one inside the other, behind such a one."""
    open_ones: list[Lying] = []
    for span in sorted(set(spans), key=_outer_first):
        open_ones = [other for other in open_ones if other[1] > span[0]]
        for other in open_ones:
            if other[0] < span[0] and other[1] < span[1]:
                yield other, span
                break
        open_ones.append(span)


def most_disjoint(spans: Iterable[Bounds]) -> int:
    """How many of these spans can stand side by side without overlap, at best."""
    count = last = 0
    for start, end in sorted(spans, key=lambda bounds: bounds[1]):
        if start >= last:
            count, last = count + 1, end
    return count


def most_without_crossing(spans: Collection[Bounds]) -> int:
    """How many of these distinct spans can be kept, at best, so that none cross."""
    if next(crossing(spans), None) is None:
        return len(spans)
    # A set without crossing is a forest. The best tree under a span is itself and the best row of
    # trees inside it, so smaller spans come first.
    by_start = sorted(spans)
    starts = [start for start, _ in by_start]
    trees: dict[Bounds, int] = {}
    for span in sorted(spans, key=lambda bounds: bounds[1] - bounds[0]):
        near = by_start[bisect_left(starts, span[0]) : bisect_left(starts, span[1])]
        inner = [other for other in near if other[1] <= span[1] and other != span]
        trees[span] = 1 + _best_row(inner, trees)
    return _best_row(by_start, trees)


def _best_row(spans: Sequence[Bounds], weights: dict[Bounds, int]) -> int:
    """The largest weight of spans that do not overlap."""
    ordered = sorted(spans, key=lambda bounds: bounds[1])
    ends = [end for _, end in ordered]
    best = [0]  # with the first so many spans
    for span in ordered:
        before = bisect_right(ends, span[0])
        best.append(max(best[-1], best[before] + weights[span]))
    return best[-1]


def _outer_first(span: tuple[Any, ...]) -> tuple[int, int]:
    return span[0], -span[1]
