"""Inputs to entities as a stream: read and split a little at a time, predict in batches.

Inputs are read in chunks. A chunk becomes an `EncodedCorpus`, whose sentences are sorted by length
into batches. While a device runs one batch, the host reads the next inputs.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, cast

import numpy as np

from diffusionner.batching import EncodedCorpus
from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.corpus import ELLIPSIS, Entities, Entity, Sentence
from diffusionner.diffusion import AUTO, BeliefDenoiser, ReverseStart, span_slots
from diffusionner.diffusion.beliefs import softmax
from diffusionner.inference.coverage import measure_coverage
from diffusionner.inference.decoding import (
    NO_ENTITIES,
    DecodedEntity,
    EntityColumns,
    ScoreRule,
    entities_by_sentence,
    fragments_of,
    gapped_entities,
    merge_candidates,
)
from diffusionner.inference.documents import (
    BlockCounter,
    CandidateColumns,
    denoise_documents,
    document_blocks,
    owned_candidates,
)
from diffusionner.inference.engine import Engine, Pending
from diffusionner.refinement import GivenSpans
from diffusionner.settings import EncoderSettings, InferenceSettings
from diffusionner.text import TextSentence, split_sentences

# A text, the words of a sentence, or a text that is already split into sentences.
Content: TypeAlias = str | Sequence[str] | Sequence[TextSentence]
Inputs = Iterable[tuple[Content, str | None]]  # with their documents
# Batch sizes for "auto". Launching a batch on a GPU takes as long for few sentences as for many.
CPU_BATCH, GPU_BATCH = 32, 256
BUFFERED_BATCHES = 32  # sentences are sorted by length within this many batches
# A device starts on the first batch, then each chunk is this many times larger, up to the maximum.
# A device takes three times as long as reading the same text, so it need not wait.
CHUNK_GROWTH = 2


def batch_size(engine: Engine, settings: InferenceSettings) -> int:
    """Return the number of sentences per batch."""
    if settings.batch_size == AUTO:
        return GPU_BATCH if engine.prefetch else CPU_BATCH
    return int(settings.batch_size)


@dataclass
class PredictionTask:
    """Sentences of a corpus to predict."""

    corpus: EncodedCorpus
    sentences: Sequence[int]
    blocks: np.ndarray | None = None  # of documents, for each sentence; None: by their `doc`
    decoded: list[EntityColumns] = field(default_factory=list)  # of finished batches
    gapped: list[tuple[int, DecodedEntity]] = field(default_factory=list)  # likewise
    candidates: list[CandidateColumns] = field(default_factory=list)  # to denoise over documents
    remaining: int = 0  # unfinished batches

    def launch(self, engine: Engine, chosen: np.ndarray, settings: InferenceSettings) -> Pending:
        """Start a batch of windows."""
        batch = self.corpus.batch(chosen, (engine.subword_multiple, 1, 1, 1, 1))
        slots = span_slots(batch.lengths, settings.spans, settings.start)
        return engine.launch(batch, ReverseStart(slots, is_ragged=not slots.all()), settings)

    def columns(self) -> CandidateColumns:
        """Return the candidates of all batches."""
        return CandidateColumns(*map(np.concatenate, zip(*self.candidates, strict=True)))

    def denoise(self, beliefs: BeliefDenoiser, steps: int, rule: ScoreRule) -> EntityColumns:
        """Denoise the candidates of all batches, document by document."""
        if not self.candidates:
            return NO_ENTITIES
        columns, blocks = self.columns(), self.blocks
        if blocks is None:
            blocks = document_blocks(self.corpus, self.sentences)
        start = self.start_beliefs(columns)
        return denoise_documents(
            beliefs, columns, start, self.corpus, self.sentences, blocks, steps, rule
        )

    def start_beliefs(self, columns: CandidateColumns) -> np.ndarray:
        """Return what is believed of candidates before the first step: [N, C + 1]."""
        return softmax(columns.logits)


def predict(
    engine: Engine,
    task: PredictionTask,
    settings: InferenceSettings,
    rule: ScoreRule,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[DecodedEntity]]:
    """Return the entities of each sentence. progress is called with windows done and in total."""
    windows = int(np.isin(task.corpus.windows.sentence, list(task.sentences)).sum())
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        progress(done, windows)

    (entities,) = predict_each(engine, [task], settings, rule, on_done=count)
    return entities


def predict_each(
    engine: Engine,
    tasks: Iterable[PredictionTask],
    settings: InferenceSettings,
    rule: ScoreRule,
    on_launch: Callable[[], None] = lambda: None,
    on_done: Callable[[int], None] = lambda windows: None,
) -> Iterator[list[list[DecodedEntity]]]:
    """Yield the entities of each task's sentences, task by task.

    A device gets the first batches of the next task before the host finishes the last one.
    on_launch is called after a launch, while the device is busy and the host is free; on_done is
    called after each batch, with the number of its windows.
    """
    size, beliefs = batch_size(engine, settings), engine.beliefs
    policy = rule.flat_policy if settings.overlap == "flat" else settings.overlap
    running: deque[tuple[PredictionTask, np.ndarray, Pending]] = deque()
    unfinished: deque[PredictionTask] = deque()

    def finish(limit: int) -> Iterator[list[list[DecodedEntity]]]:
        """Decode batches until at most `limit` are running; yield the tasks that are complete."""
        while len(running) > limit:
            task, chosen, candidates = running.popleft()
            found, windows = candidates(), task.corpus.windows
            if found.gapped is not None:
                task.gapped += gapped_entities(found.gapped, windows, chosen, rule.of_gapped)
            if beliefs is None:
                task.decoded.append(merge_candidates(found, windows, chosen, rule))
            else:
                task.candidates.append(owned_candidates(found, windows, chosen))
            task.remaining -= 1
            on_done(len(chosen))
        while unfinished and not unfinished[0].remaining:
            task = unfinished.popleft()
            if beliefs is not None:
                task.decoded.append(task.denoise(beliefs, settings.steps, rule))
            yield entities_by_sentence(task.decoded, task.sentences, policy, task.gapped)

    for task in tasks:
        batches = task.corpus.sorted_batches(size, task.sentences, engine.subword_multiple)
        task.remaining = len(batches)
        unfinished.append(task)
        for chosen in batches:
            running.append((task, chosen, task.launch(engine, chosen, settings)))
            if len(running) > 1 or chosen is batches[-1]:  # a lone batch may end before it returns
                on_launch()
            yield from finish(engine.prefetch)
    yield from finish(0)


class Item:
    """One input with its sentences."""

    given: GivenSpans | None = None  # spans to refine
    passages: Sequence[int] = ()  # passage of each sentence
    blocks: Sequence[int] = ()  # and block, where documents are denoised

    def __init__(self, content: Content, doc: str | None, number: int) -> None:
        self.content = content
        if isinstance(content, str):
            self.parts = split_sentences(content)
        elif all(issubclass(word_type, str) for word_type in set(map(type, content))):
            words, size = cast("list[str]", list(content)), len(content)
            self.parts = [TextSentence(words, range(size), range(1, size + 1))] if words else []
        elif all(isinstance(part, TextSentence) for part in content):
            self.parts = cast("list[TextSentence]", list(content))
        else:
            raise TypeError(f"the words of sentence {number} are not all strings")
        if doc is None and isinstance(content, str):
            doc = f"\0text {number}"  # the sentences of one text are each other's context
        self.sentences = [Sentence(part.words, doc=doc) for part in self.parts]

    def count(self, counter: BlockCounter) -> None:
        """Number the passages and the blocks of the sentences."""
        self.passages, self.blocks = [], []
        for number, sentence in enumerate(self.sentences):
            self.blocks.append(counter.add(sentence.doc, len(sentence.words), number == 0))
            self.passages.append(counter.passages.number)

    def entities(self, decoded: Iterator[list[DecodedEntity]], labels: Sequence[str]) -> Entities:
        """Return the entities in the offsets of the input; decoded: entities by sentence."""
        entities = Entities()
        entities.text, entities.labels = cast("str | Sequence[str]", self.content), labels
        for part in self.parts:
            for found in next(decoded):
                left, right, type_id, _, score, votes, gaps = found
                start, end = part.starts[left], part.ends[right]
                if isinstance(self.content, str):
                    text = self.content[start:end]
                else:
                    text = " ".join(part.words[left : right + 1])
                entity = Entity(start, end, labels[type_id], score, text, votes)
                entities.append(self._with_gaps(entity, part, found) if gaps else entity)
        return entities

    def _with_gaps(self, entity: Entity, part: TextSentence, found: DecodedEntity) -> Entity:
        """Return a discontinuous entity of a sentence with its gaps."""
        pieces = [
            self.content[part.starts[first] : part.ends[end - 1]]
            if isinstance(self.content, str)
            else " ".join(part.words[first:end])
            for first, end in fragments_of(found)
        ]
        return entity._replace(gaps=part.between(found.gaps), text=ELLIPSIS.join(pieces))


def predict_stream(
    engine: Engine,
    reader: ChunkReader,
    settings: InferenceSettings,
    rule: ScoreRule,
    make_task: Callable[[Chunk], PredictionTask] = lambda chunk: PredictionTask(
        chunk.corpus, chunk.sentences, chunk.blocks
    ),
) -> Iterator[tuple[Item, Entities]]:
    """Yield each item with its entities; read the next ones while a device runs the last.

    make_task: returns what to predict of a chunk.
    """
    coming: list[Chunk] = []
    running: deque[Chunk] = deque()

    def read_ahead() -> None:
        if not coming and reader.read_more():
            coming.extend(filter(None, [reader.next_chunk()]))

    def tasks() -> Iterator[PredictionTask]:
        while (chunk := coming.pop() if coming else reader.next_chunk()) is not None:
            running.append(chunk)
            yield make_task(chunk)

    results = predict_each(engine, tasks(), settings, rule, on_launch=read_ahead)
    while True:
        with paused_collector():
            decoded = next(results, None)
            if decoded is None:
                break
            sentences = iter(decoded)
            items = running.popleft().items
            done = [(item, item.entities(sentences, engine.labels)) for item in items]
            for _, entities in done:
                entities.measure = reader.measure
        yield from done


@dataclass
class Chunk:
    """Items that are predicted together, with the sentences around them as context."""

    items: list[Item]
    corpus: EncodedCorpus
    sentences: range  # indices of the items' sentences in the corpus
    blocks: np.ndarray | None  # of documents, for each sentence


class ChunkReader:
    """Reads the input and splits it into chunks, a little at a time."""

    def __init__(
        self,
        items: Iterable[Item],
        engine: Engine,
        inference: InferenceSettings,
        subwords: SubwordTokenizer,
        settings: EncoderSettings,
    ) -> None:
        self.items = iter(items)
        # Candidates are denoised over blocks of documents and encoded in passages, so no chunk ends
        # within them.
        self.has_blocks = engine.beliefs is not None
        self.counter = None
        if self.has_blocks or settings.passage_words:
            self.counter = BlockCounter(settings.passage_words)
        self.subwords = subwords
        self.settings = settings
        self.measure = partial(measure_coverage, subwords=subwords, settings=settings)
        self.batch_size = batch_size(engine, inference)
        self.context = settings.context
        self.chunk_size = self.batch_size  # in sentences; grows
        self.max_chunk_size = self.batch_size * BUFFERED_BATCHES
        self.waiting: list[Item] = []
        self.waiting_sentences = 0
        self.before: list[Sentence] = []  # the last sentences of the previous chunk
        self.before_passages: list[int] = []
        self.ended = False

    def read_more(self, sentences: int | None = None) -> bool:
        """Read about `sentences` more; return whether there are enough for a chunk.

        The default is the size of a batch: with more at a time, a device waits for the next launch.
        """
        limit = min(self.chunk_size, self.waiting_sentences + (sentences or self.batch_size))
        while self.waiting_sentences < limit and not self.ended:
            item = next(self.items, None)
            if item is None:
                self.ended = True
                break
            if self.counter is not None:
                item.count(self.counter)
            self.waiting.append(item)
            self.waiting_sentences += len(item.sentences)
        return self.ended or self.waiting_sentences >= self.chunk_size

    def next_chunk(self) -> Chunk | None:
        """Return the next chunk, reading more input if needed; None at the end."""
        self.read_more(self.chunk_size)
        while True:
            # The last items must wait until their right context is known.
            ready, after = len(self.waiting), 0
            while ready and after < self.context and not self.ended:
                ready -= 1
                after += len(self.waiting[ready].sentences)
            if self.counter is not None:
                ready = self._whole(ready)
            if ready:
                break
            if self.ended:
                return None
            self.chunk_size = self.waiting_sentences + 1
            self.read_more()
        # Small chunks first, so that a device starts early.
        self.chunk_size = min(CHUNK_GROWTH * self.chunk_size, self.max_chunk_size)
        items, self.waiting = self.waiting[:ready], self.waiting[ready:]
        inside = [sentence for item in items for sentence in item.sentences]
        after_chunk = [sentence for item in self.waiting for sentence in item.sentences]
        self.waiting_sentences = len(after_chunk)
        numbers, blocks = self._numbers(items)
        passages = None
        if self.counter is not None:
            passages = np.array(
                [*self.before_passages, *numbers, *self._numbers(self.waiting)[0]], dtype=np.int64
            )
        corpus = EncodedCorpus(
            self.before + inside + after_chunk, self.subwords, self.settings, passages=passages
        )
        sentences = range(len(self.before), len(self.before) + len(inside))
        if self.context:
            self.before = (self.before + inside)[-self.context :]
            self.before_passages = (self.before_passages + numbers)[-self.context :]
        return Chunk(items, corpus, sentences, np.array(blocks) if self.has_blocks else None)

    def _numbers(self, items: Iterable[Item]) -> tuple[list[int], list[int]]:
        """Return the passages and the blocks of all sentences of the items."""
        pairs = [(item.passages, item.blocks) for item in items]
        return [n for one, _ in pairs for n in one], [n for _, one in pairs for n in one]

    def _whole(self, ready: int) -> int:
        """Return the number of waiting items, at most `ready`, that end with a passage or block."""
        kind = 1 if self.has_blocks else 0
        following = self._numbers(self.waiting[ready:])[kind]
        if not (following or self.ended):
            following = self._numbers(self.waiting)[kind][-1:]  # which the next item may continue
        while ready and following:
            last = self._numbers(self.waiting[ready - 1 : ready])[kind]
            if last and last[-1] != following[0]:
                break
            following = last or following
            ready -= 1
        return ready


def separate_documents(texts: Iterable[str]) -> Iterator[tuple[str, None]]:
    """Make each text a document of its own."""
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(
                f"text {number} is a {type(text).__name__}, not a string; use predict_tokens for "
                "lists of words"
            )
        yield text, None


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause Python's cyclic garbage collector, which took half of the host's time.

    It visits every object of the process, hundreds of thousands with torch, whenever some thousand
    were created. Nothing created here has cycles.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
