"""Sentences as rows of Arrow tables, shared by Parquet files and Hugging Face datasets.

Writes one row per sentence with the columns of `COLUMNS`, which correspond to our JSON lines; only
discontinuous entities have a column of their own. Reads such rows, rows of `text` and `entities` by
characters, and the usual rows of token classification: `tokens` and `ner_tags`, as strings or as
numbers with names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from diffusionner.corpus import Sentence
from diffusionner.errors import DataError
from diffusionner.formats import jsonl
from diffusionner.formats.bio_tags import VALID_TAGS, decode_tags, is_tag
from diffusionner.formats.document_slices import join_slices, slice_documents
from diffusionner.formats.documents import TextOptions
from diffusionner.formats.json_files import parse_json
from diffusionner.formats.json_records import Record
from diffusionner.formats.source import Source, import_extra, reason, shorten

# Type of a column: a list stands for a list of its item's type, a dict for a struct.
Shape = str | list[Any] | dict[str, Any]
_PART: Shape = {"start": "number", "end": "number"}
COLUMNS: dict[str, Shape] = {
    "doc": "name",  # text or number
    "tokens": ["text"],
    "entities": [{"start": "number", "end": "number", "label": "text"}],
    "text": "text",
    "text_start": "number",
    "offsets": [_PART],
    "discontinuous": [{"fragments": [_PART], "label": "text"}],
    "irregular": [{"parts": [_PART], "label": "text"}],
}
# How `datasets` stores a Sequence of dicts.
STRUCT_OF_LISTS: Shape = {"start": ["number"], "end": ["number"], "label": ["text"]}
_TAGS = ("ner_tags", "tags")
# Maximum number of sentences or characters in a batch, which is a row group in Parquet.
_ROWS = 8192
_CHARACTERS = 2**24
_SLICE = 1024  # rows converted to Python objects at a time

Choice = TypeVar("Choice")


@dataclass(frozen=True)
class TableOptions(TextOptions):
    """tokens, tags: columns; names: names of the tags 0, 1, 2, ..., as in O+B-PER+I-PER."""

    tokens: str = "tokens"
    tags: str = ""
    names: str = ""
    split: str = ""  # which of several splits to read


@dataclass
class Table:
    """A table to read."""

    path: Path
    schema: Any
    batches: Callable[[list[str]], Iterator[Any]]  # record batches of these columns
    features: Any = None  # the column types of `datasets`, if not in the schema


def import_pyarrow(format: str) -> Any:
    return import_extra("pyarrow", "parquet", format)


def arrow_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that pyarrow raises for a damaged file."""
    import pyarrow

    return (pyarrow.ArrowException, OSError, UnicodeDecodeError)


def damaged(where: str, error: Exception) -> DataError:
    return DataError(
        f"{where}: cannot be decoded ({reason(error)}); the file is damaged or truncated"
    )


def choose_split(path: Path, splits: Mapping[str, Choice], wanted: str) -> Choice:
    """Return the split with this name, or the only one."""
    names = ", ".join(splits)
    if wanted:
        if wanted not in splits:
            raise DataError(f"{path}: no split '{wanted}'; available: {names}")
        return splits[wanted]
    if len(splits) > 1:
        raise DataError(
            f"{path}: several splits ({names}); choose one with the option split, as in "
            f"split={next(iter(splits))}"
        )
    return next(iter(splits.values()))


def read(source: Source, tables: Iterable[Table], options: TableOptions) -> Iterator[Sentence]:
    """Yield the sentences of consecutive tables."""
    return join_slices(found for table in tables for found in _read(source, table, options))


def _read(
    source: Source, table: Table, options: TableOptions
) -> Iterator[tuple[int | None, Sentence]]:
    try:
        layout = _detect_layout(table, options)
    except UnicodeDecodeError as error:  # in the name of a column
        raise damaged(str(table.path), error) from error
    return source.convert_each(
        _rows(table, layout.columns),
        lambda row, where: jsonl.parse_record(layout.record(row, where), options),
    )


