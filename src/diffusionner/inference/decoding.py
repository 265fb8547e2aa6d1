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
    total: float  # sum of the three probabilities
    score: float  # in [0, 1]
    votes: int  # spans that ended at these boundaries


def deduplicate(
    table: np.ndarray, windows: Windows, chosen: np.ndarray, judge: Judge
) -> list[tuple[int, Found]]:
    """(sentence, entity) for the distinct spans of a batch that was read out.

    Of equal boundaries the likeliest type stays, and of these what the judge may let pass.
    A window of a cut sentence keeps the entities whose middle it owns, so each is taken from the
    window in which it has most context.
    """
    row, slot = np.nonzero(table[..., 3] >= 0)
    left, right, kind, total, type_p = table[row, slot].T
    offset = windows.offset[chosen][row]
    left, right = left.astype(np.int64) + offset, right.astype(np.int64) + offset
    middle = (left + right + 1) // 2
    owned = (middle >= windows.owned_start[chosen][row]) & (middle < windows.owned_end[chosen][row])
    # Sorted by span and then by type probability, the first of each run of equal spans is kept.
    words = int(right.max(initial=0)) + 1
    span = (row * words + left) * words + right
    order = np.lexsort((-total, -type_p, span))
    order = order[owned[order]]
    fresh = np.ones(len(order), dtype=bool)
    fresh[1:] = np.diff(span[order]) != 0
    kept = order[fresh]
    votes = np.diff(np.append(np.flatnonzero(fresh), len(order)))
    passed = total[kept] >= judge.least.min()
    kept, votes = kept[passed], votes[passed]
    sentences = windows.sentence[chosen][row[kept]]
    columns = (
        left[kept], right[kept], kind[kept].astype(np.int64), total[kept],
        judge.scores(total[kept]), votes,
    )  # fmt: skip
    found = map(Found, *(column.tolist() for column in columns))
    return list(zip(sentences.tolist(), found, strict=True))


def resolve_overlaps(found: Iterable[Found], policy: str) -> list[Found]:
    """Best first, drop what the policy forbids; the result is in reading order.

    A lower φ only adds entities at the end of "best first", so filtering by φ afterwards gives the
    same as filtering before.
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
