"""Parquet files, or a folder of them; see `arrow_tables` for the columns.

The files of a folder may belong to several splits, as on the Hugging Face hub: their names begin
with the name of the split, or their folder has that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence
from diffusionner.formats import arrow_tables
from diffusionner.formats.arrow_tables import Table, TableOptions
from diffusionner.formats.format import Capabilities, Format
from diffusionner.formats.source import Sample, Source, unreadable

_MAGIC = b"PAR1"
_BATCH = 1024  # rows decoded at a time
_SHARD = re.compile(r"[-_.]?\d")  # start of the number in a file's name


def recognises(sample: Sample) -> bool:
    if sample.folder:
        return any(name.endswith(".parquet") for name in sample.names)
    return sample.raw.startswith(_MAGIC)


def read(source: Source, options: TableOptions) -> Iterator[Sentence]:
    arrow_tables.import_pyarrow(FORMAT.name)
    splits: dict[str, list[Path]] = {}
    for path in source.files("*.parquet"):
        name = _SHARD.split(path.name.removesuffix(".parquet"))[0] or path.parent.name
        splits.setdefault(name, []).append(path)
    if not splits:
        return iter(())
    files = arrow_tables.choose_split(source.path, splits, options.split)
    return arrow_tables.read(source, (_open(path) for path in files), options)


def _open(path: Path) -> Table:
    from pyarrow.parquet import ParquetFile

    try:
        file = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        content = ParquetFile(file)
        schema = content.schema_arrow
    except arrow_tables.arrow_errors() as error:
        raise arrow_tables.damaged(str(path), error) from error

    def batches(columns: list[str]) -> Iterator[Any]:
        with file:
            yield from content.iter_batches(_BATCH, columns=columns)

    return Table(path, schema, batches)


def write(sentences: Iterable[Sentence], path: Path, options: TableOptions) -> None:
    arrow_tables.import_pyarrow(FORMAT.name)
    from pyarrow.parquet import ParquetWriter

    with ParquetWriter(path, arrow_tables.schema(), compression="zstd") as writer:
        for batch in arrow_tables.batches(sentences):
            writer.write_batch(batch)


FORMAT = Format(
    name="parquet",
    summary="Parquet files: tokens with entities or tags (ner_tags)",
    recognises=recognises,
    read=read,
    write=write,
    options=TableOptions,
    capabilities=Capabilities(discontinuous=True, irregular=True, text=True),
    extensions=(".parquet",),
)
