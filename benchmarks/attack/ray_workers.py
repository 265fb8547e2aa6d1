"""`python -m benchmarks attack-ray`"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.attack import tiny
from benchmarks.attack.kills import Kills, Seed, compare, read_records, train_model
from benchmarks.attack.processes import Commands
from diffusionner.annotation.journal import Position

KILLS_PER_RUN = 5  # fewer than a worker may be restarted


def attack_ray(
    kills: Kills = 20,
    seed: Seed = 0,
    records: Annotated[int, typer.Option(help="Texts in the corpus.", min=1)] = 2000,
) -> None:
    """Kill workers of `diffusionner annotate --engine ray` while they annotate a corpus.

    The output must be that of the local engine. A worker is killed after a random number of
    records, several times in a run. Exit with 1 if one output is wrong. Linux only.
    """
    import ray

    from diffusionner import DiffusionNER
    from diffusionner.annotation import ray_engine, writers
    from diffusionner.annotation.run import ModelSpec, annotate, annotate_records
    from diffusionner.annotation.sources import find_sources

    chance, began = random.Random(seed), time.monotonic()
    ray_engine.CHUNK, writers.FLUSH_RECORDS = 32, 16  # many chunks in a short run
    done = runs = 0
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = ModelSpec.load(train_model(Commands(), folder), {})
        tiny.write_texts(folder / "in.jsonl", records)
        sources = find_sources([str(folder / "in.jsonl")])
        local = partial(annotate_records, DiffusionNER.from_pretrained(model.folder, "cpu"), {})
        annotate(sources, folder / "local.jsonl", model, local, print)
        expected = read_records(folder / "local.jsonl")
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        ray.init(
            num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
            object_store_memory=200 * 2**20,
        )  # fmt: skip
        while done < kills and not failures:
            runs += 1
            moments = [chance.randrange(records) for _ in range(min(KILLS_PER_RUN, kills - done))]
            killer = WorkerKiller(sorted(moments), chance)
            engine = ray_engine.RayEngine(model, "cpu", 2)
            output = folder / f"ray{runs}.jsonl"
            annotate(sources, output, model, engine, print, killer)
            done += killer.kills
            problem = compare(read_records(output), expected)
            if not killer.kills:
                problem = problem or "no worker was found to kill"
            if problem:
                failures.append(f"run {runs}: {problem}")
        ray.shutdown()
    print(f"{done:6} workers killed in {runs} runs, {time.monotonic() - began:.0f} s")
    print(f"{runs - len(failures):6} of {runs} outputs equal that of the local engine")
    print("\n".join(failures), end="\n" if failures else "")
    if failures:
        raise typer.Exit(1)


class WorkerKiller:
    """Progress of a run that kills a worker when certain numbers of records are written."""

    def __init__(self, moments: list[int], chance: random.Random) -> None:
        self.moments, self.chance, self.kills = moments, chance, 0

    def __call__(self, position: Position, bytes_read: int) -> None:
        if not self.moments or position.records < self.moments[0]:
            return
        self.moments.pop(0)
        workers = find_workers()
        if workers:
            with suppress(ProcessLookupError):  # ended meanwhile
                os.kill(self.chance.choice(workers), signal.SIGKILL)
                self.kills += 1


def find_workers() -> list[int]:
    """Return the ids of the worker processes that Ray started for this process."""
    import psutil  # type: ignore[import-untyped]

    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # ended meanwhile
            if "ray::_Worker" in " ".join(child.cmdline()):
                found.append(child.pid)
    return found
