"""A request to the model: texts, cut into parts that take turns with those of other requests."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diffusionner.corpus import ELLIPSIS, Entities, Entity
from diffusionner.inference.documents import BlockCounter
from diffusionner.refinement import GivenSpans
from diffusionner.service.limits import BATCH_WORK, PART_WORK
from diffusionner.service.worker import Found, Operation, Slice
from diffusionner.settings import Settings
from diffusionner.text import TextSentence


class Document:
    """One text: its sentences and, as they are computed, what was found in them."""

    def __init__(
        self,
        text: str,
        sentences: list[TextSentence],
        work: list[float],
        given: GivenSpans | None = None,
    ) -> None:
        """work: of each sentence; given: spans to refine."""
        self.text = text
        self.sentences = sentences
        self.work = work
        self.given = given
        self.chosen = range(len(sentences))  # the sentences to compute
        self.passages: list[int] = []  # of each sentence, which are read at once
        self.blocks: list[int] = []  # and denoised together
        self.missing = len(sentences)
        self.results: list[Any] = [()] * len(sentences)

    def number(self, passage_words: int) -> None:
        """Number the passages and the blocks of the sentences."""
        counter = BlockCounter(passage_words)
        for i, sentence in enumerate(self.sentences):
            self.blocks.append(counter.add("", len(sentence.words), i == 0))
            self.passages.append(counter.passages.number)

    def choose(self, sentence: int) -> None:
        """Compute only the steps of this sentence."""
        self.chosen = range(sentence, sentence + 1)
        self.missing = 1
        self.work[sentence] *= 2  # once for the steps, once for the entities

    def entities(self, found: Sequence[Found], labels: Sequence[str]) -> list[dict[str, Any]]:
        """Return the entities; found: those of each sentence, in words."""
        return [entity.to_dict() for entity in self._in_characters(found, labels)]

    def refinement(self, labels: Sequence[str], only: bool) -> dict[str, Any]:
        """Return the entities, and what became of each given span."""
        assert self.given is not None
        found = self._in_characters(self.results, labels)
        entities, outcomes = self.given.refinement(Entities(found), only)
        return {
            "entities": [entity.to_dict() for entity in entities],
            "outcomes": [outcome.to_dict() for outcome in outcomes],
        }

    def _in_characters(self, found: Sequence[Found], labels: Sequence[str]) -> Iterator[Entity]:
        for sentence, rows in zip(self.sentences, found, strict=True):
            for left, right, type_id, _, score, _, words in rows:
                start, end, gaps = (
                    sentence.starts[left],
                    sentence.ends[right],
                    sentence.between(words),
                )
                entity = Entity(start, end, labels[type_id], score, gaps=gaps)
                said = ELLIPSIS.join(self.text[start:end] for start, end in entity.fragments)
                yield entity._replace(text=said)


@dataclass(frozen=True, eq=False)
class Part:
    """Consecutive sentences of a document, or a share of the windows of a single long one."""

    job: Job
    document: Document
    first: int
    last: int
    work: float
    share: int = 0
    shares: int = 1
    found: Found = ()  # in earlier shares of the sentence

    def slice(self, context: int) -> Slice:
        """Return the message for a model process: whole passages, with their context."""
        document, passages = self.document, self.document.passages
        first = max(0, bisect_left(passages, passages[self.first]) - context)
        last = bisect_right(passages, passages[self.last - 1]) + context
        sentences = [s.words for s in document.sentences[first:last]]
        chosen = (self.first - first, self.last - first)
        given = document.given.placed[self.first : self.last] if document.given else ()
        return Slice(
            sentences, *chosen, self.share, self.shares, self.found, given, passages[first:last]
        )


class Job:
    """A request: its parts that are still queued, and a future for each document."""

    def __init__(
        self,
        operation: Operation,
        documents: Sequence[Document],
        batch_work: float = 0.0,
        settings: Settings | None = None,
    ) -> None:
        """batch_work: work of a batch apart from its sentences.

        settings: of the model, which may read passages or denoise blocks of a document.
        """
        loop = asyncio.get_running_loop()
        self.operation = operation
        self.batch_work = batch_work
        beliefs = settings is not None and settings.decoder.beliefs
        self.whole_blocks = beliefs and operation.kind != "steps"
        passage_words = 0 if settings is None else settings.encoder.passage_words
        self.futures: dict[Document, asyncio.Future[Document]] = {
            document: loop.create_future() for document in documents
        }
        self.parts: deque[Part] = deque()
        for document, future in self.futures.items():
            document.number(passage_words)
            self.parts.extend(self._cut(document))
            if not document.missing:
                future.set_result(document)
        self.work = sum(part.work * part.shares for part in self.parts)  # not yet in a batch
        self.received = time.monotonic()

    def _cut(self, document: Document) -> Iterator[Part]:
        first, last, work = document.chosen.start, document.chosen.stop, 0.0
        units = document.blocks if self.whole_blocks else document.passages
        for i in document.chosen:
            too_much = self.whole_blocks or work + document.work[i] > PART_WORK
            if i > first and too_much and units[i] != units[i - 1]:
                yield self._part(document, first, i, work)
                first, work = i, 0.0
            work += document.work[i]
        if first < last:
            yield self._part(document, first, last, work)

    def _part(self, document: Document, first: int, last: int, work: float) -> Part:
        # Only a sentence of many windows, or with many steps and spans, exceeds a batch.
        can_share = self.operation.kind != "steps" and last - first == 1 and not self.whole_blocks
        shares = max(1, round(work / BATCH_WORK)) if can_share else 1
        return Part(self, document, first, last, work / shares, shares=shares)

    def pop(self) -> Part:
        part = self.parts.popleft()
        self.work -= part.work
        return part

    def finish(self, part: Part, results: Sequence[Any]) -> bool:
        """Store the results of a part, or queue the next share of its sentence.

        Return whether the document is complete.
        """
        document, future = part.document, self.futures[part.document]
        if future.done():  # dropped
            return False
        if document.given is not None:  # with what the spans have reached
            results, document.given.placed[part.first : part.last] = zip(*results, strict=True)
        if part.share < part.shares - 1:
            self.parts.appendleft(replace(part, share=part.share + 1, found=results[0]))
            return False
        document.results[part.first : part.last] = results
        document.missing -= part.last - part.first
        if document.missing:
            return False
        future.set_result(document)
        return True

    def fail(self, part: Part, error: Exception) -> None:
        future = self.futures[part.document]
        if not future.done():
            future.set_exception(error)

    def drop(self) -> int:
        """Forget what is queued; return the number of texts concerned."""
        texts = len({part.document for part in self.parts})
        self.parts.clear()
        self.work = 0.0
        for future in self.futures.values():
            if future.done() and not future.cancelled():
                future.exception()  # else asyncio logs that it was never retrieved
            future.cancel()
        return texts
