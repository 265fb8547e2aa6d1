"""Parquet files, one or a folder of them; for the columns see `arrow`.

The files of a folder may be those of several splits, as on the Hugging Face hub: their names begin
with the split's, or the folder they are in is named after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence
from diffusionner.formats import arrow
from diffusionner.formats.arrow import Table, TableOptions
from diffusionner.formats.base import Format, Holds, Sample, Source, unreadable

_MAGIC = b"PAR1"
_BATCH = 1024  # rows decoded at a time
_SHARD = re.compile(r"[-_.]?\d")  # where the number of a file begins in its name


def recognises(sample: Sample) -> bool:
    if sample.folder:
        return any(name.endswith(".parquet") for name in sample.names)
    return sample.raw.startswith(_MAGIC)


def read(source: Source, options: TableOptions) -> Iterator[Sentence]:
    arrow.pyarrow(FORMAT.name)
    splits: dict[str, list[Path]] = {}
    for path in source.files("*.parquet"):
        name = _SHARD.split(path.name.removesuffix(".parquet"))[0] or path.parent.name
        splits.setdefault(name, []).append(path)
    if not splits:
        return iter(())
    files = arrow.choose_split(source.path, splits, options.split)
    return arrow.read(source, (_open(path) for path in files), options)


def _open(path: Path) -> Table:
    from pyarrow.parquet import ParquetFile

    try:
        file = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        content = ParquetFile(file)
        schema = content.schema_arrow
    except arrow.failures() as error:
        raise arrow.damaged(str(path), error) from error

    def batches(columns: list[str]) -> Iterator[Any]:
        with file:
            yield from content.iter_batches(_BATCH, columns=columns)

    return Table(path, schema, batches)


def write(sentences: Iterable[Sentence], path: Path, options: TableOptions) -> None:
    pyarrow = arrow.pyarrow(FORMAT.name)
    from pyarrow.parquet import ParquetWriter

    with ParquetWriter(path, arrow.schema(pyarrow), compression="zstd") as writer:
        for batch in arrow.batches(sentences, pyarrow):
            writer.write_batch(batch)


FORMAT = Format(
    name="parquet",
    summary="Parquet files: tokens with entities or tags (ner_tags)",
    recognises=recognises,
    read=read,
    write=write,
    options=TableOptions,
    holds=Holds(irregular=True, text=True),
    extensions=(".parquet",),
)
