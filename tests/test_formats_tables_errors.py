"""Parquet files and Hugging Face datasets that are wrong: what is said, and where."""

from __future__ import annotations

import shutil

import pytest
from corpus_files import put, refuses
from test_formats_tables import ENTITIES, NUMBERS, TAGS, WORDS, dataset, parquet

from diffusionner.errors import DataError
from diffusionner.formats import iterate_with_errors, read
from diffusionner.formats.arrow_tables import COLUMNS, STRUCT_OF_LISTS, to_type

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NO_COLUMN = "name the columns with the options tokens and tags"


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (
            {"words": WORDS, "ner_tags": TAGS},
            "",
            f"no column 'tokens' among words, ner_tags; {NO_COLUMN}",
        ),
        ({"tokens": WORDS}, "", f"no column 'entities' among tokens; {NO_COLUMN}"),
        ({"tokens": WORDS, "tags": TAGS}, ":tags=labels", "no column 'labels' among tokens, tags"),
        ({"text": ["a"]}, "", "no column 'entities' among text"),
        ({"text": ["a"], "tags": [["O"]]}, ":tags=tags", "no column 'tokens' among text, tags"),
        (
            {"tokens": ["Rome"], "ner_tags": [["O"]]},
            "",
            "column 'tokens' has type string; expected list<item: string>",
        ),
        (
            {"tokens": [["a"]], "ner_tags": [[0.5]]},
            "",
            "list<element: double>; expected list<item: string> or list<item: int32>",
        ),
        (
            {"tokens": [["a"]], "entities": [["X"]]},
            "",
            "expected list<item: struct<start: int32, end: int32, label: string>>",
        ),
        (
            {"tokens": [["a"]], "entities": [[{"start": 0}]]},
            "",
            "'entities' has type list<element: struct<start: int64>>",
        ),
        (
            {"tokens": [["a"]], "entities": ENTITIES[1:], "offsets": [0]},
            "",
            "'offsets' has type int64",
        ),
        (
            {"tokens": WORDS, "ner_tags": NUMBERS},
            "",
            "has numbers without names",
        ),
        ({"tokens": WORDS, "ner_tags": NUMBERS}, ":names=O+ORG", "'ORG' is not a tag"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path, columns, options, message):
    path = parquet(tmp_path / "a.parquet", columns)
    refuses(path, f"parquet{options}", f"{path}", message)


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        (
            {"tokens": ["a"], "ner_tags": [9]},
            ":names=O+B-X",
            "tag 9 is not among the 2 named tags",
        ),
        ({"tokens": ["a"], "ner_tags": [-100]}, ":names=O+B-X", "tag -100 is not among the 2"),
        ({"tokens": ["a"], "ner_tags": [None]}, ":names=O+B-X", "tag None is not among the 2"),
        ({"tokens": ["a", "b"], "ner_tags": [0]}, ":names=O+B-X", "2 tokens but 1 tags"),
        ({"tokens": ["a"], "ner_tags": None}, ":names=O+B-X", "1 tokens but 0 tags"),
        (
            {"tokens": None, "ner_tags": []},
            ":names=O+B-X",
            "'tokens' must be a list, not null",
        ),
        ({"tokens": [], "ner_tags": []}, ":names=O+B-X", "'tokens' is empty"),
        ({"tokens": [None], "ner_tags": [0]}, ":names=O+B-X", "token 0 must be a string, not null"),
        ({"tokens": ["a"], "ner_tags": ["PER"]}, "", "unknown tag 'PER'; a tag is O, or one of"),
        ({"tokens": ["a"], "ner_tags": [None]}, "", "unknown tag None"),
        (
            {"tokens": ["a"], "entities": [{"start": 0, "end": 2, "label": "X"}]},
            "",
            "entity X [0, 2) lies outside",
        ),
        (
            {"tokens": ["a"], "entities": [{"start": None, "end": 1, "label": "X"}]},
            "",
            "must be an integer, not null",
        ),
        ({"tokens": ["a"], "entities": [None]}, "", "expected an object, found null"),
        (
            {"tokens": ["a"], "entities": {"start": [0], "end": [1], "label": []}},
            "",
            "lists of different lengths",
        ),
        (
            {
                "tokens": ["a"],
                "entities": [],
                "text": "b",
                "text_start": 0,
                "offsets": [{"start": 0, "end": 1}],
            },
            "",
            "'offsets' do not match the words",
        ),
        (
            {"tokens": ["a"], "entities": [], "text": "b", "text_start": 0, "offsets": [None]},
            "",
            "must be pairs of numbers",
        ),
        (
            {"tokens": ["a"], "entities": [], "irregular": [{"parts": None, "label": "X"}]},
            "",
            "'parts' must be a list, not null",
        ),
        (
            {"tokens": ["a"], "entities": [], "irregular": [None]},
            "",
            "expected an object, found null",
        ),
    ],
)
def test_rows_that_are_wrong(tmp_path, row, options, message):
    """Each is refused by its number, and the next one is read."""
    types = {
        "tokens": pa.list_(pa.string()),
        "ner_tags": pa.list_(pa.int64() if options else pa.string()),
        "text": pa.string(),
        "text_start": pa.int32(),
        "entities": to_type(
            STRUCT_OF_LISTS if isinstance(row.get("entities"), dict) else COLUMNS["entities"]
        ),
        **{name: to_type(COLUMNS[name]) for name in ("offsets", "irregular")},
    }
    good = {"tokens": ["ok"], "ner_tags": [0] if options else ["O"], "entities": None}
    rows = [{key: given.get(key) for key in row} for given in (good, row, good)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows, pa.schema([(key, types[key]) for key in row])), path)
    with pytest.raises(DataError) as caught:
        read(path, f"parquet{options}")
    assert str(caught.value).startswith(f"{path}:2: ") and message in str(caught.value)
    refused: list[DataError] = []
    kept = [s.where for s in iterate_with_errors(path, f"parquet{options}", refused)]
    if "lies outside" not in message:  # which is for the check, not for the reader
        assert kept == [f"{path}:1", f"{path}:3"] and len(refused) == 1


