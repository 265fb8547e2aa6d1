"""Predictions to entities: de-duplicate, resolve overlaps, filter by φ (paper, 4.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from diffusionner.batching import Windows
from diffusionner.corpus import Span

if TYPE_CHECKING:
    from diffusionner.inference.calibration import ScoreRule


class DecodedEntity(NamedTuple):
    """A decoded entity in word indices of its sentence, both boundaries inclusive."""

    left: int
    right: int
    kind: int
    total: float  # sum of the three probabilities, a mean over steps
    score: float  # in [0, 1]
    votes: int  # spans that had these boundaries, in the step in which most did


class Columns(NamedTuple):
    """Entities of many sentences as columns, [N] each; fields as in `DecodedEntity`."""

    sentence: np.ndarray
    left: np.ndarray
    right: np.ndarray
    kind: np.ndarray
    total: np.ndarray
    score: np.ndarray
    votes: np.ndarray

    def found(self) -> list[DecodedEntity]:
        rows = zip(*(column.tolist() for column in self[1:]), strict=True)
        return list(map(_TO_FOUND, rows))


_TO_FOUND = partial(tuple.__new__, DecodedEntity)  # DecodedEntity(*row) takes nearly twice as long
_NONE = Columns(*[np.zeros(0, dtype=np.int64)] * 7)


def deduplicate(
    table: np.ndarray, windows: Windows, chosen: np.ndarray, judge: ScoreRule
) -> Columns:
    """The distinct spans that pass, of a batch that was read out, [B, steps, K, 5].

    Of equal boundaries the likeliest type stays. The total is the mean over the steps in which
    spans had these boundaries: a step that moved on from an entity does not undo it, but one that
    is found again and again is judged by all of them.
    A window of a cut sentence keeps the entities whose middle it owns, so each is taken from the
    window in which it has most context.
    """
    batch, steps, slots = table.shape[:3]
    left, right, kind, total, type_p = np.ascontiguousarray(table.reshape(-1, 5).T)
    words = int(right.max(initial=0)) + 1
    cell = left.astype(np.int64) * words + right.astype(np.int64)  # of words² boundaries
    # Most spans of a step are at the same few boundaries: one of each is left before all else.
    row = np.arange(batch * steps)[:, None]
    in_step = row * words**2 + cell.reshape(batch * steps, slots)
    order, starts = _grouped(in_step, total.reshape(batch * steps, slots) >= 0)
    best = _best_of(order, starts, type_p, total)
    votes = _run_lengths(starts, len(order))
    left, right, kind, total, type_p = (x[best] for x in (left, right, kind, total, type_p))
    row = best // max(1, steps * slots)
    owner = chosen[row]
    offset = windows.offset[owner]
    left, right = left.astype(np.int64) + offset, right.astype(np.int64) + offset
    middle = (left + right + 1) // 2
    owned = (middle >= windows.owned_start[owner]) & (middle < windows.owned_end[owner])
    span = row * words**2 + cell[best]
    order = np.argsort(span, kind="stable")  # the steps of a span stay in order
    order = order[owned[order]]
    if not len(order):
        return _NONE
    starts = _runs(span[order])
    one = _best_of(order, starts, type_p)  # from the step that is surest of the type
    total = np.add.reduceat(total[order], starts) / _run_lengths(starts, len(order))
    votes = np.maximum.reduceat(votes[order], starts)
    kind = kind[one].astype(np.int64)
    passed = total >= judge.least[kind]
    one, kind, total, votes = one[passed], kind[passed], total[passed], votes[passed]
    sentence = windows.sentence[owner[one]]
    return Columns(sentence, left[one], right[one], kind, total, judge.scores(total), votes)


def by_sentence(
    parts: Iterable[Columns], sentences: Sequence[int], policy: str
) -> list[list[DecodedEntity]]:
    """The entities of each sentence in reading order, overlaps resolved."""
    columns = Columns(*map(np.concatenate, zip(_NONE, *parts, strict=True)))
    order = np.lexsort((-columns.right, columns.left, columns.sentence))
    columns = Columns(*(column[order] for column in columns))
    found = columns.found()
    starts, ends = (np.searchsorted(columns.sentence, sentences, s) for s in ("left", "right"))
    listed = [found[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    if policy != "all":
        # In most sentences nothing overlaps: then, in reading order, no entity does the next one.
        same = columns.sentence[1:] == columns.sentence[:-1]
        overlap = same & (columns.left[1:] <= columns.right[:-1])
        for place in np.flatnonzero(np.isin(sentences, columns.sentence[1:][overlap])).tolist():
            listed[place] = resolve_overlaps(listed[place], policy)
    return listed


def _grouped(keys: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[N, K] keys, no row's in another → the places of valid ones in the flat array, equal ones
    together in their order, and where each run of these begins.

    Keys with their columns in the lower bits are all different, so rows can be sorted by value: ten
    times as fast as a stable sort of places.
    """
    rows, columns = keys.shape
    bits = columns.bit_length()
    ranked = np.where(valid, (keys << bits) | np.arange(columns), -1)
    ranked.sort(axis=-1)
    ranked = ranked[ranked >= 0]
    first = np.repeat(columns * np.arange(rows), np.count_nonzero(valid, axis=1))
    return first + (ranked & ((1 << bits) - 1)), _runs(ranked >> bits)


def _runs(values: np.ndarray) -> np.ndarray:
    """Where runs of equal values begin."""
    fresh = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=fresh[1:])
    return np.flatnonzero(fresh)


def _run_lengths(starts: np.ndarray, count: int) -> np.ndarray:
    return np.diff(starts, append=count)


def _best_of(order: np.ndarray, starts: np.ndarray, *values: np.ndarray) -> np.ndarray:
    """Of each run of places the one with the largest value, equal ones told apart by the next."""
    run = np.repeat(np.arange(len(starts)), _run_lengths(starts, len(order)))
    for value in values:
        here = value[order]
        alike = np.flatnonzero(here == np.maximum.reduceat(here, starts)[run])
        order, run = order[alike], run[alike]
        starts = _runs(run)
    return order[starts]


def resolve_overlaps(found: Iterable[DecodedEntity], policy: str) -> list[DecodedEntity]:
    """Best first, drop what the policy forbids; the result is in reading order.

    A lower φ only adds entities at the end of "best first", so filtering by φ afterwards, as
    where it is chosen, gives the same as filtering before. With thresholds by type it does not: one
    that is not let pass must not keep another out.
    """
    ranked = sorted(found, key=lambda f: (-f.total, f.left, f.right, f.kind))
    if policy != "all":
        clash = _crossing if policy == "nested" else _overlapping
        kept: list[DecodedEntity] = []
        for one in ranked:
            if not any(clash(one, other) for other in kept):
                kept.append(one)
        ranked = kept
    return sorted(ranked, key=lambda f: (f.left, -f.right, f.kind))


def to_spans(found: Iterable[DecodedEntity], labels: Sequence[str]) -> list[Span]:
    """Entities as the corpora have them."""
    return [Span(f.left, f.right + 1, labels[f.kind]) for f in found]


def _overlapping(a: DecodedEntity, b: DecodedEntity) -> bool:
    return a.left <= b.right and b.left <= a.right


def _crossing(a: DecodedEntity, b: DecodedEntity) -> bool:
    return a.left < b.left <= a.right < b.right or b.left < a.left <= b.right < a.right
