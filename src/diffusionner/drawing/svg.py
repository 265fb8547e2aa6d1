"""Draw entities as an SVG image: monospaced text with lanes below each line."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rich.cells import cell_len

from diffusionner.corpus import Entity
from diffusionner.drawing.lanes import assign, caption, cells, colours, fragment_cells, quote, wrap

COLUMNS = 88
_CELL = 8.4  # width of a character
_LINE, _LANE, _GAP = 20, 17, 8  # heights
_MARGIN = 10
_HUES = ("#0068a8", "#b43d00", "#00795a", "#9c3f78", "#8a6100", "#4a4a9f", "#a32638", "#3b6a2e")
# Control characters that XML cannot represent.
_UNWRITABLE = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127, 0xFFFE, 0xFFFF), " ")


def picture(text: str, entities: Sequence[Entity], labels: Sequence[str]) -> str:
    """Return an SVG document."""
    shown = "".join(" " if c.isspace() and c != "\n" else c for c in text).translate(_UNWRITABLE)
    hues = colours(entities, labels)
    longest = max((len(caption(e)) for e in entities), default=0)
    width = f"{(COLUMNS + longest) * _CELL + 2 * _MARGIN:.0f}"
    parts: list[str] = []
    top = _MARGIN
    for start, end in wrap(shown, COLUMNS):
        if not shown[start:end].strip():
            continue
        parts.append(_text(shown[start:end], _MARGIN, top + 14, 14))
        inside = [e for e in entities if e.start < end and e.end > start]
        spans = [cells((e.start, e.end), shown, start, end) for e in inside]
        reaches = [max(b, a + len(caption(e))) for e, (a, b) in zip(inside, spans, strict=True)]
        lanes = assign(spans, reaches)
        for entity, span, lane in zip(inside, spans, lanes, strict=True):
            y, hue = top + _LINE + lane * _LANE, _HUES[hues[entity.label]]
            if entity.gaps:
                parts.append(_rectangle(span, y + 1.5, 1, hue))
            parts += [
                _rectangle(fragment, y, 4, hue)
                for fragment in fragment_cells(entity, shown, start, end)
            ]
            if entity.start >= start:
                left = _MARGIN + span[0] * _CELL
                parts.append(_text(caption(entity), left, y + 14, 10, hue))
        top += _LINE + (max(lanes, default=-1) + 1) * _LANE + _GAP
    height = top + _MARGIN
    title = "; ".join(f"{e.label}: {quote(e, text)}" for e in entities) or "no entities"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" font-family="monospace">'
        f"<title>{escape(_clean(title))}</title>"
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _text(content: str, x: float, y: float, size: int, colour: str = "#1a1a1a") -> str:
    """Return text stretched to the width of its cells, whatever the font."""
    width = cell_len(content) * _CELL * size / 14
    return (
        f'<text x="{x:.1f}" y="{y}" font-size="{size}" fill="{colour}" xml:space="preserve" '
        f'textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs">{escape(_clean(content))}</text>'
    )


def _rectangle(span: tuple[int, int], y: float, height: int, hue: str) -> str:
    """Return a bar under the cells of a span."""
    left, right = (_MARGIN + cell * _CELL for cell in span)
    return (
        f'<rect x="{left:.1f}" y="{y}" width="{max(right - left - 2, 2):.1f}" height="{height}" '
        f'rx="{height / 2:g}" fill="{hue}"/>'
    )


def _clean(text: str) -> str:
    """Replace characters that XML or UTF-8 cannot represent."""
    return text.translate(_UNWRITABLE).encode(errors="replace").decode()
