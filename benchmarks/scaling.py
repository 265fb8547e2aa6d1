"""Growth of cost with the number of sentences, the position in the stream, and the steps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch.nn.modules.module import register_module_forward_hook

from benchmarks.machine import PeakMemory
from benchmarks.throughput import Loaded, supported_options
from benchmarks.timing import Summary
from diffusionner.cli.options import ProgressCallback
from diffusionner.corpus import Sentence
from diffusionner.inference.pipeline import DiffusionNER
from diffusionner.inference.stream import BUFFERED_BATCHES

TIMES = (1, 10, 100)
BURSTS = 50  # results arrive in buffers; enough of them to fit a slope
REPEATS = {1: 5, 10: 3, 100: 1}


def measure(
    loaded: Loaded,
    sentences: Sequence[Sentence],
    steps: Sequence[int],
    spans: int | str,
    most_batch_size: int,
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Measure streams of the sentences repeated 1, 10 and 100 times."""
    ner, device = loaded.ner, loaded.subject.device
    texts = [" ".join(s.words) for s in sentences]
    batch_size = min(most_batch_size, max(1, TIMES[-1] * len(texts) // (BUFFERED_BATCHES * BURSTS)))
    options = supported_options(ner, {"steps": 1, "spans": spans, "batch_size": batch_size})
    _stream(ner, texts, TIMES[1], options)  # warm-up
    sizes = []
    for number, times in enumerate(TIMES):
        progress("scaling", number, len(TIMES) + 1)
        memory = PeakMemory(device)
        runs = [_stream(ner, texts, times, options) for _ in range(REPEATS[times])]
        each = Summary.of([1000 * moments[-1] / len(moments) for moments in runs])
        size = {"sentences": times * len(texts), "ms_per_sentence": each.to_dict()}
        sizes.append({**size, **memory.read()})
    progress("scaling", len(TIMES), len(TIMES) + 1)
    return {
        "subject": loaded.subject.name,
        "precision": loaded.precision,
        "batch_size": batch_size,
        "sizes": sizes,
        "position": positions(runs[-1]),
        "encoder_calls": {
            str(count): encoder_calls(loaded, sentences, count, options)
            for count in (steps if ner.settings.denoises else (1,))
        },
    }


def _stream(
    ner: DiffusionNER, texts: Sequence[str], times: int, options: dict[str, Any]
) -> np.ndarray:
    """Return the seconds after which each result arrived, without keeping the results."""
    moments = np.zeros(times * len(texts))
    stream = (text for _ in range(times) for text in texts)
    started = time.perf_counter()
    for number, _ in enumerate(ner.pipe(stream, **options)):
        moments[number] = time.perf_counter() - started
    return moments


def positions(moments: np.ndarray) -> dict[str, float]:
    """Return the milliseconds per sentence in the first and last fifth of a stream, as slopes."""
    fifth = max(2, len(moments) // 5)
    numbers = np.arange(len(moments))
    first, last = (
        float(np.polyfit(numbers[part], 1000 * moments[part], 1)[0])
        for part in (slice(fifth), slice(-fifth, None))
    )
    return {"first_ms_per_sentence": first, "last_ms_per_sentence": last}


def encoder_calls(
    loaded: Loaded, sentences: Sequence[Sentence], steps: int, options: dict[str, Any]
) -> int | None:
    """Return the number of transformer calls; None for an exported model."""
    if loaded.subject.exported:
        return None
    with counted(type(loaded.ner.encoder.transformer)) as calls:
        loaded.words_task(sentences, supported_options(loaded.ner, {**options, "steps": steps}))()
    return len(calls)


@contextmanager
def counted(kind: type) -> Iterator[list[None]]:
    """Yield a list that grows with every call of any instance of a module class."""
    calls: list[None] = []

    def note(module: Any, *_: Any) -> None:
        if type(module) is kind:
            calls.append(None)

    handle = register_module_forward_hook(note)
    try:
        yield calls
    finally:
        handle.remove()
