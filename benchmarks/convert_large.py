"""Time and peak memory of `diffusionner data convert` on a generated corpus of any size.

python benchmarks/convert_large.py --sentences 5000000 --to conll
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def generate(path: Path, sentences: int) -> None:
    """Sentences of 5 to 25 words with up to three entities, one inside another."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=5_000_000)
    parser.add_argument("--to", default="jsonl")
    parser.add_argument("--folder", help="for the two large files; default: a temporary one")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        source, target = Path(folder, "source.jsonl"), Path(folder, "target")
        generate(source, chosen.sentences)
        command = [sys.executable, "-m", "diffusionner", "data", "convert"]
        started = time.monotonic()
        subprocess.run([*command, source, target, "--to", chosen.to], check=True)
        seconds = time.monotonic() - started
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(
            f"{chosen.sentences} sentences ({source.stat().st_size / 1e6:.0f} MB) to {chosen.to}: "
            f"{seconds:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of CPU, "
            f"peak {used.ru_maxrss / 1000:.0f} MB"
        )


if __name__ == "__main__":
    main()
