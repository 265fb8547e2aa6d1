"""Timing: interleaved repeats, medians and extremes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch

from diffusionner.cli.options import ProgressCallback

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Summary:
    """Median and extremes of repeated measurements."""

    median: float
    low: float
    high: float
    values: list[float]

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        return cls(statistics.median(values), min(values), max(values), list(values))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def synchronise(device: str) -> None:
    """Wait until the device is idle."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def timed(task: Callable[[], object], device: str) -> float:
    """Return the seconds of one call, including the work of the device."""
    synchronise(device)
    started = time.perf_counter()
    task()
    synchronise(device)
    return time.perf_counter() - started


def uncounted_turns(device: str) -> int:
    """Return the number of warm-up turns.

    On a GPU the first one finds how many spans are needed, the second sees their shapes, and the
    next two record graphs, each on a stream of its own.
    """
    return 4 if device.startswith("cuda") else 1


def interleave(
    tasks: Mapping[Key, Callable[[], object]],
    repeats: int,
    device: str,
    progress: ProgressCallback,
    what: str,
    uncounted: int | None = None,
) -> dict[Key, list[float]]:
    """Return the seconds of every task, repeated in turns.

    A machine that slows down then slows down all tasks alike. `uncounted` warm-up turns come first,
    by default as many as the device needs.
    """
    seconds: dict[Key, list[float]] = {key: [] for key in tasks}
    first = uncounted_turns(device) if uncounted is None else uncounted
    done, total = 0, (first + repeats) * len(tasks)
    for turn in range(first + repeats):
        for key, task in tasks.items():
            progress(what, done, total)
            taken = timed(task, device)
            if turn >= first:
                seconds[key].append(taken)
            done += 1
    progress(what, total, total)
    return seconds


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values do not exceed."""
    ranked = sorted(values)
    return ranked[max(0, -(-round(share * 1000) * len(ranked) // 1000) - 1)]
