"""Offsets into a text as annotation tools count them.

Tools that run in a browser may count UTF-16 code units, as JavaScript does: a character beyond
U+FFFF, such as an emoji, is two. Nothing in a file says which it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from diffusionner.corpus import Irregular
from diffusionner.errors import DataError
from diffusionner.formats.texts import TextOptions

UNITS = ("characters", "utf16")


@dataclass(frozen=True)
class OffsetOptions(TextOptions):
    """offsets: what they count, `characters` or `utf16` code units."""

    offsets: str = "characters"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.offsets not in UNITS:
            raise ValueError(f"offsets is one of {', '.join(UNITS)}, not '{self.offsets}'")


def counted(text: str, unit: str) -> Sequence[int]:
    """The offset of each character, and of the end."""
    if unit == "characters" or max(text, default="") <= "\uffff":
        return range(len(text) + 1)
    return list(accumulate((1 + (character > "\uffff") for character in text), initial=0))


def by_characters(
    text: str, spans: Iterable[tuple[int, int, str]], unit: str, where: str
) -> list[Irregular]:
    """Annotations whose offsets count this unit."""
    offsets = counted(text, unit)
    found = []
    for start, end, label in spans:
        first, last = bisect_left(offsets, start), bisect_left(offsets, end)
        for index, offset in ((first, start), (last, end)):
            if index == len(offsets) or offsets[index] != offset:
                raise _outside(text, (start, end, label), unit, where)
        found.append(Irregular(((first, last),), label))
    return found


def _outside(text: str, span: tuple[int, int, str], unit: str, where: str) -> DataError:
    start, end, label = span
    size = counted(text, unit)[-1]
    name = {"characters": "characters", "utf16": "UTF-16 code units"}
    problem = f"{where}: entity {label} [{start}, {end}) "
    if unit == "utf16" and 0 <= start < end <= size:
        return DataError(
            problem + "begins or ends inside a character by UTF-16 code units; "
            "read the file with the option offsets=characters"
        )
    problem += f"lies outside its text of {size} {name[unit]}; "
    if 0 <= start < end <= counted(text, "utf16")[-1]:
        return DataError(
            problem + "offsets seem to count UTF-16 code units: read the file with the option "
            "offsets=utf16"
        )
    return DataError(problem + "offsets count from 0, end exclusive")
