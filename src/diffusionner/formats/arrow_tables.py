"""Sentences as rows of Arrow tables: what Parquet files and Hugging Face datasets share.

We write a row for each sentence, with the columns of `_SHAPES`; they hold what our JSON lines hold
and in the same way. We read such rows, rows of `text` and `entities` by characters, and the usual
rows of token classification: `tokens` and, as strings or as numbers with names, `ner_tags`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from diffusionner.corpus import Sentence
from diffusionner.errors import DataError
from diffusionner.formats import jsonl, pieces, records
from diffusionner.formats.base import Source, missing_extra
from diffusionner.formats.conll import decode_tags, is_tag
from diffusionner.formats.texts import TextOptions

# What a column holds: a list stands for lists of what is in it, a dict for structs.
Shape = str | list[Any] | dict[str, Any]
_PART: Shape = {"start": "number", "end": "number"}
_SHAPES: dict[str, Shape] = {
    "doc": "name",  # text or number
    "tokens": ["text"],
    "entities": [{"start": "number", "end": "number", "label": "text"}],
    "text": "text",
    "text_start": "number",
    "offsets": [_PART],
    "irregular": [{"parts": [_PART], "label": "text"}],
}
# As `datasets` has stored a Sequence of dicts.
_TURNED: Shape = {"start": ["number"], "end": ["number"], "label": ["text"]}
_TAGS = ("ner_tags", "tags")
_A_TAG = "a tag is O, or one of B I E S (also M, L, U), a hyphen and a type, as in B-PER"
# A batch, which in Parquet is a row group, is this many sentences or characters of text.
_ROWS = 8192
_CHARACTERS = 2**24
_SLICE = 1024  # rows that are Python objects at a time

Choice = TypeVar("Choice")


@dataclass(frozen=True)
class TableOptions(TextOptions):
    """tokens, tags: columns; names: what tags 0, 1, 2... are, joined by +, as in O+B-PER+I-PER."""

    tokens: str = "tokens"
    tags: str = ""
    names: str = ""
    split: str = ""  # of a dataset in several


@dataclass
class Table:
    """A table to read."""

    path: Path
    schema: Any
    batches: Callable[[list[str]], Iterator[Any]]  # of these columns
    features: Any = None  # what `datasets` notes about the columns beside the schema


def pyarrow(format: str) -> Any:
    """The package."""
    try:
        import pyarrow
    except ImportError as error:
        raise missing_extra("pyarrow", "parquet", format) from error
    return pyarrow


def failures() -> tuple[type[Exception], ...]:
    """What pyarrow raises at a damaged file."""
    import pyarrow

    return (pyarrow.ArrowException, OSError, UnicodeDecodeError)


def damaged(where: str, error: Exception) -> DataError:
    reason = records.short(" ".join(str(error).split()))
    return DataError(f"{where}: cannot be decoded ({reason}); the file is damaged or cut short")


def choose_split(path: Path, splits: Mapping[str, Choice], wanted: str) -> Choice:
    """The split of this name, or the only one."""
    there = ", ".join(splits)
    if wanted:
        if wanted not in splits:
            raise DataError(f"{path}: no split '{wanted}'; there is: {there}")
        return splits[wanted]
    if len(splits) > 1:
        raise DataError(
            f"{path}: several splits ({there}); choose one with the option split, as in "
            f"split={next(iter(splits))}"
        )
    return next(iter(splits.values()))


# --- Reading ----------------------------------------------------------------------------------


def read(source: Source, tables: Iterable[Table], options: TableOptions) -> Iterator[Sentence]:
    """The sentences of tables that follow each other."""
    return pieces.join(found for table in tables for found in _read(source, table, options))


def _read(
    source: Source, table: Table, options: TableOptions
) -> Iterator[tuple[int | None, Sentence]]:
    try:
        layout = _lay_out(table, options)
    except UnicodeDecodeError as error:  # the name of a column
        raise damaged(str(table.path), error) from error
    return source.each(
        _rows(table, layout.columns),
        lambda row, where: jsonl.convert(layout.record(row, where), where, options),
    )


def _rows(table: Table, columns: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """("file:row", row), counted from 1."""
    number = 0
    try:
        for batch in table.batches(columns):
            batch.validate(full=True)  # else wrong offsets could point anywhere in memory
            for begin in range(0, batch.num_rows, _SLICE):
                for row in batch.slice(begin, _SLICE).to_pylist():
                    number += 1
                    yield f"{table.path}:{number}", row
    except failures() as error:
        raise damaged(f"{table.path}:{number + 1}", error) from error


@dataclass(frozen=True)
class _Layout:
    """Which columns are read, and as what."""

    columns: list[str]
    tokens: str | None
    tags: str | None  # instead of entities
    names: list[str] | None  # of tags that are numbers

    def record(self, row: dict[str, Any], where: str) -> dict[str, Any]:
        """A row as a record of our JSON lines; what is null is not there."""
        record = {key: _plain(value) for key, value in row.items() if value is not None}
        if self.tokens is not None:
            record["tokens"] = row[self.tokens]  # where null is an error
        if self.tags is not None:
            record["entities"] = self._decode(row, where)
        elif isinstance(record.get("entities"), dict):
            record["entities"] = _turn(record["entities"], where)
        return record

    def _decode(self, row: dict[str, Any], where: str) -> list[dict[str, Any]]:
        words, tags = row[self.tokens or ""] or [], row[self.tags or ""] or []
        if len(tags) != len(words):
            raise DataError(
                f"{where}: {len(words)} tokens but {len(tags)} tags; give each token its tag"
            )
        return [span._asdict() for span in decode_tags([self._tag(tag, where) for tag in tags])]

    def _tag(self, tag: Any, where: str) -> str:
        if self.names is not None:
            if tag is None or not 0 <= tag < len(self.names):
                raise DataError(
                    f"{where}: tag {tag} is none of the {len(self.names)} that have names; correct "
                    "it, or name all tags with the option names"
                )
            return self.names[tag]
        if tag is None or not is_tag(tag):
            raise DataError(f"{where}: unknown tag {records.short(repr(tag))}; {_A_TAG}")
        return str(tag)


def _lay_out(table: Table, options: TableOptions) -> _Layout:
    there = table.schema.names
    named = options.tags or options.tokens != TableOptions.tokens
    tokens = options.tokens if named or options.tokens in there or "text" not in there else None
    tags = options.tags or None
    entities = [_SHAPES["entities"], _TURNED]
    if tokens and not tags and not _fits(table, "entities", entities):
        tags = next((name for name in _TAGS if name in there), None)
    # Files of others may well have columns called as our further ones are.
    ours = ("doc",) if tags else ("doc", "text", "text_start", "offsets", "irregular")
    wanted: dict[str, list[Shape]] = {name: [_SHAPES[name]] for name in ours if name in there}
    wanted[tokens or "text"] = [["text"]] if tokens else ["text"]
    wanted[tags or "entities"] = [["text"], ["number"]] if tags else entities
    for name, shapes in wanted.items():
        if name not in there:
            raise DataError(
                f"{table.path}: no column '{name}' among {records.short(', '.join(there))}; name "
                "the columns with the options tokens and tags, as in tokens=words,tags=labels"
            )
        if not _fits(table, name, shapes):
            raise DataError(
                f"{table.path}: column '{name}' holds {records.short(str(_type(table, name)))}; "
                f"it should hold {' or '.join(map(_describe, shapes))}"
            )
    columns = list(wanted)
    if tags is None or _fits(table, tags, [["text"]]):
        return _Layout(columns, tokens, tags, None)
    return _Layout(columns, tokens, tags, _tag_names(table, tags, options))


def _type(table: Table, column: str) -> Any:
    return table.schema.field(table.schema.names.index(column)).type


def _fits(table: Table, column: str, shapes: list[Shape]) -> bool:
    """Whether there is this column and it holds one of these."""
    if column not in table.schema.names:
        return False
    return any(_has_shape(_type(table, column), shape) for shape in shapes)


def _has_shape(kind: Any, shape: Shape) -> bool:
    from pyarrow import types

    if types.is_null(kind):
        return True
    if isinstance(shape, list):
        return _is_list(kind) and _has_shape(kind.value_type, shape[0])
    if isinstance(shape, dict):
        fields = {field.name: field.type for field in kind} if types.is_struct(kind) else {}
        return all(name in fields and _has_shape(fields[name], shape[name]) for name in shape)
    if types.is_dictionary(kind):
        kind = kind.value_type
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    number = types.is_integer(kind)
    return {"text": text, "number": number, "name": text or number}[shape]


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    kinds = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
    return any(getattr(types, f"is_{name}")(kind) for name in kinds)


def _describe(shape: Shape) -> str:
    if isinstance(shape, list):
        return f"list<{_describe(shape[0])}>"
    if isinstance(shape, dict):
        members = ", ".join(f"{name}: {_describe(inner)}" for name, inner in shape.items())
        return f"struct<{members}>"
    return {"text": "string"}.get(shape, "int")


def _tag_names(table: Table, tags: str, options: TableOptions) -> list[str]:
    """What the numbers in a column of tags stand for."""
    names = options.names.split("+") if options.names else _noted_names(table, tags)
    if not names:
        raise DataError(
            f"{table.path}: column '{tags}' holds numbers and nothing says which tags they are; "
            "name them in order with the option names, as in names=O+B-PER+I-PER"
        )
    for name in names:
        if not is_tag(name):
            raise DataError(
                f"{table.path}: '{records.short(name)}' is no tag; {_A_TAG}. Give other names for "
                "the tags in order with the option names: a type without B and I as in I-PER"
            )
    return names


def _noted_names(table: Table, column: str) -> list[str] | None:
    """As `datasets` notes them, in the schema or in a file beside."""
    features = table.features
    noted = (table.schema.metadata or {}).get(b"huggingface")
    if noted is not None:
        where = f"{table.path}: 'huggingface' in the schema"
        features = _inside(
            records.load(noted.decode("utf-8", "replace"), where), "info", "features"
        )
    feature = _inside(features, column)
    while isinstance(feature, (dict, list)) and feature:
        if isinstance(feature, list):  # as of old for a list of what is in it
            feature = feature[0]
        elif feature.get("_type") == "ClassLabel":
            names = feature.get("names")
            return list(map(str, names)) if isinstance(names, list) else None
        else:
            feature = feature.get("feature")
    return None


def _inside(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _plain(value: Any) -> Any:
    """Structs of start and end as the pairs that JSON has."""
    if isinstance(value, list):
        return (
            [_plain(item) for item in value] if value and not isinstance(value[0], str) else value
        )
    if isinstance(value, dict):
        if value.keys() == {"start", "end"}:
            return [value["start"], value["end"]]
        return {key: _plain(item) for key, item in value.items()}
    return value


def _turn(columns: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """A struct of lists as a list of structs."""
    values = [columns[name] or [] for name in ("start", "end", "label")]
    if len(set(map(len, values))) > 1:
        raise DataError(f"{where}: 'entities' has lists of different lengths; correct them")
    return [
        {"start": start, "end": end, "label": label}
        for start, end, label in zip(*values, strict=True)
    ]


# --- Writing ----------------------------------------------------------------------------------


def schema(pyarrow: Any) -> Any:
    return pyarrow.schema([(name, _to_type(pyarrow, shape)) for name, shape in _SHAPES.items()])


def _to_type(pyarrow: Any, shape: Shape) -> Any:
    if isinstance(shape, list):
        return pyarrow.list_(_to_type(pyarrow, shape[0]))
    if isinstance(shape, dict):
        return pyarrow.struct([(name, _to_type(pyarrow, shape[name])) for name in shape])
    return pyarrow.int32() if shape == "number" else pyarrow.string()


def batches(sentences: Iterable[Sentence], pyarrow: Any) -> Iterator[Any]:
    """The sentences as record batches."""
    columns = schema(pyarrow)
    rows: list[dict[str, Any]] = []
    size = 0
    for begin, piece in pieces.cut(sentences):
        rows.append({"text_start": 0, "irregular": [], **jsonl.to_record(begin, piece)})
        size += len(piece.text or "")
        if len(rows) == _ROWS or size >= _CHARACTERS:
            yield pyarrow.RecordBatch.from_pylist(rows, schema=columns)
            rows, size = [], 0
    if rows:
        yield pyarrow.RecordBatch.from_pylist(rows, schema=columns)
