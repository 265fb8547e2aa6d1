"""`python -m benchmarks host`"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import sample
from benchmarks.timing import Summary
from diffusionner import DiffusionNER, formats
from diffusionner.batching import Batch
from diffusionner.cli.options import MODEL_HELP
from diffusionner.diffusion import Candidates, ReverseStart, span_noise
from diffusionner.inference.engine import Engine, Pending
from diffusionner.settings import InferenceSettings

REPEATED = 8  # passes over the sentences in a turn, so that batches are those of a long text


class Remembering:
    """An engine that returns what another engine found, without running it again."""

    subword_multiple, prefetch = 8, 8  # as on a GPU

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.labels, self.beliefs = engine.labels, engine.beliefs
        self.label_groups = engine.label_groups
        self.remembered: dict[bytes, Candidates[np.ndarray]] = {}  # by the keys of the batch

    def launch(
        self,
        batch: Batch[np.ndarray],
        start: ReverseStart[np.ndarray],
        settings: InferenceSettings,
    ) -> Pending:
        if settings.start == "noise":
            span_noise(batch.keys, settings.seed, 0, start.slots.shape[1])
        key = batch.keys.tobytes()
        if key not in self.remembered:
            found = self.engine.launch(batch, start, settings)()
            # A CPU leaves out spans that no sentence of the batch needs; a GPU returns all of them.
            most = start.slots.shape[1]
            self.remembered[key] = found.map(lambda array: _padded(array, most))
        return lambda: self.remembered[key]


def _padded(array: np.ndarray, spans: int) -> np.ndarray:
    """Pad [B, S, K, ...] with empty slots."""
    widths = [(0, 0)] * array.ndim
    widths[2] = (0, spans - array.shape[2])
    return np.pad(array, widths)


def spent(task: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    gc.collect()
    started = time.process_time()
    task()
    return time.process_time() - started


def host_time(
    data: Annotated[Path, typer.Option(help="Corpus, in any format.")],
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = "en",
    sentences: int = 600,
    steps: Annotated[str, typer.Option(help="Denoising steps γ to try.")] = "1,5",
    batch_size: int = 256,
    turns: int = 15,
) -> None:
    """Measure the CPU time per sentence of everything but the network.

    The network runs over the sentences once. Its results are then replayed, so that the measured
    time is that of reading, tokenising, batching, drawing noise, merging and resolving overlaps. A
    fast GPU cannot exceed the sentences per second that this allows; on a CPU it is little compared
    with the network. CPU time is less sensitive to other processes than wall-clock time.

    Example: `python -m benchmarks host --model bio --data genia/test.jsonl`
    """
    ner = DiffusionNER.from_pretrained(model)
    chosen = sample.draw(formats.read(data), sentences)
    words, docs = [s.words for s in chosen], [s.doc for s in chosen]
    table = Table(title=f"{len(chosen)} sentences of {data}")
    for column in ("start", "γ", "µs per sentence", "fastest to slowest turn", "sentences/s"):
        table.add_column(column, justify="right")
    starts: dict[str, dict[str, Any]] = {
        "candidates": {"start": "candidates"},
        "noise, K = 60": {"start": "noise", "spans": 60},
    }
    kinds = list(product(starts, map(int, steps.split(","))))
    for start, gamma in track(kinds, "the model, then turns"):
        options = {**starts[start], "steps": gamma, "batch_size": batch_size}
        timing = DiffusionNER(Remembering(ner.engine), ner.subwords, ner.settings, ner.calibration)
        timing.predict_tokens(words, docs, **options)
        turn = partial(timing.predict_tokens, words * REPEATED, docs * REPEATED, **options)
        turn()
        seconds = [spent(turn) for _ in range(turns)]
        found = Summary.of([1e6 * one / len(words) / REPEATED for one in seconds])
        figures = f"{found.median:.1f}", f"{found.low:.1f} to {found.high:.1f}"
        table.add_row(start, f"{gamma}", *figures, f"{1e6 / found.median:.0f}")
    Console().print(table)
