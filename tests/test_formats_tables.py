"""Parquet files and Hugging Face datasets, as pandas, pyarrow and `datasets` write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corpus_files import put, refuses

from diffusionner import formats
from diffusionner.corpus import Discontinuous, Irregular, Sentence, Span
from diffusionner.formats import arrow_tables, read

datasets = pytest.importorskip("datasets")
pandas = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

WORDS = [["Bank", "of", "China"], ["Rome"]]
TAGS = [["B-ORG", "I-ORG", "I-ORG"], ["B-LOC"]]
NAMES = ["O", "B-ORG", "I-ORG", "B-LOC"]
NUMBERS = [[NAMES.index(tag) for tag in tags] for tags in TAGS]
ENTITIES = [
    [{"start": 0, "end": 3, "label": "ORG"}, {"start": 2, "end": 3, "label": "LOC"}],
    [{"start": 0, "end": 1, "label": "LOC"}],
]
FLAT = [(WORDS[0], [Span(0, 3, "ORG")]), (WORDS[1], [Span(0, 1, "LOC")])]
NESTED = [(WORDS[0], [Span(0, 3, "ORG"), Span(2, 3, "LOC")]), FLAT[1]]


def found(path: Path, format: str | None = None) -> list[tuple[list[str], list[Span]]]:
    return [(sentence.words, sentence.entities) for sentence in read(path, format)]


def parquet(path: Path, columns: Mapping[str, Sequence[Any]], schema: Any = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(columns), schema=schema), path)
    return path


def dataset(numbers: Sequence[Sequence[int]] = NUMBERS) -> Any:
    label = datasets.ClassLabel(names=NAMES)
    features = datasets.Features(
        {
            "id": datasets.Value("int32"),
            "tokens": datasets.Sequence(datasets.Value("string")),
            "ner_tags": datasets.Sequence(label),
        }
    )
    columns = {"id": list(range(len(numbers))), "tokens": WORDS, "ner_tags": numbers}
    return datasets.Dataset.from_dict(columns, features=features)


# --- What others write --------------------------------------------------------------------------


def test_datasets_with_class_labels(tmp_path):
    dataset().save_to_disk(tmp_path / "saved")
    dataset().to_parquet(tmp_path / "a.parquet")
    assert formats.detect(tmp_path / "saved").name == "huggingface"
    assert found(tmp_path / "saved") == found(tmp_path / "a.parquet") == FLAT
    assert read(tmp_path / "a.parquet")[1].where == f"{tmp_path / 'a.parquet'}:2"


def test_names_from_beside_the_data(tmp_path):
    """An Arrow file that has lost its notes; dataset_info.json has them still, in any notation."""
    folder = tmp_path / "saved"
    dataset().save_to_disk(folder)
    (data,) = folder.glob("*.arrow")
    with pa.ipc.open_stream(data.read_bytes()) as reader:
        table = reader.read_all().replace_schema_metadata(None)
    with pa.ipc.new_stream(str(data), table.schema) as writer:
        writer.write_table(table)
    assert found(folder) == FLAT
    label = {"names": NAMES, "_type": "ClassLabel"}
    for feature in ([label], {"feature": label, "length": -1, "_type": "Sequence"}):
        put(folder, {"dataset_info.json": json.dumps({"features": {"ner_tags": feature}})})
        assert found(folder) == FLAT
    put(folder, {"dataset_info.json": '{"features": {"ner_tags": [{"dtype": "int64"}]}}'})
    refuses(folder, None, f"{data}", "column 'ner_tags' has numbers")
    assert found(folder, f"huggingface:names={'+'.join(NAMES)}") == FLAT


def test_splits(tmp_path):
    folder = tmp_path / "saved"
    both = datasets.DatasetDict(train=dataset(), test=dataset([[0, 0, 0], [0]]))
    both.save_to_disk(folder)
    message = "several splits (test, train); choose one with the option split"
    refuses(folder, None, f"{folder}", message)
    refuses(folder, "huggingface:split=dev", f"{folder}", "no split 'dev'; available: test, train")
    assert found(folder, "huggingface:split=train") == found(folder / "train") == FLAT
    assert [s.entities for s in read(folder, "huggingface:split=test")] == [[], []]
    refuses(
        folder / "train", "huggingface:split=train", f"{folder / 'train'}", "leave out the option"
    )
    datasets.DatasetDict(train=dataset()).save_to_disk(tmp_path / "one")
    assert found(tmp_path / "one") == FLAT


@pytest.mark.parametrize(
    "names",
    [
        ("train-00000-of-00002.parquet", "train-00001-of-00002-0a1b.parquet"),
        ("default/train/0000.parquet", "default/train/0001.parquet"),
        ("part-00000-1f-c000.zstd.parquet", "part-00001-2f-c000.zstd.parquet"),
        ("train_0.parquet", "train_1.parquet"),
    ],
)
def test_parquet_files_of_a_split(tmp_path, names):
    for name, words, tags in zip(names, WORDS, TAGS, strict=True):
        parquet(tmp_path / "c" / name, {"tokens": [words], "ner_tags": [tags]})
    assert formats.detect(tmp_path / "c").name == "parquet"
    assert found(tmp_path / "c") == FLAT
    split = {"d": "train", "p": "part", "t": "train"}[names[0][0]]
    parquet(tmp_path / "c" / "test.parquet", {"tokens": [["x"]], "ner_tags": [["O"]]})
    refuses(tmp_path / "c", None, f"{tmp_path / 'c'}", "several splits (")
    assert found(tmp_path / "c", f"parquet:split={split}") == FLAT
    assert found(tmp_path / "c", "parquet:split=test") == [(["x"], [])]


def test_pandas(tmp_path):
    path = tmp_path / "a.parquet"
    pandas.DataFrame({"tokens": WORDS, "entities": ENTITIES}, index=[7, 3]).to_parquet(path)
    assert found(path) == NESTED
    frame = pandas.DataFrame({"words": WORDS, "labels": TAGS, "doc": [1, 2]})
    frame.to_parquet(path)
    assert found(path, "parquet:tokens=words,tags=labels") == FLAT
    assert [s.doc for s in read(path, "parquet:tokens=words,tags=labels")] == ["1", "2"]


LABEL = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize(
    ("words", "second", "tagged"),
    [
        (pa.list_(pa.large_string()), pa.list_(pa.large_string()), True),
        (pa.large_list(pa.string()), pa.large_list(LABEL), True),
        (pa.list_view(pa.string_view()), pa.list_(pa.string_view()), True),
        (
            pa.list_(LABEL),
            pa.list_(pa.struct([("label", LABEL), ("start", pa.int64()), ("end", pa.uint8())])),
            False,
        ),
        (
            pa.list_(pa.string()),
            pa.struct(
                [
                    (k, pa.list_(t))
                    for k, t in (("start", pa.int64()), ("end", pa.int64()), ("label", pa.string()))
                ]
            ),
            False,
        ),
    ],
)
@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_arrow_types(tmp_path, words, second, tagged, kind):
    values: Sequence[Any] = TAGS if tagged else ENTITIES
    if pa.types.is_struct(second):
        keys = ("start", "end", "label")
        values = [{key: [e[key] for e in row] for key in keys} for row in ENTITIES]
    columns = {
        "tokens": pa.array(WORDS, words),
        "ner_tags" if tagged else "entities": pa.array(values, second),
    }
    table = pa.table(columns)
    path = tmp_path / ("a.parquet" if kind == "parquet" else "a.arrow")
    if kind == "parquet":
        if any("view" in str(column.type) for column in columns.values()):
            pytest.skip("Parquet has no views")
        pq.write_table(table, path)
    else:
        new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        with new(str(path), table.schema) as writer:
            writer.write_table(table)
    assert found(path) == (FLAT if tagged else NESTED)


def test_texts_by_characters(tmp_path):
    entities = [[{"start": 3, "end": 7, "label": "LOC"}, {"start": 4, "end": 6, "label": "X"}]]
    path = parquet(tmp_path / "a.parquet", {"text": ["At Rome. Yes."], "entities": entities})
    first, second = read(path)
    assert (first.words, first.entities) == (["At", "Rome", "."], [Span(1, 2, "LOC")])
    assert first.irregular == [Irregular(((4, 6),), "X")]
    assert second.text == "At Rome. Yes."


def test_tags_beat_what_does_not_look_like_ours(tmp_path):
    """Others have columns of our names with other things in them."""
    columns = {
        "tokens": WORDS,
        "tags": TAGS,
        "entities": ["a", "b"],
        "text": [1, 2],
        "offsets": [0, 0],
    }
    assert found(parquet(tmp_path / "a.parquet", columns)) == FLAT


# --- What we write ------------------------------------------------------------------------------


def test_what_others_read(tmp_path):
    text = "Bank of China.  Rome"
    sentences = [
        Sentence(
            ["Bank", "of", "China", "."],
            [Span(0, 3, "ORG"), Span(2, 3, "LOC")],
            "d",
            text=text,
            offsets=[(0, 4), (5, 7), (8, 13), (13, 14)],
            discontinuous=[Discontinuous(((0, 1), (2, 3)), "X")],
            irregular=[Irregular(((0, 4), (8, 9)), "CUT")],
        ),
        Sentence(["Rome"], [Span(0, 1, "LOC")], "d", text=text, offsets=[(16, 20)]),
        Sentence(["none"]),
    ]
    formats.write(tmp_path / "saved", sentences, "huggingface")
    formats.write(tmp_path / "a.parquet", sentences)
    loaded = datasets.load_from_disk(tmp_path / "saved")
    assert loaded[0] == {
        "doc": "d",
        "tokens": ["Bank", "of", "China", "."],
        "text": "Bank of China.  ",
        "text_start": 0,
        "entities": [
            {"start": 0, "end": 3, "label": "ORG"},
            {"start": 2, "end": 3, "label": "LOC"},
        ],
        "offsets": [{"start": s, "end": e} for s, e in sentences[0].offsets],
        "discontinuous": [
            {"fragments": [{"start": 0, "end": 1}, {"start": 2, "end": 3}], "label": "X"}
        ],
        "irregular": [{"parts": [{"start": 0, "end": 4}, {"start": 8, "end": 9}], "label": "CUT"}],
    }
    assert loaded.map(lambda row: {"n": len(row["tokens"])})["n"][:] == [4, 1, 1]
    frame = pandas.read_parquet(tmp_path / "a.parquet")
    assert frame["text_start"].tolist() == [0, 16, 0]
    assert frame["entities"][0][1]["label"] == "LOC"
    # What they write again has lost nothing.
    frame.to_parquet(tmp_path / "b.parquet")
    loaded.save_to_disk(tmp_path / "again")
    for name in ("saved", "a.parquet", "b.parquet", "again"):
        back = read(tmp_path / name)
        assert [replace(s, where="") for s in back] == sentences


@pytest.mark.parametrize(
    ("rows", "characters", "groups"), [(2, 100, 3), (100, 4, 3), (100, 100, 1)]
)
def test_tables_are_written_in_batches(tmp_path, monkeypatch, rows, characters, groups):
    monkeypatch.setattr(arrow_tables, "_ROWS", rows)
    monkeypatch.setattr(arrow_tables, "_CHARACTERS", characters)
    monkeypatch.setattr(arrow_tables, "_SLICE", 2)
    sentences = [
        Sentence([c], text=text, offsets=[(0, 1)])
        for c, text in zip("abcde", ["ab", "bc", "cd", "de", "ef"], strict=True)
    ]
    formats.write(tmp_path / "a.parquet", iter(sentences))
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == groups
    found = read(tmp_path / "a.parquet")
    assert [s.words for s in found] == [["a"], ["b"], ["c"], ["d"], ["e"]]
    assert found[4].where.endswith(":5")


def test_datasets_caches_by_content(tmp_path):
    prints = []
    for number, word in enumerate("aba"):
        formats.write(tmp_path / f"{number}", [Sentence([word])], "huggingface")
        prints.append(datasets.load_from_disk(tmp_path / f"{number}")._fingerprint)
    assert prints[0] == prints[2] != prints[1]
