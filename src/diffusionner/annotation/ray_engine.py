"""Annotation on a Ray cluster; each worker holds the model in memory.

The driver reads the corpus and sends it to the workers in chunks. A worker that dies is restarted
and its chunks are repeated. The model folder must have the same path on every machine.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

from diffusionner.annotation.record import Record
from diffusionner.annotation.run import ModelSpec
from diffusionner.annotation.writers import Annotated
from diffusionner.corpus import Entity
from diffusionner.errors import DiffusionNERError
from diffusionner.threads import configure_threads

CHUNK = 256  # records per chunk
CHUNKS_PER_WORKER = 2  # in flight, so that no worker waits for the driver
MAX_RESTARTS = 10  # of one worker


class Chunk(NamedTuple):
    """Records to annotate, and the items around them that are context only."""

    records: list[Record]
    items: list[tuple[str | list[str], str | None]]  # (content, document), with the context
    first: int  # item of the first record


class RayEngine:
    def __init__(
        self,
        model: ModelSpec,
        device: str | None,
        workers: int | None,
        threads: int | None = None,
    ) -> None:
        """workers: None starts as many as there are GPUs or, without GPUs, as the cores allow.

        threads: CPU threads, and so cores, of each worker; None is 1.
        """
        import ray

        self.model = model
        self.device = device
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no network access
        logging.getLogger("ray").setLevel(logging.ERROR)
        if not ray.is_initialized():  # connects to RAY_ADDRESS, else starts Ray locally
            ray.init(log_to_driver=False, logging_level="ERROR")
        resources = ray.cluster_resources()
        self.gpus = int(resources.get("GPU", 0)) if device != "cpu" else 0
        self.threads = threads or 1
        cores = int(resources.get("CPU", 1))
        self.workers = workers or self.gpus or max(1, cores // self.threads)

    def __call__(
        self, records: Iterable[Record], context: Sequence[Record]
    ) -> Generator[Annotated, None, None]:
        import ray

        worker = ray.remote(_Worker).options(
            num_cpus=self.threads,
            runtime_env={"env_vars": configure_threads(self.threads)},
            num_gpus=1 if self.gpus else 0,
            max_restarts=MAX_RESTARTS,
            max_task_retries=MAX_RESTARTS,
        )
        arguments = (self.model.folder.resolve(), self.device, self.model.options)
        workers = [worker.remote(*arguments) for _ in range(self.workers)]
        running: deque[tuple[Chunk, Any]] = deque()
        settings = self.model.settings
        if settings.reads_documents:
            chunks = document_chunks(records, context)
        else:
            chunks = make_chunks(records, context, settings.encoder.context)
        try:
            for chunk, actor in zip(chunks, cycle(workers), strict=False):
                running.append((chunk, actor.annotate.remote(chunk.items)))
                if len(running) >= CHUNKS_PER_WORKER * self.workers:
                    yield from _results(*running.popleft())
            while running:
                yield from _results(*running.popleft())
        finally:
            for actor in workers:
                ray.kill(actor)


def make_chunks(
    records: Iterable[Record], before: Sequence[Record], context: int
) -> Iterator[Chunk]:
    """Yield chunks of records, with up to `context` records before and after them."""
    records = iter(records)
    ahead: list[Record] = []
    while True:
        ahead += islice(records, CHUNK + context - len(ahead))
        chunk = ahead[:CHUNK]
        if not chunk:
            return
        items = [(record.content, record.doc) for record in [*before, *ahead]]
        yield Chunk(chunk, items, len(before))
        before = [*before, *chunk][-context:] if context else []
        ahead = ahead[CHUNK:]


def document_chunks(records: Iterable[Record], before: Sequence[Record]) -> Iterator[Chunk]:
    """Yield chunks of whole documents, however long; before: records of the first document."""
    chunk: list[Record] = []
    doc: str | None = None  # of the last record that is not empty
    for record in records:
        if len(chunk) >= CHUNK and record.content and (record.doc is None or record.doc != doc):
            yield _whole(chunk, before)
            chunk, before = [], []
        chunk.append(record)
        doc = record.doc if record.content else doc
    if chunk:
        yield _whole(chunk, before)


def _whole(chunk: list[Record], before: Sequence[Record]) -> Chunk:
    return Chunk(chunk, [(one.content, one.doc) for one in [*before, *chunk]], len(before))


def _results(chunk: Chunk, result: Any) -> Iterator[Annotated]:
    import ray

    try:
        found: list[list[Entity]] = ray.get(result)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, DiffusionNERError):
            raise error.cause from error
        raise
    yield from zip(chunk.records, found[chunk.first :], strict=False)


class _Worker:
    """A Ray actor; it loads the model on first use, so that errors reach the driver."""

    def __init__(self, folder: Path, device: str | None, options: dict[str, Any]) -> None:
        self.folder, self.device, self.options = folder, device, options
        self.ner: Any = None

    def annotate(self, items: list[tuple[str | list[str], str | None]]) -> list[list[Entity]]:
        if self.ner is None:
            from diffusionner.inference.pipeline import DiffusionNER

            self.ner = DiffusionNER.from_pretrained(self.folder, self.device)
        return [list(entities) for entities in self.ner.stream(items, **self.options)]
