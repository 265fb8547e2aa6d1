"""What the host does for a sentence, from words to entities, besides launching kernels.

    python benchmarks/host_time.py --model bio --data $DATA/genia/test.jsonl --sentences 600

The model runs over the sentences once; from then on an engine gives what it gave at once, so all
that is timed is reading, tokenising, batching, the draw of noise, merging and overlaps. On a fast
GPU no more sentences a second are possible than this allows. On a CPU it is little beside the
network. The time is the processor's, which others on the machine disturb less than the clock's.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import sample
from benchmarks.timing import Summary
from diffusionner import DiffusionNER, formats
from diffusionner.batching import Batch
from diffusionner.diffusion import span_noise
from diffusionner.inference.engine import Engine
from diffusionner.settings import InferenceSettings

REPEATED = 8  # times that the sentences are read in a turn: batches are then as in a long text


class Remembering:
    """What another engine found in a sentence, given again without finding it."""

    subword_step, ahead = 8, 8  # as on a GPU

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.labels = engine.labels
        self.rows: dict[int, np.ndarray] = {}  # by the sentence's key, [steps, K, 5]
        self.tables: dict[bytes, np.ndarray] = {}

    def find(
        self,
        batch: Batch[np.ndarray],
        settings: InferenceSettings,
        slots: np.ndarray,
        given: np.ndarray | None = None,
        start: int | None = None,
    ) -> Callable[[], np.ndarray]:
        if settings.start == "noise":
            span_noise(batch.keys, settings.seed, 0, slots.shape[1])
        key = batch.keys.tobytes()
        if key not in self.tables:
            self.tables[key] = self._table(batch, settings, slots)
        return lambda: self.tables[key]

    def _table(
        self, batch: Batch[np.ndarray], settings: InferenceSettings, slots: np.ndarray
    ) -> np.ndarray:
        keys = batch.keys.tolist()
        if not self.rows.keys() >= set(keys):
            self.rows.update(zip(keys, self.engine.find(batch, settings, slots)(), strict=True))
        rows = [self.rows[key] for key in keys]
        # A CPU leaves spans out that no sentence of a batch needs, a GPU gives all there are.
        table = np.full((len(rows), len(rows[0]), slots.shape[1], 5), -1.0, dtype=np.float32)
        for place, row in zip(table, rows, strict=True):
            place[:, : row.shape[1]] = row[:, : slots.shape[1]]
        return table


def spent(task: Callable[[], object]) -> float:
    """Seconds of the processor."""
    gc.collect()
    started = time.process_time()
    task()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="en", help="a model's folder or name")
    parser.add_argument("--data", required=True, help="a corpus")
    parser.add_argument("--sentences", type=int, default=600)
    parser.add_argument("--steps", default="1,5")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--turns", type=int, default=15)
    arguments = parser.parse_args()
    ner = DiffusionNER.from_pretrained(arguments.model)
    chosen = sample.draw(formats.read(arguments.data), arguments.sentences)
    words, docs = [s.words for s in chosen], [s.doc for s in chosen]
    table = Table(title=f"{len(chosen)} sentences of {arguments.data}")
    for column in ("start", "γ", "µs per sentence", "fastest to slowest turn", "sentences/s"):
        table.add_column(column, justify="right")
    starts = {
        "candidates": {"start": "candidates"},
        "noise, K = 60": {"start": "noise", "spans": 60},
    }
    kinds = list(product(starts, map(int, arguments.steps.split(","))))
    for start, steps in track(kinds, "the model, then turns"):
        options = {**starts[start], "steps": steps, "batch_size": arguments.batch_size}
        timing = DiffusionNER(Remembering(ner.engine), ner.subwords, ner.settings, ner.calibration)
        timing.predict_tokens(words, docs, **options)
        turn = partial(timing.predict_tokens, words * REPEATED, docs * REPEATED, **options)
        turn()
        seconds = [spent(turn) for _ in range(arguments.turns)]
        found = Summary.of([1e6 * one / len(words) / REPEATED for one in seconds])
        figures = f"{found.median:.1f}", f"{found.low:.1f} to {found.high:.1f}"
        table.add_row(start, f"{steps}", *figures, f"{1e6 / found.median:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
