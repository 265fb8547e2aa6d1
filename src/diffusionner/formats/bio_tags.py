"""Tags of words: IOB1, IOB2 (BIO), BIOES, BILOU and BMES."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from diffusionner.corpus import Span

# Letters of the first, inner and last word of an entity, and of a single-word entity.
SCHEMES = {
    "iob1": ("B", "I", "I", "B"),
    "iob2": ("B", "I", "I", "B"),
    "bioes": ("B", "I", "E", "S"),
    "bilou": ("B", "I", "L", "U"),
    "bmes": ("B", "M", "E", "S"),
}
VALID_TAGS = "a tag is O, or one of B I E S (also M, L, U), a hyphen and a type, as in B-PER"
_TAG = re.compile(r"O|[BIMELSU]-\S.*")


def is_tag(text: str) -> bool:
    return _TAG.fullmatch(text) is not None


def decode_tags(tags: Sequence[str]) -> list[Span]:
    """Return the entities of a sentence's tags, in any scheme.

    B, S and U begin an entity. I, M, E and L continue an entity of the same type, or else begin
    one, as in IOB1. E, L, S and U end it.
    """
    spans: list[Span] = []
    start: int | None = None
    label = ""
    for index, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if start is not None and not (prefix in "IMEL" and kind == label):
            spans.append(Span(start, index, label))
            start = None
        if prefix == "O":
            continue
        if start is None:
            start, label = index, kind
        if prefix in "ELSU":
            spans.append(Span(start, index + 1, label))
            start = None
    if start is not None:
        spans.append(Span(start, len(tags), label))
    return spans


def encode_tags(words: int, spans: Iterable[Span], scheme: str = "iob2") -> list[str]:
    """Return the tags of entities that do not overlap."""
    begin, inside, last, single = SCHEMES[scheme]
    tags = ["O"] * words
    for start, end, label in spans:
        letters = [begin, *inside * (end - start - 2), last] if end - start > 1 else [single]
        tags[start:end] = [f"{letter}-{label}" for letter in letters]
    if scheme == "iob1":
        # I begins an entity too; B only directly after an entity of the same type.
        for index, tag in enumerate(list(tags)):
            if tag.startswith("B-") and (index == 0 or tags[index - 1][2:] != tag[2:]):
                tags[index] = "I" + tag[1:]
    return tags


def split_layers(spans: Iterable[Span]) -> list[list[Span]]:
    """Distribute entities greedily over layers without overlap, outer entities first."""
    layers: list[list[Span]] = []
    for span in sorted(spans, key=lambda s: (s.start - s.end, s.start)):
        for layer in layers:
            at = bisect_left(layer, span)
            if (at == 0 or layer[at - 1].end <= span.start) and (
                at == len(layer) or span.end <= layer[at].start
            ):
                layer.insert(at, span)
                break
        else:
            layers.append([span])
    return layers
