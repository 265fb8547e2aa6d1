"""Annotation on a Ray cluster; each worker holds the model in memory.

One task reads the corpus in chunks; Ray Data distributes them to the workers and returns the
results in order. A worker that dies is replaced and its chunks are repeated. The corpus files and
the model folder must have the same paths on every machine.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from diffusionner.annotation.record import Record
from diffusionner.annotation.run import ModelSpec, PendingInput
from diffusionner.annotation.sources import Sources
from diffusionner.annotation.writers import Annotated
from diffusionner.corpus import Entity
from diffusionner.errors import DataError, DiffusionNERError, SettingsError

CHUNK = 256  # records per chunk

Row = dict[str, Any]


class RayEngine:
    def __init__(self, model: ModelSpec, device: str | None, workers: int | None) -> None:
        """workers: None starts one per GPU or, without GPUs, one per core."""
        try:
            import ray
            import ray.data
        except ImportError as error:
            raise SettingsError(
                "engine ray needs the package 'ray'; in a clone, install it with: "
                "pip install '.[ray]'"
            ) from error
        self.model = model
        self.device = device
        self.workers = workers
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no network access
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        if not ray.is_initialized():  # connects to RAY_ADDRESS, else starts Ray locally
            ray.init(log_to_driver=False, logging_level="ERROR")

    def annotate(self, pending: PendingInput) -> Generator[Annotated, None, None]:
        if None in pending.sources.files:
            raise DataError("engine ray cannot read standard input; give files")
        expected = pending.counter.records
        dataset = self._dataset(pending.sources, expected)
        with _ray_settings(), closing(iter(dataset.iter_rows())) as rows:
            for row in rows:
                if row["first"] != expected:
                    raise RuntimeError(f"Ray returned record {row['first']} instead of {expected}")
                results = json.loads(row["entities"])
                records = list(islice(pending.records, len(results)))
                for record, entities in zip(records, results, strict=True):
                    yield record, [Entity(*values) for values in entities]
                expected += len(results)
        if next(pending.records, None) is not None:
            raise DataError("the input changed while it was read; start over")

    def _dataset(self, sources: Sources, done: int) -> Any:
        import ray

        gpus = int(ray.cluster_resources().get("GPU", 0)) if self.device != "cpu" else 0
        workers = self.workers or gpus or int(ray.cluster_resources().get("CPU", 1))
        context = self.model.settings.encoder.context
        # Workers have their own working directory.
        sources = replace(sources, files=[file and file.resolve() for file in sources.files])
        rows = partial(_chunk_rows, sources, done, context, CHUNK)
        return ray.data.read_datasource(
            _datasource(rows), num_cpus=0, override_num_blocks=1
        ).map_batches(
            _Worker,
            fn_constructor_args=(self.model.folder.resolve(), self.device, self.model.options),
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=1,
            num_gpus=1 if gpus else 0,
        )


class _Worker:
    """A Ray actor; it loads the model once."""

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


def _chunk_rows(sources: Sources, done: int, context: int, size: int) -> Iterator[Row]:
    """Yield a row per chunk of `size` records, with the records around it as context."""
    records = sources.records(lambda message: None)  # the driver reports bad records
    records = islice(records, max(0, done - context), None)
    before = list(islice(records, min(done, context)))
    ahead: list[Record] = []
    first = done
    while True:
        ahead += islice(records, size + context - len(ahead))
        chunk = ahead[:size]
        if not chunk:
            return
        items = [(record.content, record.doc) for record in [*before, *ahead]]
        yield {
            "first": first,
            "before": len(before),
            "count": len(chunk),
            "items": json.dumps(items),
        }
        first += len(chunk)
        before = [*before, *chunk][-context:] if context else []
        ahead = ahead[size:]


def _datasource(rows: Any) -> Any:
    """Return a Ray Data source read by one task; reading is fast compared to the model."""
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
def _ray_settings() -> Iterator[None]:
    """Make Ray Data return blocks of one chunk, in order, without progress output."""
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
        if isinstance(error.cause, DiffusionNERError):
            raise error.cause from error
        raise
    finally:
        for name, value in before.items():
            setattr(context, name, value)
        context.execution_options.preserve_order = ordered
