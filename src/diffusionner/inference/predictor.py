"""Runs the reverse process over an encoded corpus, batch by batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from diffusionner.batching import EncodedCorpus
from diffusionner.diffusion.span_counts import span_counts, span_slots
from diffusionner.inference.decoding import Found, Judge, deduplicate, resolve_overlaps
from diffusionner.inference.engine import Engine
from diffusionner.settings import InferenceSettings


def predict(
    engine: Engine,
    corpus: EncodedCorpus,
    sentences: Sequence[int],
    settings: InferenceSettings,
    judge: Judge,
    given: Sequence[Sequence[tuple[int, int]]] | None = None,
    start: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[list[Found]]:
    """Entities of the chosen sentences of a corpus, overlaps resolved.

    meanwhile: called once per batch, when a device is busy and the host is not.

    given: for every sentence of the corpus, spans (start, end exclusive) from which the reverse
    process starts at timestep `start`. progress is called with the windows done and
    their number.
    """
    collected: dict[int, list[Found]] = {number: [] for number in sentences}
    batches = list(corpus.sorted_batches(settings.batch_size, sentences))
    done, total = 0, sum(map(len, batches))
    running: deque[tuple[np.ndarray, Callable[[], np.ndarray]]] = deque()
    for chosen in [*batches, None]:
        if chosen is not None:
            batch = corpus.batch(chosen, engine.subword_step)
            spans = None
            if given is None:
                slots = span_slots(span_counts(batch.lengths, settings.spans))
            else:
                spans, slots = _place(given, corpus, chosen)
            running.append((chosen, engine.reverse(batch, settings, slots, spans, start)))
            meanwhile()
        # A device computes the next batch while the host reads the last one.
        while len(running) > (chosen is not None):
            ended, table = running.popleft()
            for sentence, found in deduplicate(table(), corpus.windows, ended, judge):
                collected[sentence].append(found)
            done += len(ended)
            if progress is not None:
                progress(done, total)
    resolved = (resolve_overlaps(found, settings.overlap) for found in collected.values())
    least = judge.least.tolist()
    return [[one for one in found if one.total >= least[one.kind]] for found in resolved]


def _place(
    given: Sequence[Sequence[tuple[int, int]]], corpus: EncodedCorpus, chosen: np.ndarray
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
