"""Splitting of a corpus into parts that keep documents whole and labels in proportion."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import log2
from pathlib import Path

from diffusionner import formats
from diffusionner.corpus import Sentence
from diffusionner.data.overlaps import nested_entities
from diffusionner.data.statistics import Statistics
from diffusionner.errors import DataError
from diffusionner.formats.documents import follows_in_text

# Features that are kept in proportion besides the labels, which are strings.
_SENTENCES, _NESTED, _DISCONTINUOUS = 0, 1, 2
_Feature = int | str
Amounts = tuple[tuple[_Feature, int], ...]  # amount of each feature in a unit


def parse_shares(text: str) -> dict[str, float]:
    """Parse NAME=SHARE,NAME=SHARE with shares that sum to 1."""
    shares: dict[str, float] = {}
    for item in map(str.strip, text.split(",")):
        name, _, value = item.partition("=")
        try:
            share = float(value)
        except ValueError:
            share = 0.0
        if not re.fullmatch(r"\w[\w.-]*", name) or not 0 < share < 1:
            raise DataError(
                f"'{item}' is not a part; write NAME=SHARE with a share between 0 and 1, "
                "for example train=0.8,dev=0.1,test=0.1"
            )
        if name.lower() in map(str.lower, shares):  # some file systems ignore case
            raise DataError(f"there are two parts '{name.lower()}'; give each its own name")
        shares[name] = share
    total = sum(shares.values())
    if len(shares) < 2 or abs(total - 1) > 1e-6:
        raise DataError(f"the shares sum to {total:g}; give two or more parts that sum to 1")
    return shares


def number_units(sentences: Iterable[Sentence]) -> Iterator[tuple[int, Sentence]]:
    """Yield each sentence with the number of the unit that must stay together.

    A unit is a document, or else the sentences of one text, or else a single sentence.
    """
    documents: dict[str, int] = {}
    previous: Sentence | None = None
    number = count = 0
    for sentence in sentences:
        if sentence.doc is not None and sentence.doc in documents:
            number = documents[sentence.doc]
        elif previous is None or not follows_in_text(sentence, previous):
            number, count = count, count + 1
            if sentence.doc is not None:
                documents[sentence.doc] = number
        previous = sentence
        yield number, sentence


def unit_amounts(sentences: Iterable[Sentence]) -> list[Amounts]:
    """Return the amount of each feature in each unit."""
    units: list[Amounts] = []
    interned: dict[Amounts, Amounts] = {}  # most units equal another: saves memory
    for number, sentence in number_units(sentences):
        amounts: Counter[_Feature] = Counter(e.label for e in sentence.all_entities)
        amounts.update(annotation.label for annotation in sentence.irregular)
        amounts[_SENTENCES] = 1
        amounts[_NESTED] = len(nested_entities(sentence.entities))
        amounts[_DISCONTINUOUS] = len(sentence.discontinuous)
        if number == len(units):
            units.append(())
        amounts.update(dict(units[number]))
        key = tuple(sorted(((f, n) for f, n in amounts.items() if n), key=str))
        units[number] = interned.setdefault(key, key)
    return units


def assign_parts(units: Sequence[Amounts], shares: Sequence[float], seed: int) -> list[int]:
    """Return the index of the part of each unit.

    Greedy: units with a large share of any feature come first, so that rare features are
    distributed while there is still a choice. Each goes to the part whose share of every feature it
    brings closest to the target. The seed shuffles units of about the same share.
    """
    if len(units) < len(shares):
        raise DataError(
            f"{len(units)} documents or separate sentences cannot be split into {len(shares)} "
            "parts; give more data or fewer parts"
        )
    totals: Counter[_Feature] = Counter()
    for unit in units:
        totals.update(dict(unit))
    targets = [{feature: share * totals[feature] for feature in totals} for share in shares]
    missing = [dict(target) for target in targets]
    order = list(range(len(units)))
    random.Random(seed).shuffle(order)
    order.sort(key=lambda number: -round(log2(max(n / totals[f] for f, n in units[number]))))
    chosen = [0] * len(units)
    empty = set(range(len(shares)))
    for done, number in enumerate(order):
        unit = units[number]
        # At the end, fill the parts that are still empty.
        candidates = sorted(empty) if len(order) - done == len(empty) else range(len(shares))

        def cost(part: int, unit: Amounts = unit) -> float:
            """Return the growth of the relative squared distance from the target amounts."""
            lacking, target = missing[part], targets[part]
            return sum(n * (n - 2 * lacking[f]) / (target[f] * totals[f]) for f, n in unit)

        best = min(candidates, key=cost)
        chosen[number] = best
        empty.discard(best)
        for feature, n in unit:
            missing[best][feature] -= n
    return chosen


def split(
    read: Callable[[], Iterator[Sentence]],
    shares: Mapping[str, float],
    paths: Mapping[str, Path],
    seed: int,
    format: str,
) -> dict[str, Statistics]:
    """Write the parts to their paths, all or none, and return their statistics.

    read: starts reading the corpus. It is called once to count and once for each part, so that the
    corpus need not fit into memory.
    """
    chosen = assign_parts(unit_amounts(read()), list(shares.values()), seed)
    result = {name: Statistics() for name in shares}

    def selected(index: int, statistics: Statistics) -> Iterator[Sentence]:
        for number, sentence in number_units(read()):
            if chosen[number] == index:
                statistics.add(sentence)
                yield sentence

    parts = {paths[name]: selected(i, result[name]) for i, name in enumerate(shares)}
    formats.write_files(parts, format)
    return result
