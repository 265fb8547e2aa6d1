"""Offsets in characters or in UTF-16 code units.

Annotation tools that run in a browser may count UTF-16 code units, as JavaScript does: a character
beyond U+FFFF, such as an emoji, counts twice. Their files do not say which unit they use.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from diffusionner.errors import DataError
from diffusionner.formats.documents import Annotation, TextOptions, contiguous

UNITS = {"characters": "characters", "utf16": "UTF-16 code units"}  # with names for messages


@dataclass(frozen=True)
class OffsetOptions(TextOptions):
    """offsets: unit of the offsets, `characters` or `utf16` code units."""

    offsets: str = "characters"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.offsets not in UNITS:
            raise ValueError(f"offsets is one of {', '.join(UNITS)}, not '{self.offsets}'")


def offsets_in(unit: str, text: str) -> Sequence[int]:
    """Return the offset of each character, and of the end, in this unit."""
    if unit == "characters" or max(text, default="") <= "\uffff":
        return range(len(text) + 1)
    return list(accumulate((1 + (character > "\uffff") for character in text), initial=0))


def to_annotations(
    text: str, spans: Iterable[tuple[int, int, str]], unit: str, where: str
) -> list[Annotation]:
    """Convert spans in this unit to annotations by character."""
    offsets = offsets_in(unit, text)
    annotations = []
    for start, end, label in spans:
        first, last = bisect_left(offsets, start), bisect_left(offsets, end)
        for index, offset in ((first, start), (last, end)):
            if index == len(offsets) or offsets[index] != offset:
                raise _invalid(text, (start, end, label), unit, where)
        annotations.append(contiguous(first, last, label))
    return annotations


def _invalid(text: str, span: tuple[int, int, str], unit: str, where: str) -> DataError:
    start, end, label = span
    size = offsets_in(unit, text)[-1]
    problem = f"lies outside its text of {size} {UNITS[unit]}"
    remedy = "offsets count from 0, end exclusive"
    if unit == "utf16" and 0 <= start < end <= size:
        problem = "starts or ends inside a character, counted in UTF-16 code units"
        remedy = "read the file with the option offsets=characters"
    elif 0 <= start < end <= offsets_in("utf16", text)[-1]:
        remedy = "offsets seem to count UTF-16 code units: read it with the option offsets=utf16"
    return DataError(f"{where}: entity {label} [{start}, {end}) {problem}; {remedy}")
