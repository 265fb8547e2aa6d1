"""Candidates to entities: merge equal spans, filter by score, resolve overlaps (paper, 4.3)."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise, repeat
from typing import NamedTuple

import numpy as np

from diffusionner.batching import Windows
from diffusionner.corpus import Discontinuous, Offsets, Span, split_at_gaps
from diffusionner.diffusion import Candidates, GappedCandidates
from diffusionner.settings import InferenceSettings
from diffusionner.storage.calibration import Calibration

DEFAULT_PHI = 2.5  # the paper's, for a model without calibration


class DecodedEntity(NamedTuple):
    """An entity in word indices of its sentence, both boundaries inclusive."""

    left: int
    right: int
    type_id: int
    summed_probability: float  # P^l + P^r + P^c, averaged over steps
    score: float  # in [0, 1]
    votes: int  # spans with these boundaries, in the step that has the most of them
    gaps: Offsets = ()  # first and last word of each gap of a discontinuous entity


class EntityColumns(NamedTuple):
    """Entities of many sentences as columns, [N] each; fields as in `DecodedEntity`."""

    sentence: np.ndarray
    left: np.ndarray
    right: np.ndarray
    type_id: np.ndarray
    summed_probability: np.ndarray
    score: np.ndarray
    votes: np.ndarray


Gapped = Sequence[tuple[int, DecodedEntity]]  # discontinuous entities with their sentences
_to_entity = partial(tuple.__new__, DecodedEntity)  # DecodedEntity(*row) takes nearly twice as long
NO_ENTITIES = EntityColumns(*[np.zeros(0, dtype=np.int64)] * 7)


class ScoreRule:
    """Turns summed probabilities into scores, and holds the minimum for each type.

    trained_for: the overlap policy of the training data. It decides what `flat` means: the scores
    of a nested model do not say which of two nested entities a flat annotation would have.
    """

    def __init__(
        self,
        settings: InferenceSettings,
        labels: Sequence[str],
        calibration: Calibration | None,
        trained_for: str = "flat",
    ) -> None:
        self.calibration = calibration
        self.flat_policy = "flat" if trained_for == "flat" else "flat view"
        self.knots: tuple[tuple[float, ...], tuple[float, ...]] = ((0.0, 3.0), (0.0, 1.0))
        if calibration is not None:
            self.knots = (calibration.sums, calibration.probabilities)
        self.min_sums: np.ndarray  # [C] minimum summed probability of an entity of each type
        if settings.phi is not None:
            self.min_sums = np.full(len(labels), settings.phi)
        elif settings.threshold is not None:
            score = settings.threshold
            minimum = 3 * score if calibration is None else calibration.min_sum(score)
            self.min_sums = np.full(len(labels), minimum)
        elif calibration is not None:
            minimum_of = (calibration.min_sum(calibration.threshold_of(x)) for x in labels)
            self.min_sums = np.array(list(minimum_of))
        else:
            self.min_sums = np.full(len(labels), DEFAULT_PHI)
        # The rule for discontinuous entities; the calibration of the others is not theirs.
        self.of_gapped = self
        if calibration is not None:
            self.of_gapped = ScoreRule(settings, labels, calibration.gapped, trained_for)

    def take(self, types: Sequence[int]) -> ScoreRule:
        """Return the rule for some of the types, in this order."""
        return self._with_minima(lambda sums: sums[list(types)])

    def only(self, wanted: np.ndarray) -> ScoreRule:
        """Return the rule that keeps entities of the wanted types alone: [C] flags."""
        return self._with_minima(lambda sums: np.where(wanted, sums, np.inf))

    def _with_minima(self, change: Callable[[np.ndarray], np.ndarray]) -> ScoreRule:
        rule = copy.copy(self)
        rule.min_sums = change(self.min_sums)
        rule.of_gapped = rule
        if self.of_gapped is not self:
            rule.of_gapped = self.of_gapped._with_minima(change)
        return rule

    def scores(self, sums: np.ndarray) -> np.ndarray:
        """Return the scores of summed probabilities: [N] → [N] in [0, 1]."""
        return np.asarray(np.interp(sums, *self.knots))


def merge_candidates(
    candidates: Candidates[np.ndarray], windows: Windows, chosen: np.ndarray, rule: ScoreRule
) -> EntityColumns:
    """Return the distinct spans of a batch that score high enough.

    Among spans with equal boundaries, the most likely type is kept. The summed probability is the
    mean over the steps in which spans had these boundaries: a step that moves away from an entity
    does not remove it, and an entity found in several steps is scored by all of them.

    A window of a split sentence keeps the entities whose middle it owns, so each is taken from the
    window in which it has the most context.

    chosen: [B] windows of the batch.
    """
    batch, steps, slots = candidates.left.shape
    names = ("left", "right", "type_id", "summed_probability", "type_probability")
    left, right, type_id, summed, type_probability = columns = [
        getattr(candidates, name).ravel() for name in names
    ]
    words = int(right.max(initial=0)) + 1
    cell = left * words + right  # of words² pairs of boundaries
    # Most spans of a step share a few boundaries: keep one of each before anything else.
    row = np.arange(batch * steps)[:, None]
    in_step = row * words**2 + cell.reshape(batch * steps, slots)
    order, starts = _group(in_step, candidates.is_entity.reshape(batch * steps, slots))
    best = _best_of(order, starts, type_probability, summed)
    votes = np.diff(starts, append=len(order))
    left, right, type_id, summed, type_probability = (column[best] for column in columns)
    row = best // max(1, steps * slots)
    window = chosen[row]
    left, right = left + windows.offset[window], right + windows.offset[window]
    middle = (left + right + 1) // 2
    owned = (middle >= windows.owned_start[window]) & (middle < windows.owned_end[window])
    span = row * words**2 + cell[best]
    order = np.argsort(span, kind="stable")  # the steps of a span stay in order
    order = order[owned[order]]
    if not len(order):
        return NO_ENTITIES
    starts = _run_starts(span[order])
    chosen_span = _best_of(order, starts, type_probability)  # from the step with the highest P^c
    summed = np.add.reduceat(summed[order], starts) / np.diff(starts, append=len(order))
    votes = np.maximum.reduceat(votes[order], starts)
    type_id = type_id[chosen_span]
    passed = summed >= rule.min_sums[type_id]
    kept, type_id, summed, votes = (
        chosen_span[passed],
        type_id[passed],
        summed[passed],
        votes[passed],
    )
    return EntityColumns(
        windows.sentence[window[kept]], left[kept], right[kept], type_id, summed,
        rule.scores(summed), votes,
    )  # fmt: skip


def gapped_entities(
    found: GappedCandidates[np.ndarray], windows: Windows, chosen: np.ndarray, rule: ScoreRule
) -> Gapped:
    """Return the discontinuous entities of a batch that score high enough.

    Windows keep those whose middle they own. Labels that are read in groups can give the same
    fragments several types; the most likely one is kept. chosen: [B] windows of the batch.
    """
    best: dict[tuple[int, int, int, Offsets], DecodedEntity] = {}
    summed = 3 * found.probability
    passed = (found.probability > 0) & (summed >= rule.min_sums[found.type_id])
    for place in np.argwhere(passed).tolist():
        row, step, slot = place
        window, sums = chosen[row], summed[row, step, slot]
        parts = found.fragments[row, step, slot] + windows.offset[window]
        words = parts[found.fragments[row, step, slot, :, 0] >= 0].tolist()
        left, right = words[0][0], words[-1][1]
        if windows.owned_start[window] <= (left + right + 1) // 2 < windows.owned_end[window]:
            gaps = tuple((one[1] + 1, other[0] - 1) for one, other in pairwise(words))
            type_id, score = int(found.type_id[row, step, slot]), float(rule.scores(sums))
            one = DecodedEntity(left, right, type_id, float(sums), score, 1, gaps)
            key = int(windows.sentence[window]), left, right, gaps
            if key not in best or sums > best[key].summed_probability:
                best[key] = one
    return [(sentence, entity) for (sentence, *_), entity in best.items()]


def entities_by_sentence(
    parts: Iterable[EntityColumns], sentences: Sequence[int], policy: str, gapped: Gapped = ()
) -> list[list[DecodedEntity]]:
    """Return the entities of each sentence in reading order, with overlaps resolved."""
    columns = EntityColumns(*map(np.concatenate, zip(NO_ENTITIES, *parts, strict=True)))
    order = np.lexsort((-columns.right, columns.left, columns.sentence))
    columns = EntityColumns(*(column[order] for column in columns))
    rows = zip(*(c.tolist() for c in columns[1:]), repeat(()), strict=False)
    entities = list(map(_to_entity, rows))
    starts, ends = (np.searchsorted(columns.sentence, sentences, s) for s in ("left", "right"))
    listed = [entities[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    if policy != "all":
        # Nothing overlaps in most sentences: in reading order, no entity overlaps the next.
        same = columns.sentence[1:] == columns.sentence[:-1]
        overlap = same & (columns.left[1:] <= columns.right[:-1])
        for place in np.flatnonzero(np.isin(sentences, columns.sentence[1:][overlap])).tolist():
            listed[place] = resolve_overlaps(listed[place], policy)
    if gapped:
        place_of = {sentence: place for place, sentence in enumerate(sentences)}
        more: dict[int, list[DecodedEntity]] = defaultdict(list)
        for sentence, entity in gapped:
            more[place_of[sentence]].append(entity)
        for place, several in more.items():
            listed[place] = resolve_overlaps([*listed[place], *several], policy)
    return listed


def _group(keys: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Group equal keys [N, K], which no two rows share.

    Return the flat indices of valid keys, equal ones adjacent and in order, and where each group
    starts. With the column in their lower bits, keys are distinct, so rows can be sorted by value:
    ten times as fast as a stable argsort.
    """
    rows, columns = keys.shape
    bits = columns.bit_length()
    ranked = np.where(valid, (keys << bits) | np.arange(columns), -1)
    ranked.sort(axis=-1)
    ranked = ranked[ranked >= 0]
    first = np.repeat(columns * np.arange(rows), np.count_nonzero(valid, axis=1))
    return first + (ranked & ((1 << bits) - 1)), _run_starts(ranked >> bits)


