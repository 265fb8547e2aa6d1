"""A corpus cut into parts that are alike: documents stay whole, labels keep their proportions."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path

from diffusionner import formats
from diffusionner.corpus import Sentence
from diffusionner.data.overlaps import nested
from diffusionner.data.statistics import Statistics
from diffusionner.errors import DataError
from diffusionner.formats.texts import follows

# Features that are kept in proportion beside the labels; no label is a number.
_SENTENCES, _NESTED = 0, 1
_Feature = int | str
Amounts = tuple[tuple[_Feature, int], ...]  # how much of each feature a unit has


@dataclass(frozen=True)
class Part:
    name: str
    share: float


def parse_parts(text: str) -> list[Part]:
    """NAME=SHARE,NAME=SHARE, the shares adding up to 1."""
    parts = []
    for piece in text.split(","):
        name, _, value = piece.strip().partition("=")
        try:
            share = float(value)
        except ValueError:
            share = 0.0
        if not re.fullmatch(r"\w[\w.-]*", name) or not 0 < share < 1:
            raise DataError(
                f"'{piece.strip()}' is no part; write NAME=SHARE with a share between 0 and 1, "
                "for example train=0.8,dev=0.1,test=0.1"
            )
        parts.append(Part(name, share))
    names = [part.name.lower() for part in parts]  # some disks do not tell cases apart
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"there are two parts '{twice}'; give each its own name")
    total = sum(part.share for part in parts)
    if len(parts) < 2 or abs(total - 1) > 1e-6:
        raise DataError(
            f"the shares of the parts add up to {total:g}; give two or more that add up to 1"
        )
    return parts


def units(sentences: Iterable[Sentence]) -> Iterator[tuple[int, Sentence]]:
    """Each sentence with the number of what it must stay together with.

    That is its document; without one, the other sentences of its text; without one, itself.
    """
    documents: dict[str, int] = {}
    count = 0
    previous: Sentence | None = None
    number = 0
    for sentence in sentences:
        known = sentence.doc is not None and sentence.doc in documents
        if known:
            number = documents[sentence.doc or ""]
        elif previous is None or not follows(sentence, previous):
            number, count = count, count + 1
            if sentence.doc is not None:
                documents[sentence.doc] = number
        previous = sentence
        yield number, sentence


def measure(sentences: Iterable[Sentence]) -> list[Amounts]:
    """How much of each feature each unit has."""
    found: list[Amounts] = []
    same: dict[Amounts, Amounts] = {}  # one object for all that are equal: most sentences are
    for number, sentence in units(sentences):
        amounts: Counter[_Feature] = Counter(span.label for span in sentence.entities)
        amounts.update(annotation.label for annotation in sentence.irregular)
        amounts[_SENTENCES] = 1
        amounts[_NESTED] = len(nested(sentence.entities))
        if number < len(found):
            amounts.update(dict(found[number]))
        key = tuple(sorted(((f, n) for f, n in amounts.items() if n), key=str))
        key = same.setdefault(key, key)
        if number < len(found):
            found[number] = key
        else:
            found.append(key)
    return found


def assign(amounts: Sequence[Amounts], parts: Sequence[Part], seed: int) -> list[int]:
    """The part of each unit.

    Greedy: units go one by one, those with a large share of anything first (so what is rare is
    dealt out while there is still a choice), each to the part that it brings nearest to its share
    of every feature. Among those of about the same share the seed decides which is first.
    """
    if len(amounts) < len(parts):
        raise DataError(
            f"{len(amounts)} documents or sentences that stand alone cannot be split into "
            f"{len(parts)} parts; give more data or fewer parts"
        )
    totals: Counter[_Feature] = Counter()
    for unit in amounts:
        totals.update(dict(unit))
    wanted = [{feature: part.share * totals[feature] for feature in totals} for part in parts]
    missing = [dict(each) for each in wanted]
    order = list(range(len(amounts)))
    random.Random(seed).shuffle(order)
    order.sort(key=lambda number: -round(log2(max(n / totals[f] for f, n in amounts[number]))))
    chosen = [0] * len(amounts)
    empty = set(range(len(parts)))
    for done, number in enumerate(order):
        unit = amounts[number]
        candidates: Iterable[int] = range(len(parts))
        if len(order) - done == len(empty):
            candidates = sorted(empty)  # no part stays without anything

        def cost(part: int, unit: Amounts = unit) -> float:
            """By how much the squared distance from the wanted amounts grows, relatively."""
            lacks, wants = missing[part], wanted[part]
            return sum(n * (n - 2 * lacks[f]) / (wants[f] * totals[f]) for f, n in unit)

        best = min(candidates, key=cost)
        chosen[number] = best
        empty.discard(best)
        for feature, n in unit:
            missing[best][feature] -= n
    return chosen


def split(
    read: Callable[[], Iterator[Sentence]],
    parts: Mapping[Part, Path],
    seed: int,
    format: str,
) -> dict[Part, Statistics]:
    """Write each part to its file, all or none; what they hold.

    read: begins to read the corpus, which is done once to measure it and once for each part, so
    that it need not fit into the memory.
    """
    chosen = assign(measure(read()), list(parts), seed)
    found = {part: Statistics() for part in parts}

    def passing(index: int, statistics: Statistics) -> Iterator[Sentence]:
        for number, sentence in units(read()):
            if chosen[number] == index:
                statistics.add(sentence)
                yield sentence

    formats.write_parts(
        {path: passing(i, found[part]) for i, (part, path) in enumerate(parts.items())},
        format,
    )
    return found
