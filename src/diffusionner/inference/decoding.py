"""Predictions to entities: de-duplicate, resolve overlaps, filter by φ (paper, 4.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from diffusionner.batching import Windows
from diffusionner.corpus import Span

if TYPE_CHECKING:
    from diffusionner.inference.calibration import Judge


class Found(NamedTuple):
    """A decoded entity in word indices of its sentence, both boundaries inclusive."""

    left: int
    right: int
    kind: int
    total: float  # sum of the three probabilities, a mean over steps
    score: float  # in [0, 1]
    votes: int  # spans that had these boundaries, in the step in which most did


def deduplicate(
    table: np.ndarray, windows: Windows, chosen: np.ndarray, judge: Judge
) -> list[tuple[int, Found]]:
    """(sentence, entity) for the distinct spans of a batch that was read out, [B, steps, K, 5].

    Of equal boundaries the likeliest type stays, and of these what the judge may let pass. The
    total is the mean over the steps in which spans had these boundaries: a step that moved on from
    an entity does not undo it, but one that is found again and again is judged by all of them.
    A window of a cut sentence keeps the entities whose middle it owns, so each is taken from the
    window in which it has most context.
    """
    row, step, slot = np.nonzero(table[..., 3] >= 0)
    left, right, kind, total, type_p = table[row, step, slot].T
    offset = windows.offset[chosen][row]
    left, right = left.astype(np.int64) + offset, right.astype(np.int64) + offset
    middle = (left + right + 1) // 2
    owned = (middle >= windows.owned_start[chosen][row]) & (middle < windows.owned_end[chosen][row])
    words = int(right.max(initial=0)) + 1
    span = (row * words + left) * words + right
    # One stable sort by a whole number: sorting by probabilities as well takes ten times as long.
    order = np.argsort(span * table.shape[1] + step, kind="stable")
    order = order[owned[order]]
    if not len(order):
        return []
    steps = _runs(span[order] * table.shape[1] + step[order])
    votes = np.diff(np.append(steps, len(order)))
    best = order[_best_of(steps, type_p[order], total[order])]  # of each span and step
    spans = _runs(span[best])
    kept = best[_best_of(spans, type_p[best])]  # from the step that is surest of the type
    total = np.add.reduceat(total[best], spans) / np.diff(np.append(spans, len(best)))
    votes = np.maximum.reduceat(votes, spans)
    passed = total >= judge.least.min()
    kept, total, votes = kept[passed], total[passed], votes[passed]
    sentences = windows.sentence[chosen][row[kept]]
    columns = (
        left[kept], right[kept], kind[kept].astype(np.int64), total, judge.scores(total), votes,
    )  # fmt: skip
    found = map(Found, *(column.tolist() for column in columns))
    return list(zip(sentences.tolist(), found, strict=True))


def _runs(values: np.ndarray) -> np.ndarray:
    """Where runs of equal values begin."""
    fresh = np.ones(len(values), dtype=bool)
    fresh[1:] = values[1:] != values[:-1]
    return np.flatnonzero(fresh)


def _best_of(starts: np.ndarray, *values: np.ndarray) -> np.ndarray:
    """Of each run the place of its largest value, equal ones told apart by the next values."""
    count = len(values[0])
    run = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, count)))
    places = np.arange(count)
    for value in values:
        largest = np.maximum.reduceat(value[places], _runs(run[places]))
        places = places[value[places] == largest[run[places]]]
    return places[_runs(run[places])]


def passing(found: Iterable[Found], least: np.ndarray) -> list[Found]:
    """Those that have the least total of their type, [C]."""
    limits = least.tolist()
    return [one for one in found if one.total >= limits[one.kind]]


def resolve_overlaps(found: Iterable[Found], policy: str) -> list[Found]:
    """Best first, drop what the policy forbids; the result is in reading order.

    A lower φ only adds entities at the end of "best first", so filtering by φ afterwards, as
    where it is chosen, gives the same as filtering before. With thresholds by type it does not: one
    that is not let pass must not keep another out.
    """
    ranked = sorted(found, key=lambda f: (-f.total, f.left, f.right, f.kind))
    if policy != "all":
        clash = _crossing if policy == "nested" else _overlapping
        kept: list[Found] = []
        for one in ranked:
            if not any(clash(one, other) for other in kept):
                kept.append(one)
        ranked = kept
    return sorted(ranked, key=lambda f: (f.left, -f.right, f.kind))


def to_spans(found: Iterable[Found], labels: Sequence[str]) -> list[Span]:
    """Entities as the corpora have them."""
    return [Span(f.left, f.right + 1, labels[f.kind]) for f in found]


def _overlapping(a: Found, b: Found) -> bool:
    return a.left <= b.right and b.left <= a.right


def _crossing(a: Found, b: Found) -> bool:
    return a.left < b.left <= a.right < b.right or b.left < a.left <= b.right < a.right
