"""`python -m benchmarks threads`"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import sample
from diffusionner import DiffusionNER, formats
from diffusionner.cli.options import MODEL_HELP
from diffusionner.threads import VARIABLES, WAIT_POLICY

SINGLE = 60  # sentences that are also computed one by one
WAITS = ("active", "passive")


def threads(
    data: Annotated[Path, typer.Option(help="Corpus, in any format.")],
    model: Annotated[list[str], typer.Option(help=MODEL_HELP + " Repeatable.")] = ["en"],  # noqa: B006
    counts: Annotated[str, typer.Option(help="Numbers of threads to try.")] = "1,2",
    busy: Annotated[str, typer.Option(help="Numbers of other busy processes to try.")] = "0,2",
    sentences: int = 300,
    turns: int = 3,
) -> None:
    """Measure what threads cost, alone and beside busy processes.

    Compares the numbers of threads and the ways in which OpenMP's threads wait for each other:
    active (they spin, the default of torch) and passive (they sleep, the default of our commands).
    Each turn starts every process anew, because these settings are read when torch is loaded. The
    figures are medians: words per CPU-second and per second, for all sentences in batches and for
    single sentences.

    Example: `python -m benchmarks threads --model en --model runs/int8 --data wikigold/all.jsonl`
    """
    kinds = list(product(map(int, busy.split(",")), model, counts.split(","), WAITS))
    found: dict[tuple[int, str, str, str], list[list[float]]] = {kind: [] for kind in kinds}
    for _, kind in track([(turn, kind) for turn in range(turns) for kind in kinds], "turns"):
        with _busy_processes(kind[0]):
            found[kind].append(_measured(*kind[1:], data, sentences))
    table = Table("busy", "model", "threads", "waiting")
    for name in ("batches: words/CPU-s", "words/s", "single: words/CPU-s", "words/s"):
        table.add_column(name, justify="right")
    for (others, name, count, wait), values in found.items():
        medians = [f"{statistics.median(value):,.0f}" for value in zip(*values, strict=True)]
        table.add_row(str(others), Path(name).name, count, wait, *medians)
    Console().print(table)


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _measured(model: str, count: str, wait: str, data: Path, sentences: int) -> list[float]:
    environment = {**os.environ, **dict.fromkeys(VARIABLES, count)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    # Undefined, libgomp spins for some milliseconds; "active" would make it spin for ever.
    environment.pop(WAIT_POLICY, None)
    if wait == "passive":
        environment[WAIT_POLICY] = wait
    command = [sys.executable, "-m", "benchmarks.threads", model, str(data), str(sentences)]
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    figures: list[float] = json.loads(output)
    return figures


def _measure(model: str, data: str, sentences: int) -> list[float]:
    """Return the figures of this process."""
    words = [one.words for one in sample.spread(formats.read(Path(data)), sentences)]
    ner = DiffusionNER.from_pretrained(model, "cpu")
    ner.predict_tokens(words[:SINGLE])
    figures = []
    for batches in ([words], [[one] for one in words[:SINGLE]]):
        cpu, started = time.process_time(), time.perf_counter()
        for batch in batches:
            ner.predict_tokens(batch)
        seconds = time.process_time() - cpu, time.perf_counter() - started
        total = sum(len(one) for batch in batches for one in batch)
        figures += [total / taken for taken in seconds]
    return figures


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
