"""The drawing as one SVG picture: fixed-width text, lanes below each line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from rich.cells import cell_len

from diffusionner.corpus import Entity
from diffusionner.drawing.lanes import assign, caption, colours

COLUMNS = 88
_CELL = 8.4  # width of a character
_LINE, _LANE, _GAP = 20, 17, 8  # heights
_MARGIN = 10
_HUES = ("#0068a8", "#b43d00", "#00795a", "#9c3f78", "#8a6100", "#4a4a9f", "#a32638", "#3b6a2e")
# Control characters that XML has no way to write.
_UNWRITABLE = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127, 0xFFFE, 0xFFFF), " ")


def picture(text: str, entities: Sequence[Entity], labels: Sequence[str]) -> str:
    """A whole SVG document."""
    shown = "".join(" " if c.isspace() else c for c in text).translate(_UNWRITABLE)
    hues = colours(entities, labels)
    longest = max((len(caption(e)) for e in entities), default=0)
    width = (COLUMNS + longest) * _CELL + 2 * _MARGIN
    parts: list[str] = []
    top = _MARGIN
    for start, end in _lines(text, shown):
        parts.append(_text(shown[start:end], _MARGIN, top + 14, 14))
        inside = [e for e in entities if e.start < end and e.end > start]
        cells = [_cells(e, shown, start, end) for e in inside]
        labels_end = [left + len(caption(e)) for e, (left, _) in zip(inside, cells, strict=True)]
        reaches = [max(right, after) for (_, right), after in zip(cells, labels_end, strict=True)]
        lanes = assign(cells, reaches)
        for entity, place, lane in zip(inside, cells, lanes, strict=True):
            hue = _HUES[hues[entity.label]]
            parts.append(
                _bar(entity, place, top + _LINE + lane * _LANE, hue, entity.start >= start)
            )
        top += _LINE + (max(lanes, default=-1) + 1) * _LANE + _GAP
    size = f'width="{width:.0f}" height="{top + _MARGIN}"'
    names = "; ".join(f"{e.label}: {text[e.start : e.end]}" for e in entities) or "no entities"
    title = escape(_clean(names))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:.0f} {top + _MARGIN}" '
        f'role="img" font-family="monospace"><title>{title}</title>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _lines(text: str, shown: str) -> Iterator[tuple[int, int]]:
    """(start, end) of lines of at most COLUMNS cells, broken at line breaks and at spaces."""
    start = 0
    while start < len(shown):
        end, used, space = start, 0, 0
        while end < len(shown) and text[end] != "\n" and used + cell_len(shown[end]) <= COLUMNS:
            used += cell_len(shown[end])
            end += 1
            if shown[end - 1] == " ":
                space = end
        broken = end < len(shown) and text[end] == "\n"
        if end < len(shown) and not broken and space > start:
            end = space
        end = max(end, start + 1)
        if shown[start:end].strip():
            yield start, end
        start = end


def _text(content: str, x: float, y: float, size: int, colour: str = "#1a1a1a") -> str:
    """Text as wide as its cells, whatever font there is."""
    width = cell_len(content) * _CELL * size / 14
    return (
        f'<text x="{x:.1f}" y="{y}" font-size="{size}" fill="{colour}" xml:space="preserve" '
        f'textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs">{escape(_clean(content))}</text>'
    )


def _cells(entity: Entity, shown: str, start: int, end: int) -> tuple[int, int]:
    """Which cells of its line, shown[start:end], an entity takes."""
    left = cell_len(shown[start : max(entity.start, start)])
    return left, left + cell_len(shown[max(entity.start, start) : min(entity.end, end)])


def _bar(entity: Entity, cells: tuple[int, int], y: int, hue: str, labelled: bool) -> str:
    left, right = (_MARGIN + cell * _CELL for cell in cells)
    bar = (
        f'<rect x="{left:.1f}" y="{y}" width="{max(right - left - 2, 2):.1f}" height="4" rx="2" '
        f'fill="{hue}"/>'
    )
    return bar + (_text(caption(entity), left, y + 14, 10, hue) if labelled else "")


def _clean(text: str) -> str:
    """Without what no UTF-8 file can hold."""
    return text.translate(_UNWRITABLE).encode(errors="replace").decode()
