"""The reverse process from spans that a caller gives, which are followed to where they end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from diffusionner.diffusion import Candidates, ReverseStart, Schedule, span_slots
from diffusionner.errors import SettingsError
from diffusionner.inference.documents import CandidateColumns
from diffusionner.inference.engine import Engine, Pending
from diffusionner.inference.stream import Chunk, Content, Item, PredictionTask
from diffusionner.refinement import GivenSpans, LabelMap, PlacedSpan, SpanLike
from diffusionner.settings import InferenceSettings, Settings
from diffusionner.text import TextSentence

# A text, its spans and, where texts are each other's context, its document
RefineInput: TypeAlias = (
    tuple[Content, Iterable[SpanLike]] | tuple[Content, Iterable[SpanLike], str | None]
)


@dataclass
class RefinementTask(PredictionTask):
    """Sentences to predict from given spans, alone or together with the model's candidates."""

    given: Sequence[Sequence[PlacedSpan]] = ()  # for every sentence of the corpus
    only: bool = False
    timestep: int | None = None

    def launch(self, engine: Engine, chosen: np.ndarray, settings: InferenceSettings) -> Pending:
        """Start a batch of windows; its result is recorded in the given spans."""
        batch = self.corpus.batch(chosen, (engine.subword_multiple, 1, 1, 1, 1))
        slots = np.zeros((len(chosen), 0), dtype=bool)
        if not self.only:
            slots = span_slots(batch.lengths, settings.spans, settings.start)
        rows = [self._inside(window) for window in chosen.tolist()]
        count = max(1, *map(len, rows))
        given = np.zeros((len(rows), count, 2), dtype=np.int64)
        given_slots = np.zeros((len(rows), count), dtype=bool)
        first, last = self.corpus.windows.offset[chosen], batch.lengths - 1
        for i, row in enumerate(rows):
            bounds = np.array([(span.left, span.right) for span in row]).reshape(-1, 2) - first[i]
            given[i, : len(row)] = np.clip(bounds, 0, last[i])
            # Of equal spans, the first stands for all; the others are denoised but not seen.
            given_slots[i, np.unique(given[i, : len(row)], axis=0, return_index=True)[1]] = True
        start = ReverseStart(slots, True, given, given_slots, self.timestep)
        pending, groups = engine.launch(batch, start, settings), engine.label_groups

        def wait() -> Candidates[np.ndarray]:
            candidates = pending()
            if self.only:
                candidates.gapped = None
            left, right = (x + first[:, None, None] for x in (candidates.left, candidates.right))
            for i, row in enumerate(rows):
                for slot, span in enumerate(row):
                    own = np.s_[i, :, slot : count * groups : count]
                    ends = zip(left[own].ravel().tolist(), right[own].ravel().tolist(), strict=True)
                    span.reached.update(pair for pair in ends if pair[0] <= pair[1])
            return candidates

        return wait

    def start_beliefs(self, columns: CandidateColumns) -> np.ndarray:
        """Return what is believed of candidates before the first step: [N, C + 1].

        The label of a given span is believed as much as its score says; without one, fully.
        """
        beliefs = super().start_beliefs(columns)
        spans = zip(*(column.tolist() for column in columns[:3]), strict=True)
        place = {span: number for number, span in enumerate(spans)}
        for sentence, given in enumerate(self.given):
            for span in given:
                number = place.get((sentence, span.left, span.right))
                if number is not None and span.type_id is not None:
                    beliefs[number] *= 1 - span.score
                    beliefs[number, span.type_id] += span.score
        return beliefs

    def _inside(self, window: int) -> list[PlacedSpan]:
        """Return the given spans that have words in a window."""
        windows = self.corpus.windows
        first, words = int(windows.offset[window]), int(windows.words[window])
        given = self.given[int(windows.sentence[window])]
        return [span for span in given if span.left < first + words and span.right >= first]


def start_timestep(settings: Settings, timestep: int | None = None) -> int:
    """Return the timestep of the first step, checked; the default is that of candidates."""
    steps, timesteps = settings.inference.steps, settings.diffusion.timesteps
    if timestep is None:
        return max(Schedule(settings.diffusion.schedule, timesteps).candidate_start, steps)
    if not steps <= timestep <= timesteps:
        raise SettingsError(
            f"timestep={timestep} is not possible with steps={steps}; expected {steps} to "
            f"{timesteps}"
        )
    return timestep


def refinement_task(chunk: Chunk, only: bool, timestep: int) -> RefinementTask:
    """Return the task of a chunk whose items have given spans."""
    given: list[Sequence[PlacedSpan]] = [()] * chunk.sentences.start  # none in the context
    for item in chunk.items:
        assert item.given is not None
        given += item.given.placed
    return RefinementTask(
        chunk.corpus, chunk.sentences, chunk.blocks, given=given, only=only, timestep=timestep
    )


def place_spans(
    items: Iterable[RefineInput], labels: Sequence[str], label_map: LabelMap | None
) -> Iterator[Item]:
    """Yield the items with their spans placed in sentences."""
    for number, (content, spans, *doc) in enumerate(items):
        item = Item(content, doc[0] if doc else None, number)
        length = len(content)
        if content and isinstance(content[0], TextSentence):
            length = sys.maxsize  # unknown: the text may go on after the last sentence
        place = f"text {number}, "
        item.given = GivenSpans(spans, length, item.parts, labels, label_map, place)
        yield item
