"""Layout: entities into lanes, text into lines and pieces. The page's lanes.js does the same."""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from diffusionner.corpus import Entity

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


def cells(entity: Entity, text: str, start: int, end: int) -> tuple[int, int]:
    """Return the (start, end) cells of an entity in the line text[start:end]."""
    left = cell_len(text[start : max(entity.start, start)])
    return left, left + cell_len(text[max(entity.start, start) : min(entity.end, end)])


def pieces(text: str, entities: Sequence[Entity]) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of words with their trailing spaces, split at entity boundaries."""
    cuts = sorted({at for e in entities for at in (e.start, e.end)})
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
