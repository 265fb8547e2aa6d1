"""Training settings that follow from the amount of data and the device."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

from diffusionner.corpus import Sentence

PASSAGE_WORDS = 160  # of a document, read at once
EVALUATIONS = 8  # approximate number of evaluations on dev
HELD_OUT = 0.1  # fraction of the training data used as dev if there is none
MAX_HELD_OUT = 1000  # sentences
MIN_SENTENCES = 20  # with fewer sentences nothing is held out


class Tier(NamedTuple):
    """Recommended values for corpora of up to `sentences` sentences."""

    sentences: float
    batch_size: int
    epochs: int
    cpu_epochs: int  # fewer where an epoch takes hours


TIERS = (
    Tier(150, 8, epochs=25, cpu_epochs=25),
    Tier(500, 8, epochs=12, cpu_epochs=10),
    Tier(1_500, 8, epochs=10, cpu_epochs=6),
    Tier(5_000, 16, epochs=12, cpu_epochs=4),
    Tier(20_000, 32, epochs=10, cpu_epochs=3),
    Tier(float("inf"), 32, epochs=5, cpu_epochs=2),
)


def training_plan(sentences: int, device: str) -> tuple[dict[str, Any], str]:
    """Return training settings for this many sentences on "cpu" or "cuda", and the reason."""
    tier = next(tier for tier in TIERS if sentences <= tier.sentences)
    size = "more sentences" if tier is TIERS[-1] else f"up to {tier.sentences:,.0f} sentences"
    epochs, name = (tier.cpu_epochs, "CPU") if device == "cpu" else (tier.epochs, "GPU")
    plan = {"epochs": epochs, "batch_size": tier.batch_size}
    return plan, f"recommended for {size} on a {name}"


def evaluation_interval(epochs: int) -> int:
    """Return the number of epochs between evaluations on dev."""
    return max(1, round(epochs / EVALUATIONS))


def held_out_sentences(sentences: int) -> int:
    """Return how many training sentences to hold out as dev."""
    return min(MAX_HELD_OUT, round(HELD_OUT * sentences)) if sentences >= MIN_SENTENCES else 0


def has_documents(sentences: Iterable[Sentence]) -> bool:
    """Return True if most sentences have a neighbour in the same document."""
    docs = [None, *(sentence.doc for sentence in sentences), None]
    joined = [a is not None and a == b for a, b in pairwise(docs)]
    return 2 * sum(a or b for a, b in pairwise(joined)) > len(docs) - 2


def has_overlaps(sentences: Iterable[Sentence]) -> bool:
    """Return True if any two entities share a word."""
    for sentence in sentences:
        if sentence.discontinuous:
            spans = (span for e in sentence.all_entities for span in e.fragments)
            words = [word for start, end in spans for word in range(start, end)]
            if len(set(words)) < len(words):
                return True
        end = 0
        for span in sorted(sentence.entities):
            if span.start < end:
                return True
            end = span.end
    return False
