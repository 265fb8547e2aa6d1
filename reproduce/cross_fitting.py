"""Candidates of documents that a network has not learned from.

A network knows its training documents by heart and hardly errs there, unlike on new text. So two
networks learn from one half of the documents each, and each reads the other half.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from diffusionner import DiffusionNER
from diffusionner.batching import EncodedCorpus
from diffusionner.corpus import Sentence, check_labels, collect_labels
from diffusionner.data.fingerprint import fingerprint
from diffusionner.errors import CheckpointError, DataError
from diffusionner.evaluation import Report
from diffusionner.files import write_bytes
from diffusionner.inference.documents import CandidateColumns, owned_candidates
from diffusionner.inference.stream import PredictionTask, batch_size
from diffusionner.settings import Settings
from diffusionner.storage.config import STATE_FILE
from diffusionner.threads import available_threads
from diffusionner.training.data import RunData
from diffusionner.training.trainer import Trainer
from reproduce.processes import lock_folder

Part = Literal["whole", "first", "second"]
PARTS: tuple[Part, ...] = ("whole", "first", "second")


def number_documents(sentences: Sequence[Sentence]) -> np.ndarray:
    """Return the number of each sentence's document. A sentence without `doc` is one."""
    numbers: dict[str | int, int] = {}
    keys = (i if s.doc is None else s.doc for i, s in enumerate(sentences))
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def first_documents(sentences: Sequence[Sentence], count: int | None) -> list[Sentence]:
    """Return the sentences of the first documents; None for all."""
    numbers = number_documents(sentences).tolist()
    return [s for s, n in zip(sentences, numbers, strict=True) if count is None or n < count]


@dataclass(frozen=True)
class CorpusSplits:
    """A corpus, and the sentences of it that each network learns and reads."""

    name: str
    train: list[Sentence]
    dev: list[Sentence]
    test: list[Sentence]

    @property
    def labels(self) -> list[str]:
        return collect_labels(self.train)

    def check(self) -> None:
        """Raise DataError for a corpus that cannot be cross-fitted."""
        documents = len(set(number_documents(self.train).tolist()))
        if documents < 2 or not self.labels or not self.dev or not self.test:
            raise DataError(
                f"{self.name}: cross-fitting needs two training documents with entities, dev and "
                f"test; there are {documents} documents with {len(self.labels)} types, "
                f"{len(self.dev)} dev and {len(self.test)} test sentences"
            )
        check_labels(self.dev, self.labels)
        check_labels(self.test, self.labels)

    def half(self, number: int) -> list[Sentence]:
        """Return the sentences of every other document."""
        numbered = zip(self.train, number_documents(self.train).tolist(), strict=True)
        return [sentence for sentence, document in numbered if document % 2 == number]

    def learned(self, part: Part) -> list[Sentence]:
        return self.train if part == "whole" else self.half(PARTS.index(part) - 1)

    def read(self, part: Part) -> dict[str, list[Sentence]]:
        """Return what the network of a part reads, by name."""
        if part == "whole":
            return {"dev": self.dev, "test": self.test}
        return {part: self.half(2 - PARTS.index(part))}


@dataclass(frozen=True)
class FoldRun:
    """A network to train on a part of a corpus, and the candidates to read with it."""

    corpus: CorpusSplits
    part: Part
    settings: Settings
    work: Path

    @cached_property
    def data(self) -> RunData:
        dev = self.corpus.dev if self.part == "whole" else []
        return RunData(self.corpus.learned(self.part), dev, [], self.corpus.labels)

    @cached_property
    def model(self) -> Path:
        name = f"{self.corpus.name}-{self.part}-{self.data.fingerprint(self.settings)}"
        return self.work / name

    def candidates_file(self, reading: str) -> Path:
        read = fingerprint(self.corpus.read(self.part)[reading]).hash
        return self.model.with_name(f"{self.model.name}-{reading}-{read}.npz")

    def execute(self) -> None:
        """Train, or go on with, the network; then write the candidates. Skip what is done."""
        readings = self.corpus.read(self.part)
        missing = [name for name in readings if not self.candidates_file(name).exists()]
        if not missing:
            return
        lock = lock_folder(self.model)
        if lock is None:
            raise CheckpointError(f"another process is training in {self.model}; wait for it")
        with lock:
            training = replace(self.settings.training, output=str(self.model))
            settings = replace(self.settings, training=training)
            Trainer(settings, (self.model / STATE_FILE).exists(), self.data).run()
            ner = DiffusionNER.from_pretrained(self.model)
            for name in missing:
                content = BytesIO()
                np.savez(content, **read_candidates(ner, readings[name])._asdict())
                write_bytes(self.candidates_file(name), content.getvalue())

    def candidates(self, reading: str) -> CandidateColumns:
        with np.load(self.candidates_file(reading), allow_pickle=False) as arrays:
            return CandidateColumns(**arrays)


def read_candidates(ner: DiffusionNER, sentences: Sequence[Sentence]) -> CandidateColumns:
    """Return the candidates of the initializer."""
    corpus = EncodedCorpus(sentences, ner.subwords, ner.settings.encoder)
    task = PredictionTask(corpus, range(len(sentences)))
    inference = replace(ner.settings.inference, steps=0, start="candidates")
    for chosen in corpus.sorted_batches(batch_size(ner.engine, inference), task.sentences):
        found = task.launch(ner.engine, chosen, inference)()
        task.candidates.append(owned_candidates(found, corpus.windows, chosen))
    return task.columns()


def sum_by_document(report: Report, sentences: Sequence[Sentence]) -> np.ndarray:
    """Return correct, predicted and gold entities of each document: [documents, 3]."""
    counts, numbers = report.measure_counts["micro"], number_documents(sentences)
    summed = np.zeros((numbers.max() + 1, counts.shape[1]), dtype=counts.dtype)
    np.add.at(summed, numbers, counts)
    return summed


def execute_all(runs: Sequence[FoldRun], parallel: int) -> None:
    """Execute runs in processes of their own, some at a time."""
    context = get_context("spawn")
    threads = max(1, available_threads() // parallel)
    with ProcessPoolExecutor(
        parallel, context, initializer=torch.set_num_threads, initargs=(threads,)
    ) as pool:
        try:
            for done in [pool.submit(run.execute) for run in runs]:
                done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