def test_an_arrow_file_cut_between_batches(tmp_path):
    path = tmp_path / "a.arrow"
    table = pa.table({"tokens": WORDS, "ner_tags": TAGS})
    sizes = []
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.to_batches(1):
            writer.write_batch(batch)
            sizes.append(sink.tell())
    content = path.read_bytes()
    path.write_bytes(content[: sizes[0]])
    assert pa.ipc.open_stream(path.read_bytes()).read_all().num_rows == 1  # no error there
    refuses(path, None, f"{path}", "no end of the Arrow stream; the file is truncated")


def test_parquet_damaged_inside(tmp_path):
    path = parquet(tmp_path / "a.parquet", {"tokens": WORDS * 50, "ner_tags": TAGS * 50})
    content = bytearray(path.read_bytes())
    content[8:60] = bytes(52)
    path.write_bytes(content)
    refuses(path, None, f"{path}:1", "cannot be decoded (")


@pytest.mark.parametrize(
    ("files", "place", "message"),
    [
        ({"state.json": "{"}, "state.json:1", "not valid JSON"),
        ({"state.json": "[]"}, "state.json", "expected an object, found a list"),
        (
            {"state.json": '{"_data_files": ["a"]}'},
            "state.json",
            "'_data_files' does not name files",
        ),
        (
            {"state.json": '{"_data_files": [{"filename": "no.arrow"}]}'},
            "no.arrow",
            "cannot be read",
        ),
        (
            {"state.json": '{"_data_files": [{"filename": "../../secret.arrow"}]}'},
            "secret.arrow",
            "cannot be read",
        ),
        (
            {"state.json": '{"_indices_data_files": [{"filename": "i.arrow"}]}'},
            "state.json",
            "a selection by indices",
        ),
        ({"dataset_info.json": '"x"'}, "dataset_info.json", "expected an object, found a string"),
        ({"data-00000-of-00001.arrow": b""}, "data-00000-of-00001.arrow", "truncated"),
        ({"data-00000-of-00001.arrow": b"text"}, "data-00000-of-00001.arrow", "truncated"),
        (
            {"data-00000-of-00001.arrow": b"ARROW1\0\0"},
            "data-00000-of-00001.arrow",
            "cannot be decoded",
        ),
    ],
)
def test_folders_that_are_no_dataset(tmp_path, files, place, message):
    dataset().save_to_disk(tmp_path / "a" / "b")
    shutil.copy(tmp_path / "a" / "b" / "data-00000-of-00001.arrow", tmp_path / "secret.arrow")
    put(tmp_path / "a" / "b", files)
    refuses(tmp_path / "a" / "b", None, f"{tmp_path / 'a' / 'b' / place}", message)


def test_folder_without_a_dataset(tmp_path):
    put(tmp_path, {"dataset_dict.json": '{"splits": ["train"]}'})
    refuses(tmp_path, None, f"{tmp_path}", "give a folder written by save_to_disk")
