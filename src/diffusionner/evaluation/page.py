"""The evaluation as one HTML file that needs nothing else.

All text is escaped, and a content security policy lets only this page's own style and script, by
their hashes, have any effect: no text of a corpus can become code, nor anything be fetched.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template

from diffusionner.evaluation.drawing import LETTERS, MARKS, draw
from diffusionner.evaluation.result import Evaluation
from diffusionner.evaluation.scorer import Pair
from diffusionner.evaluation.tables import KIND_NAMES, Grid


def render(evaluation: Evaluation, most: int) -> str:
    """The page, with at most so many sentences: those with errors before those without."""
    chosen = _choose(evaluation.pairs, most)
    labels = {label: number for number, label in enumerate(evaluation.report.per_type)}
    drawn = [draw(number + 1, evaluation.pairs[number], labels) for number in chosen]
    lanes = max((below for _, below in drawn), default=0)
    style = _file("report.css") + "".join(f".v{n}{{--below:{n}}}\n" for n in range(1, lanes + 1))
    script = _file("report.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(_file("report.html")).substitute(
        policy=policy,
        style=style,
        script=script,
        title=escape(evaluation.predicted_name),
        caption=escape(evaluation.caption),
        tables="\n".join(_table(grid) for grid in evaluation.grids),
        legend="".join(
            f'<li><i class="{LETTERS[kind]} S E">{MARKS[kind]}</i> {name}</li>'
            for kind, name in KIND_NAMES.items()
        ),
        kinds="".join(
            f'<label><input type="checkbox" checked value="{LETTERS[kind]}"> '
            f"{MARKS[kind]} {KIND_NAMES[kind]} ({count})</label>"
            for kind, count in evaluation.report.errors.items()
        ),
        types="".join(
            f'<option value="{number}">{escape(label)}</option>' for label, number in labels.items()
        ),
        left_out=_left_out(evaluation.pairs, chosen),
        sentences="\n".join(html for html, _ in drawn),
    )


def _choose(pairs: Sequence[Pair], most: int) -> list[int]:
    """The numbers of the sentences that are shown, in their order."""
    wrong = [i for i, pair in enumerate(pairs) if pair.gold != pair.predicted]
    right = [i for i, pair in enumerate(pairs) if pair.gold == pair.predicted]
    return sorted((wrong + right)[:most])


def _left_out(pairs: Sequence[Pair], chosen: Sequence[int]) -> str:
    number = len(pairs) - len(chosen)
    if not number:
        return f"All {len(pairs)} sentences are shown."
    wrong = sum(pair.gold != pair.predicted for pair in pairs)
    wrong -= sum(pairs[i].gold != pairs[i].predicted for i in chosen)
    return (
        f"{len(chosen)} of {len(pairs)} sentences are shown; of the {number} others, {wrong} have "
        "errors. Raise --html-sentences to see more; the tables count all."
    )


def _table(grid: Grid) -> str:
    head = "".join(_cell("th", grid, n, text) for n, text in enumerate(grid.headings))
    bodies = []
    for section in filter(None, grid.sections):
        rows = []
        for name, *cells in section:
            columns = "".join(_cell("td", grid, n, text) for n, text in enumerate(cells, 1))
            rows.append(f'<tr><th scope="row">{escape(name)}</th>{columns}</tr>')
        bodies.append(f"<tbody>{''.join(rows)}</tbody>")
    note = f'<p class="note">{escape(grid.note)}</p>' if grid.note else ""
    # A region that can be focused, so that a wide table can be scrolled by keyboard.
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{escape(grid.title)}"><table>'
        f"<caption>{escape(grid.title)}</caption><thead><tr>{head}</tr></thead>"
        f"{''.join(bodies)}</table>{note}</div>"
    )


def _cell(tag: str, grid: Grid, column: int, text: str) -> str:
    scope = ' scope="col"' if tag == "th" else ""
    prose = ' class="prose"' if grid.prose and column == len(grid.headings) - 1 else ""
    return f"<{tag}{scope}{prose}>{escape(text)}</{tag}>"


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _file(name: str) -> str:
    return resources.files("diffusionner.evaluation").joinpath(name).read_text(encoding="utf-8")
