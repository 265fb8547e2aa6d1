"""Line breaks that end a sentence, by the layout of the lines around them."""

from __future__ import annotations

import operator
from collections.abc import Set
from itertools import pairwise

import regex

# A line that starts like this begins something new: "From: Ada", "14:05 Ada", "[14:05] Ada".
_LABEL = regex.compile(r"\p{L}[\w.\-]*+(?:[ ][\w.\-]++)?+:[ \t]|\[?\d{1,2}:\d\d")
_CELL = regex.compile(r"\S(?:\t|[ ]{3,}+|[ ]?\||[,;](?=[^\s\p{P}]))")  # of a table, but the last
_QUOTED = regex.compile(r"(?:>[ ]?)++")  # in the reply to a mail
_MIN_WIDTH = 36  # prose is rarely wrapped to shorter lines
_FULL = 0.85  # the longest line of a paragraph may be shorter than the margin
# A line that ends with one of these words goes on.
_UNFINISHED = frozenset(
    "a an the this that these those of in on at to for from by with and or nor but as than is are "
    "was were be been has had have will would my your his her its our their no not & -".split()
)


def line_ends(text: str, is_lower: bool) -> Set[int]:
    """Return the offsets of the ends of all lines that, by the layout, end a sentence.

    In wrapped prose, a line ends where the next word would not have fit, or the next line goes on
    in lower case; elsewhere (lists, addresses, tables, headings) each line stands for itself. A
    paragraph is taken for prose if most of its lines end so.
    """
    ends: set[int] = set()
    paragraph: list[tuple[int, str]] = []  # offset of the end of a line, and the line
    offset = 0
    for line in (*text.splitlines(keepends=True), ""):
        offset += len(line)
        stripped = line.rstrip()
        if stripped:
            paragraph.append((offset - len(line) + len(stripped), stripped))
        elif len(paragraph) > 1:
            ends.update(_ends_in_paragraph(paragraph, is_lower))
            paragraph = []
        else:
            paragraph.clear()
    return ends


def _ends_in_paragraph(lines: list[tuple[int, str]], is_lower: bool) -> list[int]:
    """Return the offsets at which a line of a paragraph ends a sentence."""
    width = max(len(line) for _, line in lines)
    wrapped, unfinished, lower, rows = [], [], [], []  # for every line but the last
    for (_, line), (_, following) in pairwise(lines):
        quoted = _QUOTED.match(following)
        start = following[quoted.end() :] if quoted else following.lstrip()
        first_word = start.split(maxsplit=1)[0] if start else ""
        wrapped.append(len(line) + 1 + len(first_word) > _FULL * width)
        unfinished.append(line.rsplit(maxsplit=1)[-1].lower() in _UNFINISHED or line[-1] == "-")
        lower.append(not is_lower and start[:1].islower() and not _LABEL.match(start))
        cells, cells_below = len(_CELL.findall(line)), len(_CELL.findall(following))
        rows.append(cells == cells_below > 1)
    goes_on = list(map(operator.or_, unfinished, lower))
    if width >= _MIN_WIDTH:
        full = sum(map(operator.or_, wrapped, goes_on))
    else:  # lists have short lines too, but they rarely go on in lower case
        full = sum(wrapped) if 4 * sum(goes_on) > len(goes_on) else 0
    is_prose = 2 * full > len(wrapped)
    joined = map(operator.or_, wrapped, goes_on) if is_prose else unfinished
    return [
        end for (end, _), joins, row in zip(lines, joined, rows, strict=False) if row or not joins
    ]
