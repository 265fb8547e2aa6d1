"""Predicted entities against gold ones, nested ones included.

Every sentence's entities are a set: one predicted twice counts once. Three measures:

* strict: boundaries and label are right;
* boundaries alone: the distinct spans of a sentence, whatever their labels;
* overlap: as many entities count as can be paired, one to one, with one of the same label on the
  other side that shares at least a word with them (a maximum bipartite matching).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diffusionner.corpus import Entity, Sentence, Span, is_annotated
from diffusionner.evaluation.counts import Average, Counts, Row, SliceCounts, row_to_dict
from diffusionner.evaluation.matching import Judgement, Kind, count_overlapping, judge
from diffusionner.evaluation.mentions import Layout, Mention, mentions_of, nesting

if TYPE_CHECKING:
    from rich.table import Table

IntArray = npt.NDArray[np.int64]
# The most words in each bucket of lengths but the last, which is open.
ENTITY_LENGTHS = (1, 2, 3, 4, 5, 10)
SENTENCE_LENGTHS = (10, 20, 30, 40, 50)


@dataclass(frozen=True, slots=True)
class Pair:
    """One sentence's gold and predicted mentions; without a sentence, only the mentions count."""

    gold: frozenset[Mention]
    predicted: frozenset[Mention]
    sentence: Sentence | None = None

    @property
    def words(self) -> int:
        return len(self.sentence.words) if self.sentence else 0


@dataclass(frozen=True, slots=True)
class PerSentence:
    """Correct, predicted and gold of each sentence, in rows: what is resampled."""

    strict: IntArray
    boundaries: IntArray
    overlap: IntArray
    per_type: dict[str, IntArray]  # strict
    overlap_per_type: dict[str, IntArray]


