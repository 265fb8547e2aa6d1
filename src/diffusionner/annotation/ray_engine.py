"""Annotation by the workers of a Ray cluster, each with the model in its memory.

One task reads the corpus and cuts it into chunks, Ray Data gives these to the workers and their
results back in order. A worker that dies is replaced, and its chunks are done again. The files of
the corpus and the model's folder must be found under the same paths on every machine.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from diffusionner.annotation.records import Record
from diffusionner.annotation.run import Input, Model
from diffusionner.annotation.sources import Sources
from diffusionner.annotation.writers import Annotated
from diffusionner.corpus import Entity
from diffusionner.errors import DataError, DiffusionNERError, SettingsError

CHUNK = 256  # records that a worker gets at a time

Row = dict[str, Any]


class RayEngine:
    def __init__(self, model: Model, device: str | None, workers: int | None) -> None:
        """workers: None takes one for each GPU or, where there is none, for each core."""
        try:
            import ray
            import ray.data
        except ImportError as error:
            raise SettingsError(
                "engine ray needs the package 'ray'; install it, in a clone, with: "
                "pip install '.[ray]'"
            ) from error
        self.model = model
        self.device = device
        self.workers = workers
        # Ray would tell its makers that it was used.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        if not ray.is_initialized():  # where RAY_ADDRESS says, else on this machine
            ray.init(log_to_driver=False, logging_level="ERROR")

    def annotate(self, given: Input) -> Generator[Annotated, None, None]:
        if None in given.sources.files:
            raise DataError("engine ray cannot read standard input; give files")
        expected = given.counter.records
        with _settings(), closing(iter(self._dataset(given.sources, expected).iter_rows())) as rows:
            for row in rows:
                if row["first"] != expected:
                    raise RuntimeError(f"Ray gave record {row['first']} instead of {expected}")
                results = json.loads(row["entities"])
                records = list(islice(given.records, len(results)))
                for record, entities in zip(records, results, strict=True):
                    yield record, [Entity(*values) for values in entities]
                expected += len(results)
        if next(given.records, None) is not None:
            raise DataError("the input changed while it was read; begin again")

    def _dataset(self, sources: Sources, done: int) -> Any:
        import ray

        gpus = int(ray.cluster_resources().get("GPU", 0)) if self.device != "cpu" else 0
        workers = self.workers or gpus or int(ray.cluster_resources().get("CPU", 1))
        context = self.model.settings.encoder.context
        # Workers have a working directory of their own.
        files = [file and file.resolve() for file in sources.files]
        corpus = _Corpus(files, sources.format, sources.whole)
        rows = partial(_rows, corpus, done, context, CHUNK)
        return ray.data.read_datasource(
            _source(rows), num_cpus=0, override_num_blocks=1
        ).map_batches(
            _Worker,
            fn_constructor_args=(self.model.folder.resolve(), self.device, self.model.options),
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=1,
            num_gpus=1 if gpus else 0,
        )


@dataclass(frozen=True)
class _Corpus:
    """What the reading task needs to know of the sources."""

    files: list[Path | None]
    format: str | None
    whole: bool

    def records(self) -> Iterator[Record]:
        """Bad ones are left out here as in the driver, which reports them."""
        return Sources(self.files, self.format, self.whole).records(lambda message: None)


class _Worker:
    """What an actor runs; the model is loaded once and only read from."""

    def __init__(self, folder: Path, device: str | None, options: dict[str, Any]) -> None:
        from diffusionner.inference.pipeline import DiffusionNER

        self.ner = DiffusionNER.from_pretrained(folder, device)
        self.options = options

    def __call__(self, batch: Any) -> Any:
        import pyarrow as pa

        rows = batch.to_pylist()
        found = [json.dumps(self._entities(row)) for row in rows]
        return pa.table({"first": [row["first"] for row in rows], "entities": found})

    def _entities(self, row: Row) -> list[list[Entity]]:
        items = json.loads(row["items"])
        found = list(self.ner.stream(map(tuple, items), **self.options))
        return [list(entities) for entities in found[row["before"] : row["before"] + row["count"]]]


def _rows(corpus: _Corpus, done: int, context: int, size: int) -> Iterator[Row]:
    """A row for each chunk of so many records: they, between those that are only context."""
    records = islice(corpus.records(), max(0, done - context), None)
    before = list(islice(records, min(done, context)))
    waiting: list[Record] = []
    first = done
    while True:
        waiting += islice(records, size + context - len(waiting))
        chunk = waiting[:size]
        if not chunk:
            return
        items = [(record.content, record.doc) for record in [*before, *waiting]]
        yield {
            "first": first,
            "before": len(before),
            "count": len(chunk),
            "items": json.dumps(items),
        }
        first += len(chunk)
        before = [*before, *chunk][-context:] if context else []
        waiting = waiting[size:]


def _source(rows: Any) -> Any:
    """A Ray Data source of which one task reads everything: the model is what takes time."""
    import pyarrow as pa
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask

    def blocks() -> Iterable[Any]:
        return (pa.table({name: [value] for name, value in row.items()}) for row in rows())

    class Chunks(Datasource):  # type: ignore[misc]
        def get_read_tasks(self, *_: Any, **__: Any) -> list[Any]:
            return [ReadTask(blocks, BlockMetadata(None, None, None, None))]

        def estimate_inmemory_data_size(self) -> int | None:
            return None

    return Chunks()


@contextmanager
def _settings() -> Iterator[None]:
    """Blocks of one chunk each, in order, and quietly."""
    from ray.data import DataContext
    from ray.exceptions import RayTaskError

    context = DataContext.get_current()
    quiet = ("enable_progress_bars", "enable_operator_progress_bars", "print_on_execution_start")
    before = {name: getattr(context, name, None) for name in (*quiet, "target_max_block_size")}
    ordered = context.execution_options.preserve_order
    try:
        for name in quiet:
            setattr(context, name, False)
        context.target_max_block_size = 1
        context.execution_options.preserve_order = True
        yield
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, DiffusionNERError):
            raise cause from error
        raise
    finally:
        for name, value in before.items():
            setattr(context, name, value)
        context.execution_options.preserve_order = ordered
