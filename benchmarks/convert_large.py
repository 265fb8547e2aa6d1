"""`python -m benchmarks convert`"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

# Reads its own peak memory: that of a child process would include this process before the start.
_CONVERT = """
import re, sys
from pathlib import Path
from diffusionner.cli import main
try:
    main()
finally:
    peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())
    Path(sys.argv[4]).with_name("peak").write_text(peak[1])
"""


def generate(path: Path, sentences: int) -> None:
    """Write sentences of 5 to 25 words with up to three entities, some nested."""
    draw = random.Random(0)
    vocabulary = [f"word{number}" for number in range(5000)]
    with path.open("w", encoding="utf-8") as file:
        for number in range(sentences):
            words = draw.choices(vocabulary, k=draw.randint(5, 25))
            entities = [
                {"start": 0, "end": 4, "label": "ORG"},
                {"start": 1, "end": 2, "label": "PER"},
                {"start": 4, "end": 5, "label": "LOC"},
            ][: draw.randint(0, 3)]
            record = {"doc": f"d{number // 20}", "tokens": words, "entities": entities}
            file.write(json.dumps(record) + "\n")


def convert_large(
    sentences: int = 5_000_000,
    to: Annotated[str, typer.Option(help="Format to convert to.")] = "jsonl",
    folder: Annotated[
        Path | None, typer.Option(help="For the two large files.  [default: a temporary folder]")
    ] = None,
) -> None:
    """Measure time and peak memory of `diffusionner data convert` on a generated corpus.

    Linux only.
    """
    with tempfile.TemporaryDirectory(dir=folder) as name:
        source, target = Path(name, "source.jsonl"), Path(name, "target")
        generate(source, sentences)
        command = [sys.executable, "-c", _CONVERT, "data", "convert"]
        started = time.monotonic()
        subprocess.run([*command, source, target, "--to", to], check=True)
        seconds = time.monotonic() - started
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(
            f"{sentences} sentences ({source.stat().st_size / 1e6:.0f} MB) to {to}: "
            f"{seconds:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of CPU, "
            f"peak {int(Path(name, 'peak').read_text()) * 1024 / 1e6:.0f} MB"
        )