@dataclass(frozen=True, slots=True)
class Report:
    """All that is said about one set of predictions."""

    sentences: int
    micro: Counts  # strict
    macro: Average  # strict, over the types that occur in gold or predictions
    boundaries: Counts
    overlap: Counts
    types: Counts  # the labels of a sentence, wherever they stand
    nested: SliceCounts
    irregular: Counts  # strict, of those that are no run of whole words
    per_type: dict[str, Counts]  # strict, sorted by label
    overlap_macro: Average
    overlap_per_type: dict[str, Counts]
    by_depth: dict[str, SliceCounts]
    by_length: dict[str, SliceCounts]  # words of the entity
    by_sentence_length: dict[str, SliceCounts]  # words of the sentence; empty if not known
    errors: dict[Kind, int]
    # (gold label, predicted label) of entities with the same boundaries; None for one alone.
    confusion: dict[tuple[str | None, str | None], int]
    per_sentence: PerSentence = field(repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; what is not known or does not occur is left out."""
        result: dict[str, Any] = {
            "sentences": self.sentences,
            "micro": row_to_dict(self.micro),
            "macro": row_to_dict(self.macro),
            "boundaries": row_to_dict(self.boundaries),
            "overlap": {
                **row_to_dict(self.overlap),
                "macro": row_to_dict(self.overlap_macro),
                "per_type": _rows(self.overlap_per_type),
            },
            "types": row_to_dict(self.types),
            "nested": row_to_dict(self.nested),
            "per_type": _rows(self.per_type),
            "by_depth": _rows(self.by_depth),
            "by_length": _rows(self.by_length),
            "errors": {kind.value: count for kind, count in self.errors.items()},
            "confusion": self._confusion_to_dict(),
        }
        if self.by_sentence_length:
            result["by_sentence_length"] = _rows(self.by_sentence_length)
        if self.irregular.gold or self.irregular.predicted:
            result["irregular"] = row_to_dict(self.irregular)
        return result

    def to_table(self) -> Table:
        """For the terminal: percentages, and as support the number of gold entities."""
        from diffusionner.evaluation.tables import summary

        return summary(self).to_rich()

    def _confusion_to_dict(self) -> dict[str, Any]:
        """Rows are gold labels, columns predicted ones; the last of each is for no entity."""
        names: list[str | None] = [*self.per_type, None]
        return {
            "labels": names[:-1],
            "counts": [[self.confusion.get((row, column), 0) for column in names] for row in names],
        }


def score(
    gold: Sequence[Sequence[Span | Entity]], predicted: Sequence[Sequence[Span | Entity]]
) -> Report:
    """Compare lists of entities, sentence by sentence in the same order."""
    _check_number(gold, predicted)
    return compare(
        [
            Pair(frozenset(map(_mention, wanted)), frozenset(map(_mention, found)))
            for wanted, found in zip(gold, predicted, strict=True)
        ]
    )


def pair_up(gold: Sequence[Sentence], predicted: Sequence[Sequence[Span | Entity]]) -> list[Pair]:
    """Gold sentences with entities predicted for their words, of labels that were looked for."""
    _check_number(gold, predicted)
    pairs = []
    for sentence, found in zip(gold, predicted, strict=True):
        layout = Layout(sentence.words)
        counted = [entity[:3] for entity in found if is_annotated(sentence, entity[2])]
        placed = frozenset(layout.of_words(*entity) for entity in counted)
        pairs.append(Pair(mentions_of(sentence), placed, sentence))
    return pairs


def compare(pairs: Sequence[Pair]) -> Report:
    """Score pairs of gold and predicted mentions."""
    each = _count(pairs)
    per_type = {label: _total(rows) for label, rows in each.per_type.items()}
    overlap_per_type = {label: _total(rows) for label, rows in each.overlap_per_type.items()}
    micro = _total(each.strict)
    judgements = [judgement for pair in pairs for judgement in judge(pair.gold, pair.predicted)]
    kinds = Counter(judgement.kind for judgement in judgements)
    placed = [_Placed(pair, nesting(pair.gold), nesting(pair.predicted)) for pair in pairs]
    depths = _slices(placed, lambda pair, mention, depth, nested: depth)
    nested = _slices(placed, lambda pair, mention, depth, nested: nested)
    lengths = _slices(placed, lambda pair, mention, depth, nested: mention.words)
    with_words = [one for one in placed if one.pair.sentence is not None]
    sentence_lengths = _slices(with_words, lambda pair, mention, depth, nested: pair.words)
    return Report(
        sentences=len(pairs),
        micro=micro,
        macro=Average.over(per_type.values()),
        boundaries=_total(each.boundaries),
        overlap=_total(each.overlap),
        types=Counts(_same_types(pairs), micro.predicted, micro.gold),
        nested=nested.get(True, SliceCounts()),
        irregular=_irregular(pairs),
        per_type=per_type,
        overlap_macro=Average.over(overlap_per_type.values()),
        overlap_per_type=overlap_per_type,
        by_depth={str(depth): depths[depth] for depth in sorted(depths)},
        by_length=_in_buckets(lengths, ENTITY_LENGTHS),
        by_sentence_length=_in_buckets(sentence_lengths, SENTENCE_LENGTHS),
        errors={kind: kinds[kind] for kind in Kind},
        confusion=_confusion(judgements),
        per_sentence=each,
    )


def _count(pairs: Sequence[Pair]) -> PerSentence:
    labels = sorted({m.label for pair in pairs for m in pair.gold | pair.predicted})

    def table() -> IntArray:
        return np.zeros((len(pairs), 3), np.int64)

    each = PerSentence(
        table(), table(), table(), {x: table() for x in labels}, {x: table() for x in labels}
    )
    for i, (gold, predicted) in enumerate((pair.gold, pair.predicted) for pair in pairs):
        if not gold and not predicted:
            continue
        sizes = len(predicted), len(gold)
        overlapping = count_overlapping(gold, predicted)
        each.strict[i] = len(gold & predicted), *sizes
        each.overlap[i] = overlapping.total(), *sizes
        gold_spans, predicted_spans = {m.parts for m in gold}, {m.parts for m in predicted}
        same = len(gold_spans & predicted_spans)
        each.boundaries[i] = same, len(predicted_spans), len(gold_spans)
        correct = Counter(m.label for m in gold & predicted)
        of_predicted, of_gold = Counter(m.label for m in predicted), Counter(m.label for m in gold)
        for label in of_predicted | of_gold:
            sizes = of_predicted[label], of_gold[label]
            each.per_type[label][i] = correct[label], *sizes
            each.overlap_per_type[label][i] = overlapping[label], *sizes
    return each


def _same_types(pairs: Sequence[Pair]) -> int:
    """How many labels are right, wherever they stand in their sentence."""
    return sum(
        (Counter(m.label for m in pair.gold) & Counter(m.label for m in pair.predicted)).total()
        for pair in pairs
    )


def _irregular(pairs: Sequence[Pair]) -> Counts:
    gold = [(i, m) for i, pair in enumerate(pairs) for m in pair.gold if not m.regular]
    found = [(i, m) for i, pair in enumerate(pairs) for m in pair.predicted if not m.regular]
    return Counts(len(set(gold) & set(found)), len(found), len(gold))


def _confusion(judgements: Sequence[Judgement]) -> dict[tuple[str | None, str | None], int]:
    """Boundary errors are two entities alone here: none has the other's boundaries."""
    cells: Counter[tuple[str | None, str | None]] = Counter()
    for kind, gold, predicted in judgements:
        if gold and predicted and kind in (Kind.CORRECT, Kind.TYPE):
            cells[gold.label, predicted.label] += 1
            continue
        if gold:
            cells[gold.label, None] += 1
        if predicted:
            cells[None, predicted.label] += 1
    return dict(cells)


class _Placed(NamedTuple):
    """A sentence with the depth of each mention, and whether it takes part in nesting."""

    pair: Pair
    gold: dict[Mention, tuple[int, bool]]
    predicted: dict[Mention, tuple[int, bool]]


def _slices(
    placed: Sequence[_Placed], key: Callable[[Pair, Mention, int, bool], int]
) -> dict[int, SliceCounts]:
    """Count the mentions by a key of theirs."""
    rows: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for pair, gold, predicted in placed:
        for mention, (depth, nested) in predicted.items():
            row = rows[key(pair, mention, depth, nested)]
            row[0] += mention in pair.gold
            row[1] += 1
        for mention, (depth, nested) in gold.items():
            row = rows[key(pair, mention, depth, nested)]
            row[2] += mention in pair.predicted
            row[3] += 1
    return {value: SliceCounts(*row) for value, row in rows.items()}


def _in_buckets(rows: Mapping[int, SliceCounts], most: Sequence[int]) -> dict[str, SliceCounts]:
    """Add up rows by number of words."""
    result: dict[str, SliceCounts] = {}
    for words in sorted(rows):
        bucket = bisect_left(most, words)
        first = most[bucket - 1] + 1 if bucket else 1
        if bucket == len(most):
            name = f"{first}+"
        else:
            name = str(first) if first == most[bucket] else f"{first}-{most[bucket]}"
        result[name] = result.get(name, SliceCounts()) + rows[words]
    return result


def _total(rows: IntArray) -> Counts:
    return Counts(*(int(value) for value in rows.sum(axis=0)))


def _rows(rows: Mapping[str, Row]) -> dict[str, dict[str, float | int]]:
    return {name: row_to_dict(row) for name, row in rows.items()}


def _mention(entity: Span | Entity) -> Mention:
    """Of an entity alone: its words count as characters, and its score and text do not matter."""
    start, end, label = entity[:3]
    return Mention(((start, end),), label, end - start)


def _check_number(gold: Sequence[object], predicted: Sequence[object]) -> None:
    if len(gold) != len(predicted):
        raise ValueError(
            f"{len(gold)} gold sentences but {len(predicted)} predicted ones; "
            "give one list of entities for each sentence, empty where there are none"
        )
