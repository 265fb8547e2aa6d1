"""Which gold entities a model with given settings can never find, and so the best F1 there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diffusionner.corpus import Sentence, Span
from diffusionner.data.overlaps import most_disjoint, most_without_crossing
from diffusionner.diffusion.span_counts import fewest, span_counts
from diffusionner.errors import DiffusionNERError
from diffusionner.settings import EncoderSettings, InferenceSettings

if TYPE_CHECKING:
    from diffusionner.batching.subwords import SubwordTokenizer

# Why an entity is out of reach, in the order in which it is asked.
REASONS = {
    "irregular": "in parts, or cut through a word",
    "window": "longer than the encoder's window",
    "label": "second label on the same words",
    "overlap": "overlap others, see inference.overlap",
    "spans": "more than inference.spans",
}
_SPECIAL = 2  # subwords around a sentence, when the tokenizer is not there to tell


class Window(NamedTuple):
    """Words of a sentence that the encoder sees at a time, and those whose entities it gives."""

    start: int
    end: int
    owned_start: int
    owned_end: int

    def holds(self, span: Span) -> bool:
        """Whether a span can be found in this window."""
        return self.owns(span) and self.start <= span.start and span.end <= self.end

    def spans(self, settings: InferenceSettings) -> int:
        """How many noisy spans it gets."""
        words = np.array([self.end - self.start])
        return int(span_counts(words, settings.spans, settings.start)[0])

    def owns(self, span: Span) -> bool:
        return self.owned_start <= (span.start + span.end) // 2 < self.owned_end


class Room:
    """How much the encoder reads at a time: by subwords, or by words if it is not there."""

    def __init__(self, settings: EncoderSettings, tokenizer: SubwordTokenizer | None) -> None:
        self.tokenizer = tokenizer
        self.size = settings.max_subwords - _SPECIAL
        if tokenizer is not None:
            self.size = min(settings.max_subwords, tokenizer.limit) - tokenizer.special_count

    @property
    def unit(self) -> str:
        return "words" if self.tokenizer is None else "subwords"

    def surely_fits(self, words: Sequence[str]) -> bool:
        """Without asking the tokenizer, which takes longer than all other checks."""
        if self.tokenizer is None:
            return len(words) <= self.size
        # A subword has a character or more, but for the mark that some put before a word. Other
        # than ASCII may be several once it is normalised.
        return sum(map(len, words)) + len(words) <= self.size and "".join(words).isascii()

    def cut(self, sentences: Sequence[Sentence]) -> Iterator[tuple[Sentence, int, list[Window]]]:
        """Each sentence with its length in `unit` and its windows."""
        import numpy as np

        from diffusionner.batching import window_parts

        counts = np.ones(sum(len(sentence.words) for sentence in sentences), dtype=np.int64)
        if self.tokenizer is not None:
            table = self.tokenizer.look_up([word for s in sentences for word in s.words])
            counts = table.piece_count[table.kinds]
        offset = np.concatenate([[0], np.cumsum(counts)])
        first = 0
        for sentence in sentences:
            last = first + len(sentence.words)
            parts = window_parts(offset, first, last, self.size)
            windows = [Window(*(word - first for word in part)) for part in parts]
            yield sentence, int(offset[last] - offset[first]), windows
            first = last


def find_tokenizer(name: str) -> SubwordTokenizer | None:
    """The encoder's tokenizer if it is on this machine: nothing is loaded from elsewhere."""
    from transformers import AutoConfig

    from diffusionner.model.pretrained import load_tokenizer, position_limit, resolve

    try:
        place = resolve(name)
        config = AutoConfig.from_pretrained(place, local_files_only=True, trust_remote_code=False)
        return load_tokenizer(place, position_limit(config), offline=True)
    except (DiffusionNERError, OSError, ValueError):
        return None


@dataclass
class Reach:
    """Gold entities, and those of them that cannot be found, by the reason."""

    gold: int = 0
    lost: Counter[str] = field(default_factory=Counter)

    def add(
        self,
        sentence: Sentence,
        entities: Collection[Span],
        windows: Sequence[Window],
        settings: InferenceSettings,
    ) -> list[Span]:
        """Count a sentence, its entities distinct and valid; those that no window holds.

        Decoding gives one label a span and then resolves overlaps over the whole sentence; each
        window has `inference.spans` spans to give.
        """
        irregular = len(set(sentence.irregular))
        cut = [span for span in entities if not any(window.holds(span) for window in windows)]
        whole = set(entities) - set(cut)
        spans = {span[:2] for span in whole}
        best = len(spans)
        if settings.overlap == "flat":
            best = most_disjoint(spans)
        elif settings.overlap == "nested":
            best = most_without_crossing(spans)
        given = best
        if len(spans) > fewest(settings.spans):
            owned = ((window, len({s[:2] for s in whole if window.owns(s)})) for window in windows)
            given = min(best, sum(min(number, w.spans(settings)) for w, number in owned))
        self.gold += len(entities) + irregular
        self.lost.update(
            irregular=irregular,
            window=len(cut),
            label=len(whole) - len(spans),
            overlap=len(spans) - best,
            spans=best - given,
        )
        return cut

    @property
    def found(self) -> int:
        """At best."""
        return self.gold - self.lost.total()

    @property
    def ceiling(self) -> float | None:
        """F1 when all that can be found is, and nothing else; None without gold entities."""
        return 2 * self.found / (self.found + self.gold) if self.gold else None

    def to_dict(self) -> dict[str, Any]:
        ceiling = self.ceiling
        return {
            "gold": self.gold,
            "reachable": self.found,
            "lost": {reason: self.lost[reason] for reason in REASONS},
            "f1_ceiling": None if ceiling is None else round(ceiling, 6),
        }
