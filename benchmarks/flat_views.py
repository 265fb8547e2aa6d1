"""`python -m benchmarks flat`"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from diffusionner import DiffusionNER, formats
from diffusionner.corpus import Span
from diffusionner.inference.decoding import choose_spans

Scored = tuple[int, int, float]  # start, exclusive end, score
Rule = Callable[[Sequence[Scored]], list[int]]  # spans, best first, to the indices of disjoint ones


def best_sum(weight: Callable[[Scored], float]) -> Rule:
    """Return the rule that maximises a sum over the chosen spans (weighted interval scheduling)."""

    def choose(spans: Sequence[Scored]) -> list[int]:
        order = sorted(range(len(spans)), key=lambda i: (spans[i][1], spans[i][0]))
        ends = [spans[i][1] for i in order]
        best: list[tuple[float, list[int]]] = [(0.0, [])]
        for index in order:
            before, chosen = best[bisect_right(ends, spans[index][0])]
            here = (before + weight(spans[index]), [*chosen, index])
            best.append(max(best[-1], here, key=lambda one: one[0]))
        return best[-1][1]

    return choose


def by_length(longest: bool) -> Rule:
    def choose(spans: Sequence[Scored]) -> list[int]:
        sign = -1 if longest else 1
        order = sorted(range(len(spans)), key=lambda i: (sign * (spans[i][1] - spans[i][0]), i))
        return [order[i] for i in choose_spans([spans[i] for i in order], "flat")]

    return choose


def log_odds(score: float) -> float:
    return math.log(max(score, 1e-6) / max(1 - score, 1e-6))


RULES: dict[str, Rule] = {
    "best first (flat)": lambda spans: choose_spans(spans, "flat"),
    "sum of scores": best_sum(lambda span: span[2]),
    "sum of log-odds": best_sum(lambda span: log_odds(span[2])),
    "sum of score times words": best_sum(lambda span: span[2] * (span[1] - span[0])),
    "shortest first": by_length(longest=False),
    "longest first": by_length(longest=True),
    "flat view": lambda spans: choose_spans(spans, "flat view"),
}


def outermost(spans: set[Span]) -> set[Span]:
    def contains(one: Span, other: Span) -> bool:
        return one.start <= other.start and other.end <= one.end and one[:2] != other[:2]

    return {span for span in spans if not any(contains(other, span) for other in spans)}


def flat_views(
    model: Annotated[str, typer.Argument(help="A model that finds nested entities.")],
    data: Annotated[Path, typer.Argument(help="Corpus, in any format.")],
    label: Annotated[
        list[str] | None, typer.Option(help="THEIRS=OURS; other labels are left out. Default: all.")
    ] = None,
    last: Annotated[int, typer.Option(help="Only the last N sentences; 0: all.")] = 0,
    threshold: Annotated[float | None, typer.Option(help="Minimum score.")] = None,
) -> None:
    """Compare rules that choose disjoint entities among nested ones.

    Gold is the outermost entities of the corpus. Only sentences in which predictions overlap can
    differ, so their entities are also counted separately.
    """
    ner = DiffusionNER.from_pretrained(model)
    names = dict(pair.split("=", 1) for pair in label or [f"{x}={x}" for x in ner.labels])
    sentences = formats.read(data)[-last:]
    decoded = ner.decode_sentences(sentences, overlap="all", threshold=threshold)
    golds = [
        outermost({e._replace(label=names[e.label]) for e in s.entities if e.label in names})
        for s in sentences
    ]
    overlapping = [any(a.right >= b.left for a, b in pairwise(found)) for found in decoded]
    gold = sum(map(len, golds))
    there = sum(len(g) for g, one in zip(golds, overlapping, strict=True) if one)
    print(
        f"{len(sentences)} sentences, {gold} entities; in {sum(overlapping)} of them, with {there}"
    )
    print("entities, predictions overlap\n")
    print(f"{'rule':26}{'F1':>7}{'right there':>13}{'predicted there':>17}")
    for name, rule in RULES.items():
        right = predicted = right_there = predicted_there = 0
        for found, wanted, mixed in zip(decoded, golds, overlapping, strict=True):
            ranked = sorted(found, key=lambda e: (-e.summed_probability, e.left, e.right))
            chosen = rule([(e.left, e.right + 1, e.score) for e in ranked])
            spans = {
                Span(e.left, e.right + 1, ner.labels[e.type_id])
                for e in map(ranked.__getitem__, chosen)
            }
            spans = {span for span in spans if span.label in names.values()}
            right += len(spans & wanted)
            predicted += len(spans)
            right_there += len(spans & wanted) * mixed
            predicted_there += len(spans) * mixed
        f1 = 200 * right / max(1, predicted + gold)
        print(f"{name:26}{f1:7.2f}{right_there:13}{predicted_there:17}")