def _run_starts(values: np.ndarray) -> np.ndarray:
    """Return where runs of equal values start."""
    fresh = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=fresh[1:])
    return np.flatnonzero(fresh)


def _best_of(order: np.ndarray, starts: np.ndarray, *values: np.ndarray) -> np.ndarray:
    """Return the index with the largest value of each run; later values break ties."""
    run = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
    for value in values:
        here = value[order]
        alike = np.flatnonzero(here == np.maximum.reduceat(here, starts)[run])
        order, run = order[alike], run[alike]
        starts = _run_starts(run)
    return order[starts]


def resolve_overlaps(entities: Iterable[DecodedEntity], policy: str) -> list[DecodedEntity]:
    """Keep the best entities that the policy allows together, in reading order.

    For `nested` and `flat`, filtering by φ before or after gives the same result, since a lower φ
    only adds entities that rank last. Thresholds by type must be applied before: an entity below
    its threshold must not exclude another.
    """
    ranked = sorted(
        entities, key=lambda e: (-e.summed_probability, e.left, e.right, e.type_id, e.gaps)
    )
    chosen = choose_entities([(fragments_of(e), e.score) for e in ranked], policy)
    return sorted((ranked[i] for i in chosen), key=lambda e: (e.left, -e.right, e.type_id, e.gaps))


