"""Hugging Face datasets as written by `save_to_disk`; see `arrow_tables` for the columns.

A folder is one dataset, or a DatasetDict with a folder for each split. Arrow files are read and
written directly: no code in the folder is run, and nothing accesses the network.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence
from diffusionner.errors import DataError
from diffusionner.formats import arrow_tables
from diffusionner.formats.arrow_tables import Table, TableOptions
from diffusionner.formats.format import Capabilities, Format
from diffusionner.formats.json_files import parse_json
from diffusionner.formats.json_records import Record
from diffusionner.formats.source import Sample, Source, unreadable

_STATE = "state.json"
_INFO = "dataset_info.json"
_DICT = "dataset_dict.json"
_DATA = "data-00000-of-00001.arrow"
_STREAM = b"\xff\xff\xff\xff"  # begins every message of an Arrow stream
_STREAM_END = _STREAM + bytes(4)
_FILE = b"ARROW1"


def recognises(sample: Sample) -> bool:
    if sample.folder:
        return any((sample.path / name).is_file() for name in (_STATE, _DICT))
    is_stream = sample.raw.startswith(_STREAM) and sample.path.suffix == ".arrow"
    return is_stream or sample.raw.startswith(_FILE)


def read(source: Source, options: TableOptions) -> Iterator[Sentence]:
    pyarrow = arrow_tables.import_pyarrow(FORMAT.name)
    folder = source.path
    features = None
    files = [folder]
    if folder.is_dir():
        if not (folder / _STATE).is_file():
            splits = {path.parent.name: path.parent for path in sorted(folder.glob(f"*/{_STATE}"))}
            if not splits:
                raise DataError(
                    f"{folder}: not a dataset; give a folder written by save_to_disk, with "
                    f"{_STATE} in it"
                )
            folder = arrow_tables.choose_split(folder, splits, options.split)
        elif options.split:
            raise DataError(f"{folder}: a dataset without splits; leave out the option split")
        files = _data_files(source, folder)
        if (folder / _INFO).is_file():
            features = _read_json(source, folder / _INFO).get("features")
    tables = (_open(path, features, pyarrow) for path in files)
    return arrow_tables.read(source, tables, options)


def _data_files(source: Source, folder: Path) -> list[Path]:
    place = folder / _STATE
    state = _read_json(source, place)
    if state.get("_indices_data_files"):
        raise DataError(
            f"{place}: the dataset is a selection by indices; load it and save it again, "
            "which writes only the selected rows"
        )
    files = state.get("_data_files")
    try:
        # Only the name: files elsewhere are not part of this dataset.
        return [folder / Path(file["filename"]).name for file in files or ()]
    except (TypeError, KeyError) as error:
        raise DataError(
            f"{place}: '_data_files' does not name files; save the dataset again"
        ) from error


def _read_json(source: Source, path: Path) -> dict[str, Any]:
    return Record(parse_json(source.text(path), f"{path}:1"), str(path), "the dataset again").fields


def _open(path: Path, features: Any, pyarrow: Any) -> Table:
    try:
        content = pyarrow.OSFile(str(path))
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        if content.read(len(_FILE)) == _FILE:
            reader = pyarrow.ipc.open_file(content)
            found = map(reader.get_batch, range(reader.num_record_batches))
        else:
            # A stream truncated between two batches would be read as a shorter one.
            content.seek(max(0, content.size() - len(_STREAM_END)))
            if content.read() != _STREAM_END:
                raise DataError(f"{path}: no end of the Arrow stream; the file is truncated")
            content.seek(0)
            found = reader = pyarrow.ipc.open_stream(content)
    except arrow_tables.arrow_errors() as error:
        raise arrow_tables.damaged(str(path), error) from error

    def batches(columns: list[str]) -> Iterator[Any]:
        return (batch.select(columns) for batch in found)

    return Table(path, reader.schema, batches, features)


def write(sentences: Iterable[Sentence], path: Path, options: TableOptions) -> None:
    pyarrow = arrow_tables.import_pyarrow(FORMAT.name)
    content = hashlib.blake2b(digest_size=8)
    with pyarrow.ipc.new_stream(str(path / _DATA), arrow_tables.schema()) as writer:
        for batch in arrow_tables.batches(sentences):
            writer.write_batch(batch)
            content.update(batch.serialize())
    state: dict[str, Any] = {
        "_data_files": [{"filename": _DATA}],
        "_fingerprint": content.hexdigest(),  # key of the cache of `datasets`
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    for name, value in ((_STATE, state), (_INFO, {})):
        (path / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


FORMAT = Format(
    name="huggingface",
    summary="Hugging Face datasets on disk (save_to_disk): tokens with entities or tags (ner_tags)",
    recognises=recognises,
    read=read,
    write=write,
    options=TableOptions,
    capabilities=Capabilities(discontinuous=True, irregular=True, text=True),
    folder=True,
)
