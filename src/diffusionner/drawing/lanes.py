"""Layout: entities into lanes, text into lines and pieces. The page's lanes.js does the same.

A discontinuous entity takes its lane from start to end, gaps included.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from diffusionner.corpus import ELLIPSIS, Entity

COLOURS = 8
_WORD = re.compile(r"\S+\s*|\s+")


def assign(spans: Sequence[tuple[int, int]], reaches: Sequence[int] | None = None) -> list[int]:
    """Return the lane of each (start, end): shorter spans first, each in the first lane with room.

    reaches: ends of the spans including their labels, if these need room too.
    """
    lanes: list[list[tuple[int, int]]] = []  # disjoint (start, reach) in order
    chosen = [0] * len(spans)
    for index in sorted(range(len(spans)), key=lambda i: (spans[i][1] - spans[i][0], spans[i])):
        start, end = spans[index]
        reach = end if reaches is None else reaches[index]
        lane = next((n for n, taken in enumerate(lanes) if _free(taken, start, reach)), len(lanes))
        if lane == len(lanes):
            lanes.append([])
        insort(lanes[lane], (start, reach))
        chosen[index] = lane
    return chosen


def _free(taken: list[tuple[int, int]], start: int, end: int) -> bool:
    after = bisect_left(taken, (start, end))
    fits_before = after == len(taken) or taken[after][0] >= end
    return fits_before and (not after or taken[after - 1][1] <= start)


def wrap(text: str, width: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of lines of at most `width` cells, broken at newlines and spaces."""
    start = 0
    while start < len(text):
        end, used, space = start, 0, 0
        while end < len(text) and text[end] != "\n" and used + cell_len(text[end]) <= width:
            used += cell_len(text[end])
            end += 1
            if text[end - 1] == " ":
                space = end
        if end < len(text) and text[end] != "\n" and space > start:
            end = space
        end = max(end, start + 1)
        yield start, end
        start = end


def cells(span: tuple[int, int], text: str, start: int, end: int) -> tuple[int, int]:
    """Return the (start, end) cells of a span in the line text[start:end]."""
    first, last = max(span[0], start), min(span[1], end)
    left = cell_len(text[start:first])
    return left, left + cell_len(text[first:last])


def fragment_cells(entity: Entity, text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Return the (start, end) cells of the fragments that are in the line text[start:end]."""
    inside = [span for span in entity.fragments if span[0] < end and span[1] > start]
    return [cells(span, text, start, end) for span in inside]


def pieces(text: str, entities: Sequence[Entity]) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of words with their trailing spaces, split at fragment boundaries."""
    cuts = sorted({at for e in entities for fragment in e.fragments for at in fragment})
    following = iter([*cuts, len(text) + 1])
    cut = next(following)
    for match in _WORD.finditer(text):
        start, end = match.span()
        while cut <= start:
            cut = next(following)
        while cut < end:
            yield start, cut
            start = cut
            cut = next(following)
        yield start, end


def colours(entities: Sequence[Entity], labels: Sequence[str]) -> dict[str, int]:
    """Return the colour number of each label; unknown labels follow those of the model."""
    known = [*labels, *sorted({e.label for e in entities} - set(labels))]
    return {label: number % COLOURS for number, label in enumerate(known)}


def caption(entity: Entity) -> str:
    return f"{entity.label} {entity.score:.2f}"


def quote(entity: Entity, text: str) -> str:
    """Return the entity's part of the text."""
    return ELLIPSIS.join(text[start:end] for start, end in entity.fragments)