def _rows(table: Table, columns: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("file:row", row); rows count from 1."""
    number = 0
    try:
        for batch in table.batches(columns):
            batch.validate(full=True)  # invalid offsets could point anywhere in memory
            for begin in range(0, batch.num_rows, _SLICE):
                for row in batch.slice(begin, _SLICE).to_pylist():
                    number += 1
                    yield f"{table.path}:{number}", row
    except arrow_errors() as error:
        raise damaged(f"{table.path}:{number + 1}", error) from error


@dataclass(frozen=True)
class _Layout:
    """The columns to read."""

    columns: list[str]
    tokens: str | None
    tags: str | None  # used instead of entities
    names: list[str] | None  # names of tags that are numbers

    def record(self, row: dict[str, Any], where: str) -> Record:
        """Convert a row to a record of our JSON lines, without null values."""
        record = {key: _plain(value) for key, value in row.items() if value is not None}
        if self.tokens is not None:
            record["tokens"] = row[self.tokens]  # null is an error here
        if self.tags is not None:
            words, tags = row[self.tokens or ""] or [], row[self.tags] or []
            if len(tags) != len(words):
                raise DataError(
                    f"{where}: {len(words)} tokens but {len(tags)} tags; give each token its tag"
                )
            spans = decode_tags([self._tag(tag, where) for tag in tags])
            record["entities"] = [span._asdict() for span in spans]
        elif isinstance(record.get("entities"), dict):
            names = ("start", "end", "label")
            lists = [record["entities"][name] or [] for name in names]
            if len(set(map(len, lists))) > 1:
                raise DataError(f"{where}: 'entities' has lists of different lengths; correct them")
            entities = zip(*lists, strict=True)
            record["entities"] = [dict(zip(names, entity, strict=True)) for entity in entities]
        if "discontinuous" in record:
            record["entities"] = [*record.get("entities", []), *record["discontinuous"]]
        return Record(record, where, jsonl.SHAPE)

    def _tag(self, tag: Any, where: str) -> str:
        if self.names is not None:
            if tag is None or not 0 <= tag < len(self.names):
                raise DataError(
                    f"{where}: tag {tag} is not among the {len(self.names)} named tags; correct "
                    "it, or name all tags with the option names"
                )
            return self.names[tag]
        if tag is None or not is_tag(tag):
            raise DataError(f"{where}: unknown tag {shorten(repr(tag))}; {VALID_TAGS}")
        return str(tag)


def _detect_layout(table: Table, options: TableOptions) -> _Layout:
    columns = dict(zip(table.schema.names, table.schema.types, strict=True))
    named = options.tags or options.tokens != TableOptions.tokens
    tokens = options.tokens if named or options.tokens in columns or "text" not in columns else None
    tags = options.tags or None
    entities: list[Shape] = [COLUMNS["entities"], STRUCT_OF_LISTS]
    if tokens and not tags and not _has_shape(columns.get("entities"), *entities):
        tags = next((name for name in _TAGS if name in columns), None)
    # With tags the file is not ours: columns with our other names mean something else.
    more = ("text", "text_start", "offsets", "discontinuous", "irregular")
    ours = ("doc",) if tags else ("doc", *more)
    wanted: dict[str, list[Shape]] = {name: [COLUMNS[name]] for name in ours if name in columns}
    wanted[tokens or "text"] = [["text"]] if tokens else ["text"]
    wanted[tags or "entities"] = [["text"], ["number"]] if tags else entities
    for name, shapes in wanted.items():
        if name not in columns:
            raise DataError(
                f"{table.path}: no column '{name}' among {shorten(', '.join(columns))}; name "
                "the columns with the options tokens and tags, as in tokens=words,tags=labels"
            )
        if not _has_shape(columns[name], *shapes):
            raise DataError(
                f"{table.path}: column '{name}' has type {shorten(str(columns[name]))}; expected "
                + " or ".join(str(to_type(shape)) for shape in shapes)
            )
    names = None
    if tags is not None and not _has_shape(columns[tags], ["text"]):
        names = _tag_names(table, tags, options)
    return _Layout(list(wanted), tokens, tags, names)


def _has_shape(kind: Any, *shapes: Shape) -> bool:
    """Return True if an Arrow type has one of these shapes."""
    from pyarrow import types

    if kind is None or types.is_null(kind):
        return kind is not None
    plain = kind.value_type if types.is_dictionary(kind) else kind
    text = str(plain) in ("string", "large_string", "string_view")
    for shape in shapes:
        if isinstance(shape, list):  # list, large_list, fixed_size_list, list_view, ...
            found = "list" in str(kind).partition("<")[0] and _has_shape(kind.value_type, shape[0])
        elif isinstance(shape, dict):
            inner = {field.name: field.type for field in kind} if types.is_struct(kind) else {}
            found = all(_has_shape(inner.get(name), shape[name]) for name in shape)
        else:
            found = (text and shape != "number") or (shape != "text" and types.is_integer(plain))
        if found:
            return True
    return False


def _tag_names(table: Table, tags: str, options: TableOptions) -> list[str]:
    """Return the names of the numbers in a column of tags."""
    names = options.names.split("+") if options.names else _class_labels(table, tags)
    if not names:
        raise DataError(
            f"{table.path}: column '{tags}' has numbers without names; name the tags in order "
            "with the option names, as in names=O+B-PER+I-PER"
        )
    for name in names:
        if not is_tag(name):
            raise DataError(
                f"{table.path}: '{shorten(name)}' is not a tag; {VALID_TAGS}. Rename the tags in "
                "order with the option names: a type without B and I as in I-PER"
            )
    return names


def _class_labels(table: Table, column: str) -> list[str] | None:
    """Return the names that `datasets` stores in the schema or in a separate file."""
    feature: Any = {"info": {"features": table.features}}
    stored = (table.schema.metadata or {}).get(b"huggingface")
    if stored is not None:
        feature = parse_json(stored.decode("utf-8", "replace"), f"{table.path}:1")
    for key in ("info", "features", column):
        feature = feature.get(key) if isinstance(feature, dict) else None
    while isinstance(feature, (dict, list)) and feature:
        if isinstance(feature, list):  # older notation for a list
            feature = feature[0]
        elif feature.get("_type") == "ClassLabel":
            names = feature.get("names")
            return list(map(str, names)) if isinstance(names, list) else None
        else:
            feature = feature.get("feature")
    return None


def _plain(value: Any) -> Any:
    """Convert structs of start and end to pairs, as in our JSON lines."""
    if isinstance(value, list) and value and not isinstance(value[0], str):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        if value.keys() == {"start", "end"}:
            return [value["start"], value["end"]]
        return {key: _plain(item) for key, item in value.items()}
    return value


def schema() -> Any:
    import pyarrow

    return pyarrow.schema([(name, to_type(shape)) for name, shape in COLUMNS.items()])


def to_type(shape: Shape) -> Any:
    import pyarrow

    if isinstance(shape, list):
        return pyarrow.list_(to_type(shape[0]))
    if isinstance(shape, dict):
        return pyarrow.struct([(name, to_type(shape[name])) for name in shape])
    return pyarrow.int32() if shape == "number" else pyarrow.string()


def batches(sentences: Iterable[Sentence]) -> Iterator[Any]:
    """Yield the sentences as record batches."""
    from pyarrow import RecordBatch

    columns = schema()
    rows: list[dict[str, Any]] = []
    size = 0
    for begin, sentence in slice_documents(sentences):
        row = jsonl.to_record(begin, replace(sentence, discontinuous=[]))
        row["discontinuous"] = [entity._asdict() for entity in sentence.discontinuous]
        rows.append({"text_start": 0, "irregular": [], **row})
        size += len(sentence.text or "")
        if len(rows) == _ROWS or size >= _CHARACTERS:
            yield RecordBatch.from_pylist(rows, schema=columns)
            rows, size = [], 0
    if rows:
        yield RecordBatch.from_pylist(rows, schema=columns)
