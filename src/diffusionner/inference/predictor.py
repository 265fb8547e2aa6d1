"""Runs an engine over an encoded corpus, batch by batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from diffusionner.batching import EncodedCorpus
from diffusionner.diffusion.span_counts import AUTO, span_counts, span_slots
from diffusionner.inference.calibration import ScoreRule
from diffusionner.inference.decoding import Columns, DecodedEntity, by_sentence, deduplicate
from diffusionner.inference.engine import Engine
from diffusionner.settings import InferenceSettings

Spans = Sequence[Sequence[tuple[int, int]]]
Waiting = Callable[[], np.ndarray]


# What `auto` is. On a GPU launching a batch takes as long for few sentences as for many.
SENTENCES, SENTENCES_AHEAD = 32, 256


def batch_size(engine: Engine, settings: InferenceSettings) -> int:
    """Sentences of a batch."""
    if settings.batch_size == AUTO:
        return SENTENCES_AHEAD if engine.ahead else SENTENCES
    return int(settings.batch_size)


@dataclass
class Task:
    """Sentences of a corpus to predict.

    given: for every sentence of the corpus, spans (start, end exclusive) from which the reverse
    process starts at timestep `start`.
    """

    corpus: EncodedCorpus
    sentences: Sequence[int]
    given: Spans | None = None
    start: int | None = None
    found: list[Columns] = field(default_factory=list)  # of the batches that are done
    left: int = 0  # batches that are not

    def launch(self, engine: Engine, chosen: np.ndarray, settings: InferenceSettings) -> Waiting:
        """Start a batch; what is returned waits for its end."""
        batch = self.corpus.batch(chosen, engine.subword_step)
        spans = None
        if self.given is None:
            slots = span_slots(span_counts(batch.lengths, settings.spans, settings.start))
        else:
            spans, slots = _place(self.given, self.corpus, chosen)
        return engine.find(batch, settings, slots, spans, self.start)


def predict(
    engine: Engine,
    task: Task,
    settings: InferenceSettings,
    judge: ScoreRule,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[DecodedEntity]]:
    """Entities of each sentence. progress is called with the windows done and their number."""
    windows = np.isin(task.corpus.windows.sentence, list(task.sentences)).sum()
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        progress(done, int(windows))

    (found,) = predict_each(engine, [task], settings, judge, ended=count)
    return found


def predict_each(
    engine: Engine,
    tasks: Iterable[Task],
    settings: InferenceSettings,
    judge: ScoreRule,
    launched: Callable[[], None] = lambda: None,
    ended: Callable[[int], None] = lambda windows: None,
) -> Iterator[list[list[DecodedEntity]]]:
    """What `predict` gives, for one task after the other.

    A device gets the first batches of the next task before the host finishes the last one, so that
    it need not wait. launched is called after a batch that was started, while the device is busy
    and the host is not; ended, with its windows, after each that is done.
    """
    size = batch_size(engine, settings)
    running: deque[tuple[Task, np.ndarray, Waiting]] = deque()
    unfinished: deque[Task] = deque()

    def finish(most: int) -> Iterator[list[list[DecodedEntity]]]:
        """Read batches until no more than so many are running; give what is complete."""
        while len(running) > most:
            task, chosen, table = running.popleft()
            task.found.append(deduplicate(table(), task.corpus.windows, chosen, judge))
            task.left -= 1
            ended(len(chosen))
        while unfinished and not unfinished[0].left:
            task = unfinished.popleft()
            yield by_sentence(task.found, task.sentences, settings.overlap)

    for task in tasks:
        batches = list(task.corpus.sorted_batches(size, task.sentences, engine.subword_step))
        task.left = len(batches)
        unfinished.append(task)
        for chosen in batches:
            running.append((task, chosen, task.launch(engine, chosen, settings)))
            if len(running) > 1 or chosen is batches[-1]:  # one alone may be over before it returns
                launched()
            yield from finish(engine.ahead)
    yield from finish(0)


def _place(
    given: Spans, corpus: EncodedCorpus, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The caller's spans as [B, K, 2] window-relative boundaries and a mask [B, K]."""
    windows = corpus.windows
    rows = []
    for window in chosen:
        offset, words = int(windows.offset[window]), int(windows.words[window])
        spans = given[int(windows.sentence[window])]
        rows.append(
            [(s - offset, e - 1 - offset) for s, e in spans if s < offset + words and e > offset]
        )
    most = max(1, max(len(row) for row in rows))
    table = np.zeros((len(rows), most, 2), dtype=np.int64)
    slots = np.zeros((len(rows), most), dtype=bool)
    for i, row in enumerate(rows):
        if row:
            table[i, : len(row)] = row
            slots[i, : len(row)] = True
    lengths = windows.words[chosen][:, None, None]
    return np.clip(table, 0, lengths - 1), slots
