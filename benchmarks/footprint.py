"""`python -m benchmarks footprint`"""

from __future__ import annotations

import subprocess
import tempfile
import time
import venv
from pathlib import Path
from typing import Annotated

import typer

from diffusionner.errors import DataError

CLONE = Path(__file__).parents[1]
PROGRAM = """
import sys, time
started = time.perf_counter()
from diffusionner import DiffusionNER
ner = DiffusionNER.from_pretrained(sys.argv[1])
assert ner("Ada Lovelace met Charles Babbage in London; IL-2 activates T cells.")
seconds = time.perf_counter() - started
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(seconds, int(status["VmHWM"].split()[0]) / 1000)  # ru_maxrss is inherited
"""


def footprint(
    models: Annotated[
        list[Path], typer.Argument(help="Model packages (models/en) or folders of models.")
    ],
    repeats: int = 5,
) -> None:
    """Install the library and models into a new environment, and measure what that takes.

    Prints the time and size of the installation, and for each model the time from the start of a
    program to the entities of a first sentence, and its peak memory. Needs Linux and an
    index of packages.
    """
    packages = [model.resolve() for model in models if (model / "pyproject.toml").exists()]
    with tempfile.TemporaryDirectory() as scratch:
        venv.create(scratch, with_pip=True)
        own = Path(scratch) / "bin" / "python"
        empty = _megabytes(Path(scratch))
        started = time.perf_counter()
        _run(str(own), "-m", "pip", "install", "--quiet", *map(str, [CLONE, *packages]))
        seconds, size = time.perf_counter() - started, _megabytes(Path(scratch))
        print(_run(str(own), "--version").strip())
        what = ", ".join(["diffusionner", *(package.name for package in packages)])
        print(f"installed {what} in {seconds:.1f} s")
        print(f"site-packages: {size:.0f} MB, of which pip had {empty:.0f}")
        for model in models:
            name = model.name if model.resolve() in packages else str(model.resolve())
            runs = [_run(str(own), "-c", PROGRAM, name).split() for _ in range(repeats)]
            first = sorted(float(seconds) for seconds, _ in runs)
            peak = max(float(memory) for _, memory in runs)
            print(
                f"{name}: first entities after {first[len(first) // 2]:.2f} s "
                f"({first[0]:.2f} to {first[-1]:.2f}), {peak:.0f} MB"
            )


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path.home())
    if done.returncode:
        raise DataError(f"{' '.join(command)[:200]} failed: {done.stderr.strip()[-1000:]}")
    return done.stdout


def _megabytes(environment: Path) -> float:
    """Return the size of site-packages."""
    (folder,) = environment.glob("lib/python*/site-packages")
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
