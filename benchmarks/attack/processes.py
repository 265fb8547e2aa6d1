"""Commands in processes that start at once and die at a chosen or a random moment.

They are forked from a server that has torch and the library in memory, and are killed by SIGKILL,
so that nothing can clean up.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KILLED = -signal.SIGKILL
MAX_SECONDS = 300  # of one process; more is an endless run


@dataclass(frozen=True)
class Death:
    """When a process dies: after some seconds, or before or after the n-th call of a function."""

    seconds: float | None = None
    place: str = ""
    number: int = 0
    after: bool = False

    @classmethod
    def draw(cls, chance: random.Random, longest: float, places: dict[str, int]) -> Death:
        """Draw a moment of a run that takes `longest` seconds and calls functions that often."""
        if chance.random() < 0.5:
            return cls(seconds=chance.uniform(0, longest))
        place = chance.choice(list(places))
        number = chance.randint(1, places[place])
        return cls(None, place, number, chance.random() < 0.5)

    def __str__(self) -> str:
        if self.seconds is not None:
            return "at a random time"
        return f"{'after' if self.after else 'before'} a call of {self.place}"


@dataclass(frozen=True)
class Ended:
    status: int
    output: str  # of standard error
    seconds: float


class Commands:
    """Runs commands of the library in forked processes with one thread each."""

    def __init__(self) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"
        self.context = multiprocessing.get_context("forkserver")
        # Also what the main module imports, which every process would import again.
        modules = ("diffusionner.training.trainer", "pyarrow.parquet", "torch.utils.tensorboard")
        self.context.set_forkserver_preload([*modules, "benchmarks.cli", __name__])
        self.run("--version", log=Path(os.devnull))  # starts the server

    def run(self, *arguments: object, log: Path, death: Death | None = None) -> Ended:
        """Run `diffusionner` with these arguments."""
        process = self.context.Process(
            target=_command, args=([str(a) for a in arguments], log, death)
        )
        began = time.monotonic()
        process.start()
        process.join(MAX_SECONDS if death is None or death.seconds is None else death.seconds)
        process.kill()
        process.join()
        assert process.exitcode is not None
        seconds = time.monotonic() - began
        text = log.read_text(encoding="utf-8") if log.exists() else ""
        return Ended(process.exitcode, text, seconds)


def _command(arguments: list[str], log: Path, death: Death | None) -> None:
    from diffusionner import cli
    from diffusionner.annotation import writers

    errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    writers.FLUSH_RECORDS = 7  # many flushes in a short run
    if death is not None and death.place:
        owner: Any = Path if death.place == "unlink" else os
        setattr(owner, death.place, _deadly(getattr(owner, death.place), death))
    sys.argv = ["diffusionner", *arguments]
    cli.main()


def _deadly(function: Callable[..., Any], death: Death) -> Callable[..., Any]:
    calls = 0

    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == death.number and not death.after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **kwargs)
        if calls == death.number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return called
