"""Discontinuous entities from the scores of their parts (see `model.fragments`)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from diffusionner.corpus import MAX_FRAGMENTS
from diffusionner.diffusion import GappedCandidates

MIN_LOGIT = -3.0  # of a part; an entity with a less likely one is not considered
MAX_PARTS = 128  # envelopes, fragments and jumps of a sentence, each; the likeliest
MAX_GAPPED = 64  # discontinuous candidates of a sentence; the likeliest
MAX_PATHS = 2_000  # of a number of fragments; the likeliest

Part: TypeAlias = tuple[int, float]  # last word, logarithm of the probability
Fragments: TypeAlias = tuple[tuple[int, int], ...]  # first and last word of each


class Found(NamedTuple):
    """A discontinuous candidate of a sentence."""

    probability: float
    fragments: Fragments
    type_id: int


def gapped_candidates(scores: np.ndarray) -> GappedCandidates[np.ndarray]:
    """Return the discontinuous candidates of sentences.

    scores: [B, M, M, C + 2] logits of envelopes of each type, fragments and jumps.
    """
    # Most sentences have no likely jump, and nothing else is computed for them.
    rows = np.flatnonzero((scores[..., -1] > MIN_LOGIT).any((1, 2))).tolist()
    found = {row: _join(scores[row]) for row in rows}
    most = max(map(len, found.values()), default=0)
    shape = len(scores), 1, most
    fragments = np.full((*shape, MAX_FRAGMENTS, 2), -1)
    type_id = np.zeros(shape, dtype=np.int64)
    probability = np.zeros(shape)
    for row, several in found.items():
        for place, one in enumerate(several):
            fragments[row, 0, place, : len(one.fragments)] = one.fragments
            type_id[row, 0, place] = one.type_id
            probability[row, 0, place] = one.probability
    return GappedCandidates(fragments, type_id, probability)


def _join(scores: np.ndarray) -> list[Found]:
    """Return the likeliest discontinuous candidates of a sentence, best first: [M, M, C + 2]."""
    envelopes = scores[..., :-2]
    best = envelopes.max(-1)
    ends = {
        (first, last): (log, int(envelopes[first, last].argmax()))
        for first, parts in _parts(best).items()
        for last, log in parts
    }
    jumps = _parts(scores[..., -1])
    # Most fragments are entities without gaps: only those next to a jump can be part of a path.
    beside = np.zeros(scores.shape[:2], dtype=bool)
    beside[:, list(jumps)] = True
    beside[[first for parts in jumps.values() for first, _ in parts]] = True
    fragments = _parts(np.where(beside, scores[..., -2], -np.inf))
    found: list[Found] = []
    for path, log in _paths(sorted({first for first, _ in ends}), fragments, jumps):
        if (end := ends.get((path[0][0], path[-1][1]))) is not None:
            mean = (log + end[0]) / (2 * len(path))  # an envelope, n fragments and n - 1 jumps
            found.append(Found(math.exp(mean), path, end[1]))
    found.sort(key=lambda one: (-one.probability, one.fragments))
    return _discount(found[:MAX_GAPPED])


def _discount(found: list[Found]) -> list[Found]:
    """Multiply probabilities by those that no better alternative is right; best first.

    Candidates of a type are alternatives if fragments of theirs overlap and differ, such as
    "leg … pain" and "arm or leg … pain".
    """
    discounted = []
    for number, one in enumerate(found):
        better = (other for other in found[:number] if _are_alternatives(one, other))
        probability = one.probability * math.prod(1 - other.probability for other in better)
        discounted.append(one._replace(probability=probability))
    return discounted


def _are_alternatives(one: Found, other: Found) -> bool:
    return one.type_id == other.type_id and any(
        a != b and a[0] <= b[1] and b[0] <= a[1] for a in one.fragments for b in other.fragments
    )


def _parts(logits: np.ndarray) -> dict[int, list[Part]]:
    """Return the likely pairs of words by the first: [M, M]."""
    first, last = np.nonzero(logits > MIN_LOGIT)
    chosen = logits[first, last]
    if len(chosen) > MAX_PARTS:
        kept = np.argsort(-chosen, kind="stable")[:MAX_PARTS]
        first, last, chosen = first[kept], last[kept], chosen[kept]
    parts: dict[int, list[Part]] = defaultdict(list)
    logs = -np.logaddexp(0, -chosen.astype(np.float64))
    for one, other, log in zip(first.tolist(), last.tolist(), logs.tolist(), strict=True):
        parts[one].append((other, log))
    return parts


def _paths(
    starts: list[int], fragments: dict[int, list[Part]], jumps: dict[int, list[Part]]
) -> Iterator[tuple[Fragments, float]]:
    """Yield paths of two or more fragments that jumps connect, with the sum of their logarithms."""
    paths: list[tuple[Fragments, float]] = [
        (((start, end),), log) for start in starts for end, log in fragments.get(start, ())
    ]
    for _ in range(MAX_FRAGMENTS - 1):
        paths = [
            ((*path, (start, end)), total + jump + log)
            for path, total in paths
            for start, jump in jumps.get(path[-1][1], ())
            for end, log in fragments.get(start, ())
        ]
        if len(paths) > MAX_PATHS:
            paths = sorted(paths, key=lambda one: -one[1])[:MAX_PATHS]
        yield from paths
