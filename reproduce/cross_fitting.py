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
from diffusionner.corpus import Sentence, collect_labels
from diffusionner.evaluation import Report
from diffusionner.files import write_bytes
from diffusionner.inference.documents import CandidateColumns, document_blocks, owned_candidates
from diffusionner.inference.stream import PredictionTask, batch_size
from diffusionner.settings import Settings
from diffusionner.storage.config import STATE_FILE
from diffusionner.threads import available_threads
from diffusionner.training.data import RunData
from diffusionner.training.trainer import Trainer

Part = Literal["whole", "first", "second"]
PARTS: tuple[Part, ...] = ("whole", "first", "second")


def number_documents(sentences: Sequence[Sentence]) -> list[int]:
    """Return the number of the document of each sentence, from 0 on."""
    numbers: list[int] = []
    last: str | None = None
    for sentence in sentences:
        is_new = sentence.doc is None or sentence.doc != last
        numbers.append((numbers[-1] if numbers else -1) + is_new)
        last = sentence.doc
    return numbers


def first_documents(sentences: Sequence[Sentence], count: int | None) -> list[Sentence]:
    """Return the sentences of the first documents; None for all."""
    numbers = number_documents(sentences)
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

    def half(self, number: int) -> list[Sentence]:
        """Return the sentences of every other document. A sentence without `doc` is one."""
        numbered = zip(self.train, number_documents(self.train), strict=True)
        return [sentence for sentence, document in numbered if document % 2 == number]

    def learned(self, part: Part) -> list[Sentence]:
        return self.train if part == "whole" else self.half(PARTS.index(part) - 1)

    def read(self, part: Part) -> dict[str, list[Sentence]]:
        """Return what the network of a part reads, by name."""
        if part == "whole":
            return {"dev": self.dev, "test": self.test}
        return {part: self.half(2 - PARTS.index(part))}


@dataclass(frozen=True)
class Run:
    """A network to train, and the candidates to read with it."""

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
        return self.model.with_name(f"{self.model.name}-{reading}.npz")

    def execute(self) -> None:
        """Train, or go on with, the network; then write the candidates. Skip what is done."""
        readings = self.corpus.read(self.part)
        missing = [name for name in readings if not self.candidates_file(name).exists()]
        if not missing:
            return
        training = replace(self.settings.training, output=str(self.model))
        settings = replace(self.settings, training=training)
        Trainer(settings, (self.model / STATE_FILE).exists(), self.data).run()
        ner = DiffusionNER.from_pretrained(self.model)
        for name in missing:
            columns = read_candidates(ner, readings[name])
            content = BytesIO()
            np.savez(content, **columns._asdict())
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


def sum_by_document(report: Report, corpus: EncodedCorpus) -> np.ndarray:
    """Return correct, predicted and gold entities of each document: [documents, 3]."""
    counts = report.measure_counts["micro"]
    blocks = document_blocks(corpus, range(len(counts)))
    starts = np.flatnonzero(np.diff(blocks, prepend=-1))
    summed: np.ndarray = np.add.reduceat(counts, starts, axis=0)
    return summed


def execute_all(runs: Sequence[Run], parallel: int) -> None:
    """Execute runs in processes of their own, some at a time."""
    context = get_context("spawn")
    threads = max(1, available_threads() // parallel)
    with ProcessPoolExecutor(
        parallel, context, initializer=torch.set_num_threads, initargs=(threads,)
    ) as pool:
        for done in [pool.submit(run.execute) for run in runs]:
            done.result()
