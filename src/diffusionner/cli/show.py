"""Print a text with its entities underneath, nested ones in lanes below each other."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from diffusionner.corpus import Entity
from diffusionner.drawing.lanes import assign, caption, cells, fragment_cells, wrap

_GAP = "┄"
COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def show(console: Console, text: str, entities: Sequence[Entity], labels: Sequence[str]) -> None:
    """Print the text with a bracket, label and score under every entity."""
    shown = "".join(" " if c.isspace() else c for c in text)  # same length, one line
    colours = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(labels)}
    longest = max((cell_len(caption(entity)) + 2 for entity in entities), default=0)
    for start, end in wrap(shown, max(20, console.width - longest)):  # leave room for labels
        console.print(Text(shown[start:end]))
        inside = [e for e in entities if e.start < end and e.end > start]
        spans = [cells((e.start, e.end), shown, start, end) for e in inside]
        brackets = [
            f"{_bracket(span, fragment_cells(entity, shown, start, end))} {caption(entity)}"
            for entity, span in zip(inside, spans, strict=True)
        ]
        reaches = [a + cell_len(s) + 1 for s, (a, _) in zip(brackets, spans, strict=True)]
        lanes = assign(spans, reaches)
        for lane in range(max(lanes, default=-1) + 1):
            row = Text()
            for i in sorted((i for i, n in enumerate(lanes) if n == lane), key=lambda i: spans[i]):
                row.append(" " * (spans[i][0] - cell_len(row.plain)))
                row.append(brackets[i], style=colours[inside[i].label])
            console.print(row, overflow="ignore", no_wrap=True)
    if not entities:
        console.print(Text("(no entities)", style="dim"))


def _bracket(span: tuple[int, int], fragments: Sequence[tuple[int, int]]) -> str:
    """Return brackets under the fragments, joined by thin lines; all in cells."""
    line, at = "", span[0]
    for start, end in fragments:
        line += _GAP * (start - at)
        line += "╵" if end - start == 1 else "└" + "─" * (end - start - 2) + "┘"
        at = end
    return line + _GAP * (span[1] - at)
