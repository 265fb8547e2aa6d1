"""`diffusionner annotate`: input, output and errors."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tracemalloc
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pandas
import pyarrow as pa
import pytest
from pyarrow import parquet

from diffusionner import DiffusionNER, Entity
from diffusionner.annotation.journal import Position
from diffusionner.annotation.run import ModelSpec, annotate
from diffusionner.annotation.sources import find_sources
from diffusionner.cli import annotate as command
from diffusionner.errors import DataError
from diffusionner.formats import source
from models import lively_model, written

TEXTS = ["Ada met Bob in Paris. It rained.", "Über 100 €: 日本 & <b>", "a", "Bob left. He ran."]
ENTITY = "STRUCT(start INTEGER, end INTEGER, label VARCHAR, score DOUBLE, text VARCHAR)[]"


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return lively_model(encoder_folder)


@pytest.fixture(scope="module")
def model(ner: DiffusionNER, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "model"
    ner.save_pretrained(folder)
    return folder


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def annotated(cli, model: Path, work: Path):
    """A function that runs the command and returns the records of OUT."""

    def run(*paths: str, options: tuple[str, ...] = (), stdin: bytes = b"") -> list[dict]:
        result = cli("annotate", *paths, *options, "--model", model, stdin=stdin)
        assert result.status == 0, result.err
        assert not list(work.glob("*.partial")) and not list(work.glob("*.journal"))
        return result.records if paths[-1] == "-" else read(Path(paths[-1]))

    return run


def read(path: Path) -> list[dict]:
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def lines(records: list[dict]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def found(ner: DiffusionNER, contents: list[str | list[str]]) -> list[list[dict]]:
    results = ner.stream((content, None) for content in contents)
    return [[written(entity) for entity in entities] for entities in results]


def stub(records, context):
    """A fast engine: one entity, the whole text."""
    for record in records:
        yield record, [Entity(0, len(record.content), "X", 0.5, str(record.content))]


# --- Input ------------------------------------------------------------------------------------


def test_one_text_per_line(ner, annotated, make):
    make("in.txt", "\ufeff" + "\r\n".join([*TEXTS[:2], "", *TEXTS[2:]]) + "\n")
    records = annotated("in.txt", "out.jsonl")
    assert [r["text"] for r in records] == TEXTS
    assert [r["line"] for r in records] == [1, 2, 4, 5]
    assert {r["file"] for r in records} == {"in.txt"}
    assert [r["entities"] for r in records] == found(ner, TEXTS)


def test_one_text_per_file(ner, annotated, make, work):
    (work / "in").mkdir()
    whole = {f"in/{n}.txt": f"{text}\nBob\n" for n, text in enumerate(TEXTS)}
    for name, text in whole.items():
        make(name, text)
    records = annotated("in", "out.jsonl", options=("--whole-files",))
    assert {r["file"]: r["text"] for r in records} == whole
    assert [r["entities"] for r in records] == found(ner, list(whole.values()))


def test_json_lines_keep_their_fields(ner, annotated, make):
    given = [
        {"id": 1, "text": TEXTS[0], "meta": {"a": [None, 1.5]}, "entities": ["old"]},
        {"tokens": ["Ada", "met", "Bob"], "doc": "d"},
        {"text": ""},
        {"tokens": []},
        {"text": TEXTS[0], "tokens": 9},
    ]
    make("in.jsonl", lines(given))
    records = annotated("in.jsonl", "out.jsonl")
    expected = found(ner, [r.get("text", r.get("tokens")) for r in given])
    assert records == [{**r, "entities": e} for r, e in zip(given, expected, strict=True)]
    assert expected[1] and expected[2] == expected[3] == []


@pytest.mark.parametrize("name", ["in.jsonl", "in.parquet"])
def test_converted_corpora_with_words_and_text(ner, model, cli, annotated, make, name):
    """The words are annotated and the other fields kept."""
    text = {"text": TEXTS[0], "entities": [{"start": 0, "end": 3, "label": "PER"}]}
    make("texts.jsonl", lines([text]))
    assert cli("data", "convert", "texts.jsonl", name).status == 0
    given = read(Path(name))
    assert all({"tokens", "text", "offsets"} <= r.keys() for r in given)
    expected = found(ner, [r["tokens"] for r in given])
    records = annotated(name, "out.jsonl")
    assert records == [{**r, "entities": e} for r, e in zip(given, expected, strict=True)]
    if name.endswith(".jsonl"):
        assert cli("predict", "--model", model, "--input", name).records == records


def test_parquet_keeps_its_columns(annotated, work):
    table = pa.table(
        {
            "when": pa.array([datetime(2020, 1, 2, 3, 4, 5, 6), None], pa.timestamp("us", "UTC")),
            "price": pa.array([Decimal("1.10"), Decimal("2.20")], pa.decimal128(9, 2)),
            "text": pa.array([TEXTS[0], None], pa.large_string()),
            "tokens": pa.array([9, 0], pa.uint8()),
            "raw": pa.array([b"\xff", b""]),
        }
    )
    parquet.write_table(table, "in.parquet")
    annotated("in.parquet", "out.parquet")
    result = parquet.read_table("out.parquet")
    assert result.drop_columns("entities").equals(table)
    entities = result["entities"].to_pylist()
    assert entities[0] and entities[1] == []
    parquet.write_table(table.drop_columns("raw"), "in.parquet")
    first = annotated("in.parquet", "out.jsonl")[0]
    assert (first["when"], first["price"]) == ("2020-01-02T03:04:05.000006+00:00", "1.10")


def test_words_of_a_parquet_column(ner, annotated, work):
    words = [["Ada", "met", "Bob"], ["Paris"]]
    parquet.write_table(pa.table({"tokens": words}), "in.parquet")
    records = annotated("in.parquet", "out.parquet")
    assert [r["entities"] for r in records] == found(ner, words)


def test_folders_patterns_and_compressed_files(annotated, make, work):
    (work / "in/deep").mkdir(parents=True)
    make("in/b.jsonl.gz", gzip.compress(lines([{"text": "two"}])))
    make("in/a.txt", "one\n")
    make("in/deep/c.ndjson", lines([{"text": "three"}]))
    make("in/.hidden.txt", "no\n")
    make("in/readme.md", "no\n")
    parquet.write_table(pa.table({"text": ["four"]}), "in/deep/d.parquet")
    numbers = ["one", "two", "three", "four"]
    assert [r["text"] for r in annotated("in", "in/out.jsonl")] == numbers
    (work / "in/out.jsonl").unlink()
    assert [r["text"] for r in annotated("in/**/*.[jn]*", "out.jsonl")] == ["two", "three"]
    (work / "out.jsonl").unlink()
    given = ("in/deep/c.ndjson", "in/a.txt")
    assert [r["text"] for r in annotated(*given, "out.jsonl")] == ["three", "one"]


def test_an_output_within_the_input_folder_is_excluded(make, work):
    """As when a run is resumed."""
    (work / "in/out.parquet.partial").mkdir(parents=True)
    make("in/a.txt", "one\n")
    make("in/out.parquet.partial/part-00000.parquet", b"PAR1")
    found = find_sources(["in"], exclude=[Path("in/out.parquet.partial")])
    assert found.files == [Path("in/a.txt")]


def test_standard_input_and_output(ner, annotated):
    given = [{"text": text} for text in TEXTS]
    records = annotated("-", "-", stdin=lines(given))
    assert [r["entities"] for r in records] == found(ner, TEXTS)
    assert [r["text"] for r in annotated("-", "-", stdin=b"one\n{two}\n")] == ["one", "{two}"]
    (record,) = annotated("-", "-", options=("--format", "text"), stdin=b"{two}\n")
    assert record["text"] == "{two}"


def test_formats_are_detected_from_content(annotated, make, work):
    make("lines", lines([{"text": "one"}]))
    parquet.write_table(pa.table({"text": ["two"]}), "table")
    make("text", "three\n")
    records = annotated("lines", "table", "text", "-")
    assert [r["text"] for r in records] == ["one", "two", "three"]


def test_empty_input(annotated, make):
    make("in.txt", "")
    assert annotated("in.txt", "out.jsonl") == []
    annotated("in.txt", "out.parquet")
    assert parquet.read_schema("out.parquet/part-00000.parquet").names == ["text", "entities"]


def test_memory_does_not_grow(model, work, monkeypatch):
    """The peak is the same for many times the records."""
    peaks = []
    for count in (1500, 10_000):
        Path("in.txt").write_text("".join(f"{i} {'x' * 500}\n" for i in range(count)))
        tracemalloc.start()
        annotate(
            find_sources(["in.txt"]),
            Path(f"{count}.jsonl"),
            ModelSpec.load(model, {}),
            stub,
            print,
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(read(Path(f"{count}.jsonl"))) == count
    assert peaks[1] < 1.5 * peaks[0]


# --- Output -----------------------------------------------------------------------------------


@pytest.fixture
def table(annotated, make) -> list[dict]:
    """The records of an out.parquet in two parts."""
    given = [{"id": n, "text": text, "nothing": None} for n, text in enumerate(TEXTS)]
    make("in.jsonl", lines(given))
    return annotated("in.jsonl", "out.parquet", options=("--part-rows", "3"))


def test_parquet_parts(ner, table):
    assert [p.name for p in sorted(Path("out.parquet").iterdir())] == [
        "part-00000.parquet",
        "part-00001.parquet",
    ]
    assert [r["id"] for r in table] == [0, 1, 2, 3]
    assert [r["entities"] for r in table] == found(ner, TEXTS)


def duckdb(query: str) -> list[list]:
    """Query in a separate process, because the package prints warnings at exit."""
    code = "import duckdb, json, sys; print(json.dumps(duckdb.sql(sys.argv[1]).fetchall()))"
    done = subprocess.run([sys.executable, "-c", code, query], capture_output=True, check=True)
    return json.loads(done.stdout)


def test_duckdb_reads_it(table):
    described = duckdb("describe select * from 'out.parquet/*.parquet'")
    kinds = {name: kind.replace('"', "") for name, kind, *_ in described}
    assert kinds["entities"] == ENTITY and kinds["id"] == "BIGINT"
    each = "select id, unnest(entities, recursive := true) from 'out.parquet/*.parquet'"
    rows = duckdb(f'select id, "start", "end", label from ({each})')
    assert sorted(rows) == sorted(
        [r["id"], e["start"], e["end"], e["label"]] for r in table for e in r["entities"]
    )


def test_pandas_reads_it(table):
    frame = pandas.read_parquet("out.parquet")
    assert [list(e) for e in frame["entities"]] == [r["entities"] for r in table]
    exploded = frame.explode("entities").dropna(subset="entities")
    assert len(exploded) == sum(len(r["entities"]) for r in table)


def test_values_that_do_not_fit_the_schema(refused, model, work, make):
    make("in.jsonl", lines([{"text": "a", "id": 1}, {"text": "b", "id": "two"}]))
    err = refused("annotate", "in.jsonl", "out.parquet", "--model", model, "--part-rows", 1)
    assert "in.jsonl:2: id='two' is not of type int64" in err and "write JSON lines" in err
    make("more.jsonl", lines([{"text": "a"}, {"text": "b", "new": 1}]))
    err = refused("annotate", "more.jsonl", "other.parquet", "--model", model, "--part-rows", 1)
    assert "more.jsonl:2: the first records lack field ['new']" in err
    make("mixed.jsonl", lines([{"text": "a", "id": 1}, {"text": "b", "id": "two"}]))
    err = refused("annotate", "mixed.jsonl", "mixed.parquet", "--model", model)
    assert "field 'id' has values of different types" in err


def test_bytes_cannot_be_json(refused, model, work):
    parquet.write_table(pa.table({"text": ["a"], "raw": [b"\xff"]}), "in.parquet")
    err = refused("annotate", "in.parquet", "out.jsonl", "--model", model)
    assert "in.parquet:row 1: a value of type bytes, which JSON cannot represent" in err


# --- Errors -----------------------------------------------------------------------------------


def test_bad_records_are_reported_and_skipped(cli, model, make, work):
    bad = [b"{", b"[]", b'{"text": 1}', b'{"tokens": ["a", ""]}', b'{"text": "\xff"}', b"{}"]
    bad += [b'{"text": "\\ud800"}', b'{"a":' * 10_000, b'{"tokens": "a"}']
    make("in.jsonl", b'{"text": "one"}\n' + b"\n".join(bad) + b'\n{"text": "two"}\n')
    result = cli("annotate", "in.jsonl", "out.jsonl", "--model", model)
    assert result.status == 1 and "Traceback" not in result.err
    for number in range(2, 2 + len(bad)):
        assert f"in.jsonl:{number}: " in result.err
    assert 'in.jsonl:7: expected either "text" or "tokens", but found neither' in result.err
    assert f"bad records skipped: {len(bad)}" in result.err
    assert [r["text"] for r in read(work / "out.jsonl")] == ["one", "two"]


def test_many_bad_records_are_reported_briefly(cli, model, make, work):
    make("in.txt", b"\xff\n" * 500)
    result = cli("annotate", "in.txt", "out.jsonl", "--model", model)
    assert result.status == 1 and "bad records skipped: 500" in result.err
    assert len(result.err.splitlines()) < 30


def test_bad_rows(cli, model, work):
    parquet.write_table(pa.table({"tokens": [["a"], ["", "b"], None]}), "in.parquet")
    result = cli("annotate", "in.parquet", "out.jsonl", "--model", model)
    assert result.status == 1 and "in.parquet:row 2: " in result.err
    assert [r["tokens"] for r in read(work / "out.jsonl")] == [["a"], None]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.txt", "out.jsonl"), "none.txt: no such file or folder"),
        (("*.none", "out.jsonl"), "matches none"),
        (("empty", "out.jsonl"), "empty: the folder contains no file ending in .txt, .jsonl"),
        (("in.txt", "out"), "the suffix selects the format: .jsonl"),
        (("in.txt", "in.txt.jsonl/out.jsonl"), "choose another folder"),
        (("in.txt", "there.jsonl"), "there.jsonl already exists"),
        (("-", "in.txt", "out.jsonl"), "standard input (-) cannot be combined"),
        (("in.txt", "out.jsonl", "--format", "csv"), "unknown format 'csv'"),
        (("in.txt", "out.jsonl", "--engine", "rai"), "did you mean 'ray'?"),
        (("in.txt", "out.jsonl", "--workers", "2"), "--workers requires --engine ray"),
        (("in.txt", "out.jsonl", "--steps", "0"), "steps"),
        (("cut.txt.gz", "out.jsonl"), "cut.txt.gz: damaged gzip file"),
        (("cut.parquet", "out.jsonl"), "cut.parquet: cannot be decoded"),
        (("other.parquet", "out.jsonl"), "no column 'text' or 'tokens'"),
        (("wrong.txt.gz", "out.jsonl"), "wrong.txt.gz: damaged gzip file"),
        (("pipe", "out.jsonl"), "pipe: neither a file nor a folder"),
    ],
)
def test_errors(refused, model, make, work, arguments, message):
    (work / "empty").mkdir()
    make("in.txt", "a\n")
    make("in.txt.jsonl", "")
    make("there.jsonl", "")
    make("cut.txt.gz", gzip.compress(b"a\n" * 10_000)[:30])
    make("wrong.txt.gz", gzip.compress(b"a\n")[:2] + b"?" * 30)
    os.mkfifo("pipe")
    make("cut.parquet", b"PAR1 and no more")
    parquet.write_table(pa.table({"body": ["a"]}), "other.parquet")
    assert message in refused("annotate", *arguments, "--model", model)
    assert (work / "there.jsonl").read_bytes() == b""


@pytest.mark.parametrize("options", [(), ("--format", "jsonl"), ("--whole-files",)])
def test_gzipped_standard_input(cli, model, work, options):
    packed = gzip.compress(lines([{"text": text} for text in TEXTS]))
    result = cli("annotate", "-", "-", *options, "--model", model, stdin=packed)
    assert result.status == 2 and not result.out
    assert "standard input is compressed with gzip; gunzip it first" in result.err


def test_a_line_that_is_too_long(model, make, work, monkeypatch):
    monkeypatch.setattr(source, "MAX_RECORD", 100)
    make("in.txt", "a" * 1000)
    with pytest.raises(DataError, match=r"in\.txt:1: longer than"):
        list(find_sources(["in.txt"]).records(print))


# --- Progress ---------------------------------------------------------------------------------


def test_rate_and_time_left(monkeypatch):
    clock = iter([100.0, 110.0])
    monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
    meter = command.RateMeter(total=10_000)
    meter.line(Position(1000, 50), 1000)  # of which an earlier run may have written any number
    line = meter.line(Position(3000, 90), 2000)
    assert line == "3,000 records, 90 entities, 200 records/s, 0:01:20 left"


def test_progress_without_a_terminal(cli, model, make, work, monkeypatch):
    monkeypatch.setattr(command, "LOG_SECONDS", 0)
    make("in.txt", "a\nb\n")
    err = cli("annotate", "in.txt", "out.jsonl", "--model", model).err
    assert "2 records, " in err.splitlines()[0] and "-> out.jsonl in 0:00:0" in err


def test_torch_is_not_imported():
    code = "import sys, diffusionner.annotation.run; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_broken_pipe(model, make, work, monkeypatch):
    class Gone(io.BytesIO):
        def write(self, content: object) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(Gone()))
    make("in.txt", "a\n")
    with pytest.raises(BrokenPipeError):
        annotate(find_sources(["in.txt"]), None, ModelSpec.load(model, {}), stub, print)
