"""Time and memory of a fresh process that loads a model.

Run as a program, so that nothing is imported yet: `python -m benchmarks.card.startup FOLDER`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from diffusionner.errors import CheckpointError


@dataclass(frozen=True)
class Startup:
    ready: float  # seconds until the entities of a first sentence, including imports
    load: float  # seconds to load the model once everything is imported
    resident_mb: float  # after the first sentence


def measure(folder: Path, device: str) -> Startup:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", __name__, str(folder.resolve()), device]
    clone = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=clone)
    if done.returncode:
        raise CheckpointError(f"{folder} cannot be loaded in a process of its own: {done.stderr}")
    return Startup(**json.loads(done.stdout.splitlines()[-1]))


def _measure_here(folder: Path, device: str) -> Startup:
    started = time.perf_counter()
    from diffusionner import DiffusionNER

    ner = DiffusionNER.from_pretrained(folder, device)
    ner("Ada Lovelace met Charles Babbage in London.")
    ready = time.perf_counter() - started
    from benchmarks.machine import PeakMemory

    resident = PeakMemory("cpu").read()["resident_mb"]  # read at once: current memory
    del ner  # after measuring memory, of which its weights are most
    started = time.perf_counter()
    DiffusionNER.from_pretrained(folder, device)
    return Startup(ready, time.perf_counter() - started, resident or 0.0)


if __name__ == "__main__":
    print(json.dumps(asdict(_measure_here(Path(sys.argv[1]), sys.argv[2]))))