def choose_entities(entities: Sequence[tuple[Offsets, float]], policy: str) -> list[int]:
    """Return the indices of the entities (fragments, score) that the policy keeps; best first.

    A discontinuous entity may share words with others ("muscle pain and stiffness") unless the
    policy is `flat`: then those without gaps come first, and no word is in two entities.
    """
    whole = [i for i, (fragments, _) in enumerate(entities) if len(fragments) == 1]
    spans = [(*entities[i][0][0], entities[i][1]) for i in whole]
    chosen = [whole[i] for i in choose_spans(spans, policy)]
    for i, (fragments, _) in enumerate(entities):
        disjoint = policy.startswith("flat")
        if len(fragments) > 1 and not (
            disjoint and any(_share(fragments, entities[j][0]) for j in chosen)
        ):
            chosen.append(i)
    return chosen


def _share(some: Offsets, others: Offsets) -> bool:
    return any(a[0] < b[1] and b[0] < a[1] for a in some for b in others)


def choose_spans(spans: Sequence[tuple[int, int, float]], policy: str) -> list[int]:
    """Return the indices of the spans (start, exclusive end, score) that the policy keeps.

    spans: best first. Policies:

    * all: every span.
    * nested: each span that crosses no better one.
    * flat: each span that overlaps no better one. This suits a model trained on flat data, where
      overlapping spans are alternatives.
    * flat view: of the nested spans, the disjoint ones most likely to be a flat annotation.
    """
    if policy == "all":
        return list(range(len(spans)))
    clash = _overlap if policy == "flat" else _cross
    chosen: list[int] = []
    for group in _overlapping_groups(spans):
        kept: list[int] = []
        for index in group:
            if not any(clash(spans[index], spans[other]) for other in kept):
                kept.append(index)
        chosen += _flat_view(spans, kept) if policy == "flat view" else kept
    return chosen


