"""Fragments of a discontinuous entity as the id of a spaCy span, which stores them with it.

Tokens count from the start of the span, so that the id stays right when docs are joined or sliced.
"""

from __future__ import annotations

import re

from diffusionner.corpus import Offsets

_FRAGMENTS = re.compile(r"[0-9]{1,9}-[0-9]{1,9}(?: [0-9]{1,9}-[0-9]{1,9})+")


def span_id(fragments: Offsets) -> str:
    """Return the id of the span from the first to the last fragment: "0-1 3-4", "" for one."""
    first = fragments[0][0]
    if len(fragments) == 1:
        return ""
    return " ".join(f"{start - first}-{end - first}" for start, end in fragments)


def read_span_id(name: str, start: int) -> Offsets:
    """Return the fragments of a span that starts at a token; none if the id does not list any."""
    if _FRAGMENTS.fullmatch(name) is None:
        return ()
    pairs = (pair.split("-") for pair in name.split(" "))
    return tuple((start + int(first), start + int(end)) for first, end in pairs)
