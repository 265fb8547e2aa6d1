"""Where things go: entities into lanes, text into pieces. The page's script does the same."""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from diffusionner.corpus import Entity

COLOURS = 8
_WORD = re.compile(r"\S+\s*|\s+")


def assign(spans: Sequence[tuple[int, int]], reaches: Sequence[int] | None = None) -> list[int]:
    """The lane of each (start, end): shorter ones nearer to the text, in the first with room.

    reaches: where each ends with its label, if that needs room beside it.
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


def pieces(text: str, entities: Sequence[Entity]) -> Iterator[tuple[int, int]]:
    """(start, end) of words with the spaces after them, cut where an entity starts or ends."""
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
    """The number of each label's colour; labels that the model does not have come after its own."""
    known = [*labels, *sorted({e.label for e in entities} - set(labels))]
    return {label: number % COLOURS for number, label in enumerate(known)}


def caption(entity: Entity) -> str:
    """What stands in the lane."""
    return f"{entity.label} {entity.score:.2f}"