def _overlapping_groups(spans: Sequence[tuple[int, int, float]]) -> list[list[int]]:
    """Divide spans into groups that do not overlap each other; a group keeps their order."""
    groups: list[list[int]] = []
    reached = -1
    for index in sorted(range(len(spans)), key=lambda i: spans[i][0]):
        start, end, _ = spans[index]
        if start >= reached:
            groups.append([])
        groups[-1].append(index)
        reached = max(reached, end)
    return [sorted(group) for group in groups]


def _flat_view(spans: Sequence[tuple[int, int, float]], nested: Iterable[int]) -> list[int]:
    """Choose disjoint spans from nested ones: the set with the most expected correct entities.

    Flat annotation has the outermost entities. So a span with score p is in it with p times
    (1 - p') for each span around it, and those inside a span add up to (1 - p) times what they
    would without it. The span is kept if its own p is at least that.
    """
    outer_first = sorted(nested, key=lambda i: (spans[i][0], -spans[i][1], i))
    # Spans to the right that no span so far contains: start, expected correct entities, chosen.
    following: list[tuple[int, float, list[int]]] = []
    for index in reversed(outer_first):
        start, end, score = spans[index]
        expected, inside = 0.0, []
        while following and following[-1][0] < end:
            _, correct, chosen = following.pop()
            expected += correct
            inside += chosen
        expected *= 1 - score
        following.append(
            (start, score, [index]) if score >= expected else (start, expected, inside)
        )
    return [index for _, _, chosen in following for index in chosen]


def to_spans(
    entities: Iterable[DecodedEntity], labels: Sequence[str]
) -> list[Span | Discontinuous]:
    """Convert entities to labelled spans, as corpora hold them."""
    return [
        Discontinuous(fragments_of(e), labels[e.type_id])
        if e.gaps
        else Span(e.left, e.right + 1, labels[e.type_id])
        for e in entities
    ]


def fragments_of(entity: DecodedEntity) -> Offsets:
    """Return the fragments of an entity in words, their ends exclusive."""
    gaps = tuple((first, last + 1) for first, last in entity.gaps)
    return split_at_gaps(entity.left, entity.right + 1, gaps)


def _overlap(a: tuple[int, int, float], b: tuple[int, int, float]) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _cross(a: tuple[int, int, float], b: tuple[int, int, float]) -> bool:
    return a[0] < b[0] < a[1] < b[1] or b[0] < a[0] < b[1] < a[1]
