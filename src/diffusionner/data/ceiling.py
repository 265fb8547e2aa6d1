"""Gold entities that a model with given settings cannot predict, and the resulting best F1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diffusionner.batching import window_parts
from diffusionner.corpus import MAX_FRAGMENTS, Discontinuous, Sentence, Span
from diffusionner.data.overlaps import max_disjoint, max_without_crossing
from diffusionner.diffusion import min_spans, span_slots
from diffusionner.settings import EncoderSettings, InferenceSettings

if TYPE_CHECKING:
    from diffusionner.batching.subwords import SubwordTokenizer

# Why an entity cannot be predicted, in the order in which the reasons are tested.
REASONS = {
    "irregular": "misaligned",
    "fragments": "more fragments than the model predicts",
    "window": "longer than the encoder's window",
    "label": "second label on the same words",
    "overlap": "overlap excluded by inference.overlap",
    "spans": "more than inference.spans",
}
_SPECIAL_TOKENS = 2  # around a sentence, if the tokenizer is not available


class Window(NamedTuple):
    """Words of a sentence that the encoder reads at once, and those whose entities it predicts."""

    start: int
    end: int
    owned_start: int
    owned_end: int

    def contains(self, entity: Span | Discontinuous) -> bool:
        """Return True if the entity can be predicted in this window."""
        return self.owns(entity) and self.start <= entity.start and entity.end <= self.end

    def owns(self, entity: Span | Discontinuous) -> bool:
        return self.owned_start <= (entity.start + entity.end) // 2 < self.owned_end

    def span_count(self, settings: InferenceSettings) -> int:
        """Return the number of noisy spans."""
        words = np.array([self.end - self.start])
        return int(span_slots(words, settings.spans, settings.start).sum())


class WindowSplitter:
    """Splits sentences into encoder windows, by subwords or, without a tokenizer, by words."""

    def __init__(self, settings: EncoderSettings, tokenizer: SubwordTokenizer | None) -> None:
        self.tokenizer = tokenizer
        self.size = settings.max_subwords - _SPECIAL_TOKENS
        if tokenizer is not None:
            self.size = min(settings.max_subwords, tokenizer.limit) - tokenizer.special_count
        self.unit = "words" if tokenizer is None else "subwords"

    def split(self, sentences: Sequence[Sentence]) -> Iterator[tuple[Sentence, int, list[Window]]]:
        """Yield each sentence with its length in `unit` and its windows."""
        counts = np.ones(sum(len(sentence.words) for sentence in sentences), dtype=np.int64)
        if self.tokenizer is not None:
            table = self.tokenizer.look_up([word for s in sentences for word in s.words])
            counts = table.subword_count[table.word_ids]
        offset = np.concatenate([[0], np.cumsum(counts)])
        first = 0
        for sentence in sentences:
            last = first + len(sentence.words)
            parts = window_parts([(offset, self.size)], first, last)
            windows = [Window(*(word - first for word in part)) for part in parts]
            yield sentence, int(offset[last] - offset[first]), windows
            first = last


@dataclass
class F1Ceiling:
    """Number of gold entities, and of those that cannot be predicted, by reason.

    max_fragments: fragments of an entity that the model predicts; 1 if it was not trained for
    discontinuous entities.
    """

    max_fragments: int = MAX_FRAGMENTS
    gold: int = 0
    lost: Counter[str] = field(default_factory=Counter)

    def add(
        self,
        sentence: Sentence,
        entities: Collection[Span | Discontinuous],
        windows: Sequence[Window],
        settings: InferenceSettings,
    ) -> list[Span | Discontinuous]:
        """Count a sentence with distinct valid entities; return those that fit into no window.

        Decoding predicts one label for a span, resolves overlaps in the whole sentence, and
        predicts at most `inference.spans` spans per window. Both limits are of contiguous entities:
        with discontinuous ones the ceiling is an upper bound.
        """
        irregular = len(set(sentence.irregular))
        short = [entity for entity in entities if len(entity.fragments) <= self.max_fragments]
        cut = [entity for entity in short if not any(w.contains(entity) for w in windows)]
        whole = set(short) - set(cut)
        places = {entity.fragments for entity in whole}
        contiguous = [entity for entity in whole if isinstance(entity, Span)]
        spans = {span[:2] for span in contiguous}
        allowed = len(spans)
        if settings.overlap == "flat":
            allowed = max_disjoint(spans)
        elif settings.overlap == "nested":
            allowed = max_without_crossing(spans)
        reachable = allowed
        if len(spans) > min_spans(settings.spans):
            owned = ((w, len({s[:2] for s in contiguous if w.owns(s)})) for w in windows)
            reachable = min(allowed, sum(min(n, w.span_count(settings)) for w, n in owned))
        self.gold += len(entities) + irregular
        self.lost.update(
            irregular=irregular,
            fragments=len(entities) - len(short),
            window=len(cut),
            label=len(whole) - len(places),
            overlap=len(spans) - allowed,
            spans=allowed - reachable,
        )
        return cut

    @property
    def reachable(self) -> int:
        """Maximum number of gold entities that can be predicted."""
        return self.gold - self.lost.total()

    @property
    def f1(self) -> float | None:
        """F1 of predicting exactly the reachable entities; None without gold entities."""
        return 2 * self.reachable / (self.reachable + self.gold) if self.gold else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "gold": self.gold,
            "reachable": self.reachable,
            "lost": {reason: self.lost[reason] for reason in REASONS},
            "f1_ceiling": None if self.f1 is None else round(self.f1, 6),
        }
