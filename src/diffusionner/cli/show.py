"""Entities drawn under their text in the terminal, nested ones in lanes below each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from diffusionner.corpus import Entity

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def show(console: Console, text: str, entities: Sequence[Entity], labels: Sequence[str]) -> None:
    """Print the text with a bracket, label and score under every entity."""
    shown = "".join(" " if c.isspace() else c for c in text)  # same length, one line
    colours = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(labels)}
    longest = max((cell_len(_bracket(1, entity)) for entity in entities), default=0)
    for start, end in _lines(shown, max(20, console.width - longest)):  # labels need room as well
        console.print(Text(shown[start:end]))
        inside = [e for e in entities if e.start < end and e.end > start]
        for lane in _lanes(inside, shown, start, end):
            row = Text()
            for column, width, entity in lane:
                row.append(" " * (column - cell_len(row.plain)))
                row.append(_bracket(width, entity), style=colours[entity.label])
            console.print(row, overflow="ignore", no_wrap=True)
    if not entities:
        console.print(Text("(no entities)", style="dim"))


def _lines(text: str, width: int) -> Iterator[tuple[int, int]]:
    """Break at spaces into lines of at most `width` cells."""
    start = 0
    while start < len(text):
        end, used, space = start, 0, 0
        while end < len(text) and used + cell_len(text[end]) <= width:
            used += cell_len(text[end])
            end += 1
            if text[end - 1] == " ":
                space = end
        if end < len(text) and space > start:
            end = space
        yield start, max(end, start + 1)
        start = max(end, start + 1)


def _lanes(
    entities: Sequence[Entity], text: str, start: int, end: int
) -> list[list[tuple[int, int, Entity]]]:
    """Inner entities first, each in the first lane where its bracket and label have room."""
    lanes: list[list[tuple[int, int, Entity]]] = []
    for entity in sorted(entities, key=lambda e: (e.end - e.start, e.start)):
        column = cell_len(text[start : max(entity.start, start)])
        width = cell_len(text[max(entity.start, start) : min(entity.end, end)])
        reach = column + cell_len(_bracket(width, entity)) + 1
        for lane in lanes:
            if all(reach <= c or column > c + cell_len(_bracket(w, e)) for c, w, e in lane):
                lane.append((column, width, entity))
                break
        else:
            lanes.append([(column, width, entity)])
    return [sorted(lane, key=lambda part: part[0]) for lane in lanes]


def _bracket(width: int, entity: Entity) -> str:
    line = "╵" if width == 1 else "└" + "─" * (width - 2) + "┘"
    return f"{line} {entity.label} {entity.score:.2f}"
