"""Draw entities as HTML: plain elements and a style sheet, all text escaped."""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from diffusionner.corpus import Entities, Entity
from diffusionner.drawing.lanes import assign, caption, colours, pieces, quote
from diffusionner.files import write_bytes

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Entities</title>
<style>{style}</style>
</head>
<body class="diffusionner-page">
<h1>Entities</h1>
{figures}
</body>
</html>
"""


def fragment(results: Iterable[Entities]) -> str:
    """Return drawings of the results with the style sheet, to embed in any page."""
    figures = "\n".join(map(figure, results))
    return f"<style>{style_sheet()}</style>\n{figures}"


def page(results: Iterable[Entities]) -> str:
    """Return a standalone page; its security policy allows only this style sheet."""
    style = style_sheet()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return _PAGE.format(policy=policy, style=style, figures="\n".join(map(figure, results)))


def write_page(path: Path, results: Iterable[Entities]) -> None:
    write_bytes(path, page(results).encode(errors="replace"))


def style_sheet() -> str:
    return resources.files("diffusionner.drawing").joinpath("drawing.css").read_text("utf-8")


def figure(result: Entities) -> str:
    """Return the drawing of one text, with a list of its entities for screen readers."""
    text, entities = result.characters()
    hues = colours(entities, result.labels)
    listed = "".join(
        f"<li>{escape(e.label)}, score {e.score:.2f}: {escape(quote(e, text))}</li>"
        for e in entities
    )
    return (
        f'<figure class="diffusionner"><div class="drawn" dir="auto">'
        f"{_drawn(text, entities, hues)}</div>"
        f'<figcaption><span class="count">{_count(len(entities))}</span>'
        f'<ul class="listed">{listed}</ul></figcaption></figure>'
    )


def _count(number: int) -> str:
    return {0: "no entities", 1: "1 entity"}.get(number, f"{number} entities")


def _drawn(text: str, entities: Sequence[Entity], hues: dict[str, int]) -> str:
    lanes = assign([(e.start, e.end) for e in entities])
    upcoming = deque(sorted(range(len(entities)), key=lambda i: entities[i].start))
    open_: list[int] = []  # entities that contain the piece
    parts = []
    for start, end in pieces(text, entities):
        open_ = [i for i in open_ if entities[i].end > start]
        while upcoming and entities[upcoming[0]].start <= start:
            open_.append(upcoming.popleft())
        parts.append(_piece(text, start, end, {lanes[i]: entities[i] for i in open_}, hues))
    return "".join(parts)


def _piece(
    text: str, start: int, end: int, segments: dict[int, Entity], hues: dict[str, int]
) -> str:
    content = text[start:end]
    lines = min(content.count("\n"), 2)  # collapses empty lines
    body = escape(content.replace("\n", " ") if lines else content)
    bars = "".join(
        _segment(segments[lane], start, end, hues) if lane in segments else "<i></i>"
        for lane in range(max(segments, default=-1) + 1)
    )
    return f"<span><b>{body}</b>{bars}</span>" + "<br>" * lines


def _segment(entity: Entity, start: int, end: int, hues: dict[str, int]) -> str:
    classes = [f"c{hues[entity.label]}"]
    text = ""
    left, right = next(fragment for fragment in entity.fragments if start < fragment[1])
    if start < left:
        classes.append("g")  # gap
    if start == left:
        classes.append("s")
    if start == entity.start:
        label = caption(entity)
        # Labels are small: one not much longer than its fragment is placed over it. Before a gap,
        # there is no room for more.
        most = (right - left) * (1.25 if right == entity.end else 1)
        fits = end < right and len(label) <= most
        place = "over" if fits else "beside"
        text = f'<em class="{place}">{escape(label)}</em>'
    if end == right:
        classes.append("e")
    return f'<i class="{" ".join(classes)}" aria-hidden="true">{text}</i>'
