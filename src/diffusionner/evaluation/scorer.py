"""Scoring of predicted against gold entities, including nested ones.

The entities of a sentence are a set, so duplicates count once. There are four measures:

* strict: all boundaries, those of gaps included, and the label are correct;
* boundaries only: the distinct spans of a sentence, whatever their labels;
* overlap: the largest number of one-to-one pairs of gold and predicted entities that have the same
  label and share at least one word (a maximum bipartite matching);
* words: the distinct pairs of a word and the label of an entity that covers it. A discontinuous
  entity of which only a fragment is found, or whose gap is missed, thus gets partial credit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np

from diffusionner.corpus import Discontinuous, Entity, Sentence, Span, is_annotated
from diffusionner.evaluation.counts import Average, Counts, IntArray, SliceCounts
from diffusionner.evaluation.matching import Match, Outcome, count_overlapping, match_mentions
from diffusionner.evaluation.mentions import JoinedWords, Mention, nesting, sentence_mentions
from diffusionner.evaluation.report import Pair, Report

# Upper ends of the length buckets. The last bucket is open.
ENTITY_LENGTHS = (1, 2, 3, 4, 5, 10)
SENTENCE_LENGTHS = (10, 20, 30, 40, 50)

Entities = Sequence[Span | Discontinuous | Entity]


def score(gold: Sequence[Entities], predicted: Sequence[Entities]) -> Report:
    """Score lists of entities, one for each sentence."""

    def mentions(entities: Entities) -> frozenset[Mention]:
        # Without the words, their numbers serve as characters.
        return frozenset(
            Mention(e.fragments, e.label, sum(end - start for start, end in e.fragments))
            for e in entities
        )

    _check_lengths(gold, predicted)
    both = zip(gold, predicted, strict=True)
    return score_pairs([Pair(mentions(ours), mentions(theirs)) for ours, theirs in both])


def score_sentences(gold: Sequence[Sentence], predicted: Sequence[Entities]) -> Report:
    """Score the entities predicted for labelled sentences.

    Predictions of labels that a sentence was not annotated for do not count.
    """
    _check_lengths(gold, predicted)
    pairs = []
    for sentence, entities in zip(gold, predicted, strict=True):
        joined = JoinedWords(sentence.words)
        counted = [entity for entity in entities if is_annotated(sentence, entity.label)]
        mentions = frozenset(joined.mention(one.fragments, one.label) for one in counted)
        pairs.append(Pair(sentence_mentions(sentence), mentions, sentence))
    return score_pairs(pairs)


def score_pairs(pairs: list[Pair]) -> Report:
    """Score pairs of gold and predicted mentions."""
    overlaps = [count_overlapping(pair.gold, pair.predicted) for pair in pairs]
    measure_counts, type_counts = _count_sentences(pairs, overlaps)
    total = {name: Counts(*rows.sum(axis=0).tolist()) for name, rows in measure_counts.items()}
    per_type = {name: Counts(*rows.sum(axis=0).tolist()) for name, rows in type_counts.items()}
    overlap_per_type = {
        label: replace(row, correct=sum(overlap[label] for overlap in overlaps))
        for label, row in per_type.items()
    }
    matches = [match for pair in pairs for match in match_mentions(pair.gold, pair.predicted)]
    outcomes = Counter(match.outcome for match in matches)
    slices = _slices(pairs)
    return Report(
        sentences=len(pairs),
        micro=total["micro"],
        macro=Average.over(per_type.values()),
        boundaries=total["boundaries"],
        overlap=total["overlap"],
        types=total["types"],
        words=total["words"],
        nested=slices["nested"].get(True, SliceCounts()),
        discontinuous=total["discontinuous"],
        irregular=total["irregular"],
        per_type=per_type,
        overlap_macro=Average.over(overlap_per_type.values()),
        overlap_per_type=overlap_per_type,
        by_depth={str(depth): row for depth, row in slices["depth"].items()},
        by_length=_named_buckets(slices["length"], ENTITY_LENGTHS),
        by_sentence_length=_named_buckets(slices["sentence"], SENTENCE_LENGTHS),
        errors={outcome: outcomes[outcome] for outcome in Outcome},
        confusion=_confusion(matches),
        pairs=pairs,
        measure_counts=measure_counts,
        type_counts=type_counts,
    )


def _check_lengths(gold: Sequence[object], predicted: Sequence[object]) -> None:
    if len(gold) != len(predicted):
        raise ValueError(
            f"{len(gold)} gold sentences but {len(predicted)} predicted ones; "
            "give one list of entities for each sentence, empty if there are none"
        )


def _count_sentences(
    pairs: Sequence[Pair], overlaps: Sequence[Counter[str]]
) -> tuple[dict[str, IntArray], dict[str, IntArray]]:
    """Return the counts of each measure and, for the strict one, of each label."""
    labels = sorted({m.label for pair in pairs for m in pair.gold | pair.predicted})
    names = ("micro", "boundaries", "overlap", "types", "words", "discontinuous", "irregular")
    measures = {name: np.zeros((len(pairs), 3), np.int64) for name in names}
    per_type = {label: np.zeros((len(pairs), 3), np.int64) for label in labels}
    for i, pair in enumerate(pairs):
        gold, predicted = pair.gold, pair.predicted
        sizes = len(predicted), len(gold)
        correct, in_predicted, in_gold = (
            Counter(mention.label for mention in each)
            for each in (gold & predicted, predicted, gold)
        )
        measures["micro"][i] = len(gold & predicted), *sizes
        measures["overlap"][i] = overlaps[i].total(), *sizes
        measures["types"][i] = (in_gold & in_predicted).total(), *sizes
        measures["boundaries"][i] = _compare({m.parts for m in gold}, {m.parts for m in predicted})
        joined = None if pair.sentence is None else JoinedWords(pair.sentence.words)
        measures["words"][i] = _compare(_words(gold, joined), _words(predicted, joined))
        measures["discontinuous"][i] = _compare(
            {m for m in gold if m.discontinuous}, {m for m in predicted if m.discontinuous}
        )
        measures["irregular"][i] = _compare(
            {m for m in gold if not m.aligned}, {m for m in predicted if not m.aligned}
        )
        for label in in_predicted | in_gold:
            per_type[label][i] = correct[label], in_predicted[label], in_gold[label]
    return measures, per_type


def _words(mentions: Set[Mention], joined: JoinedWords | None) -> set[tuple[int, str]]:
    """Return each word of a mention, whole or in part, with the label of the mention.

    joined: the words of the sentence; None if the parts of the mentions count words.
    """
    return {
        (word, mention.label)
        for mention in mentions
        for first, last in (joined.covered_words(mention.parts) if joined else mention.parts)
        for word in range(first, last)
    }


def _compare(gold: set[Any], predicted: set[Any]) -> tuple[int, int, int]:
    return len(gold & predicted), len(predicted), len(gold)


def _confusion(matches: Sequence[Match]) -> dict[tuple[str | None, str | None], int]:
    """Count pairs of labels. The two mentions of a boundary error count separately."""
    cells: Counter[tuple[str | None, str | None]] = Counter()
    for outcome, gold, predicted in matches:
        if gold and predicted and outcome in (Outcome.CORRECT, Outcome.TYPE):
            cells[gold.label, predicted.label] += 1
            continue
        if gold:
            cells[gold.label, None] += 1
        if predicted:
            cells[None, predicted.label] += 1
    return dict(cells)


def _slices(pairs: Sequence[Pair]) -> dict[str, dict[int, SliceCounts]]:
    """Count mentions by depth, nesting, and buckets of entity and sentence length."""
    rows: dict[str, dict[int, Counter[str]]] = {
        name: defaultdict(Counter) for name in ("depth", "nested", "length", "sentence")
    }
    for pair in pairs:
        for side, other, total, hits in (
            (pair.predicted, pair.gold, "predicted", "correct"),
            (pair.gold, pair.predicted, "gold", "found"),
        ):
            for mention, (depth, nested) in nesting(side).items():
                values = {"depth": depth, "nested": nested}
                values["length"] = bisect_left(ENTITY_LENGTHS, mention.words)
                if pair.sentence is not None:
                    words = len(pair.sentence.words)
                    values["sentence"] = bisect_left(SENTENCE_LENGTHS, words)
                for name, value in values.items():
                    rows[name][value].update({total: 1, hits: int(mention in other)})
    return {
        name: {value: SliceCounts(**counts[value]) for value in sorted(counts)}
        for name, counts in rows.items()
    }


def _named_buckets(
    buckets: Mapping[int, SliceCounts], ends: Sequence[int]
) -> dict[str, SliceCounts]:
    """Name the buckets of lengths: "1", "6-10", "11+"."""
    firsts = [1, *(end + 1 for end in ends)]
    spans = zip(firsts, ends, strict=False)
    names = [str(first) if first == end else f"{first}-{end}" for first, end in spans]
    return {[*names, f"{firsts[-1]}+"][bucket]: row for bucket, row in buckets.items()}
