"""Hugging Face datasets on disk, as `save_to_disk` writes them; for the columns see `arrow`.

A folder is one dataset, or a DatasetDict: a folder for each split. Its Arrow files are read and
written directly: nothing in the folder is run, nothing asks the network.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence
from diffusionner.errors import DataError
from diffusionner.formats import arrow, records
from diffusionner.formats.arrow import Table, TableOptions
from diffusionner.formats.base import Format, Holds, Sample, Source, unreadable

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
    pyarrow = arrow.pyarrow(FORMAT.name)
    folder = source.path
    features = None
    files = [folder]
    if folder.is_dir():
        if not (folder / _STATE).is_file():
            folder = arrow.choose_split(folder, _splits(folder), options.split)
        elif options.split:
            raise DataError(
                f"{folder}: one dataset, not several splits; leave out the option split"
            )
        files = _data_files(source, folder)
        if (folder / _INFO).is_file():
            info = _json(source, folder / _INFO)
            features = info.get("features")
    tables = (_open(path, features, pyarrow) for path in files)
    return arrow.read(source, tables, options)


def _splits(folder: Path) -> dict[str, Path]:
    splits = {path.parent.name: path.parent for path in sorted(folder.glob(f"*/{_STATE}"))}
    if not splits:
        raise DataError(
            f"{folder}: no dataset; give a folder that save_to_disk wrote, with {_STATE} in it"
        )
    return splits


def _data_files(source: Source, folder: Path) -> list[Path]:
    place = folder / _STATE
    state = _json(source, place)
    if state.get("_indices_data_files"):
        raise DataError(
            f"{place}: rows chosen by indices; load the dataset and save it again, which "
            "writes only those rows"
        )
    files = state.get("_data_files")
    try:
        # Only the name: what is elsewhere is no part of this dataset.
        return [folder / Path(file["filename"]).name for file in files or ()]
    except (TypeError, KeyError) as error:
        raise DataError(f"{place}: '_data_files' names no files; save the dataset again") from error


def _json(source: Source, path: Path) -> dict[str, Any]:
    value = records.load(source.text(path), f"{path}")
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected an object, found {records.name(value)}; save it again")
    return value


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
            # A stream that is cut between two batches would pass for a shorter one.
            content.seek(max(0, content.size() - len(_STREAM_END)))
            if content.read() != _STREAM_END:
                raise DataError(f"{path}: no end of an Arrow stream; the file is cut short")
            content.seek(0)
            found = reader = pyarrow.ipc.open_stream(content)
    except arrow.failures() as error:
        raise arrow.damaged(str(path), error) from error

    def batches(columns: list[str]) -> Iterator[Any]:
        return (batch.select(columns) for batch in found)

    return Table(path, reader.schema, batches, features)


def write(sentences: Iterable[Sentence], path: Path, options: TableOptions) -> None:
    pyarrow = arrow.pyarrow(FORMAT.name)
    content = hashlib.blake2b(digest_size=8)
    with pyarrow.ipc.new_stream(str(path / _DATA), arrow.schema(pyarrow)) as writer:
        for batch in arrow.batches(sentences, pyarrow):
            writer.write_batch(batch)
            content.update(batch.serialize())
    state: dict[str, Any] = {
        "_data_files": [{"filename": _DATA}],
        "_fingerprint": content.hexdigest(),  # `datasets` caches what it computes by it
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
    holds=Holds(irregular=True, text=True),
    folder=True,
)
