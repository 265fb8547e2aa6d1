"""Files opened and JSON values streamed out of them."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diffusionner import formats
from diffusionner.corpus import Sentence
from diffusionner.errors import DataError
from diffusionner.formats import json_files
from diffusionner.formats.source import Sample, Source

# --- Source ---------------------------------------------------------------------------------


def test_lines_have_their_numbers(make):
    path = make("a", "\ufeffone\r\n\n\ufeffthree\u2028\nlast")
    assert list(Source(path).lines()) == [
        (f"{path}:1", "one"),
        (f"{path}:2", ""),
        (f"{path}:3", "\ufeffthree\u2028"),
        (f"{path}:4", "last"),
    ]


def test_a_line_in_another_encoding_is_refused_alone(make):
    path = make("a", b"one\nK\xf6ln\nthree\n")
    with pytest.raises(DataError, match=rf"{path}:2: not UTF-8 \(byte 0xf6\)"):
        list(Source(path).lines())
    refused: list[DataError] = []
    assert [line for _, line in Source(path, refused).lines()] == ["one", "three"]
    assert [str(error).partition(": ")[0] for error in refused] == [f"{path}:2"]


def test_convert_each_continues_after_errors(tmp_path):
    def convert(record: int, where: str) -> list[Sentence]:
        if record % 2:
            raise DataError(f"{where}: odd")
        return [Sentence([str(record)])] * record

    pairs = [(f"f:{number}", number) for number in range(4)]
    with pytest.raises(DataError, match="f:1: odd"):
        list(Source(tmp_path).convert_each(pairs, convert))
    refused: list[DataError] = []
    found = list(Source(tmp_path, refused).convert_each(pairs, convert))
    assert [s.words for s in found] == [["2"], ["2"]]
    assert list(map(str, refused)) == ["f:1: odd", "f:3: odd"]


def test_a_whole_text(make):
    assert Source(make("a", b"\xef\xbb\xbfK\xc3\xb6ln\r\n")).text() == "Köln\r\n"
    path = make("b", b"one\n\xff")
    assert Source(make("c", b"\xef\xbb\xbfK")).text(keep_bom=True) == "\ufeffK"
    with pytest.raises(DataError, match=r"b:2: not UTF-8 \(byte 0xff\)"):
        Source(path).text()
    with pytest.raises(DataError, match=r"gone: cannot be read \(No such file"):
        Source(path.with_name("gone")).text()


def test_files_of_a_folder_are_sorted(tmp_path):
    for name in ("b.txt", "a.txt", "sub/c.txt", "d.ann"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = Source(tmp_path).files("*.txt", "c.*")
    assert [path.relative_to(tmp_path).as_posix() for path in found] == [
        "a.txt",
        "b.txt",
        "sub/c.txt",
    ]
    assert Source(tmp_path / "d.ann").files("*.txt") == [tmp_path / "d.ann"]


# --- JSON values ----------------------------------------------------------------------------

VALUES = [{"a": 1}, {"b": [1, {"c": "é\U0001f600"}]}, {}, {"d": 'x\\"y'}, {"e": -1.5e3}]


def places(path: Path, chunk: int, monkeypatch) -> list[tuple[int, object]]:
    monkeypatch.setattr(json_files, "_CHUNK", chunk)
    return [
        (int(where.removeprefix(f"{path}:")), value)
        for where, value in json_files.read_values(Source(path))
    ]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 17, 2**20])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_arrays_by_any_chunks(make, monkeypatch, chunk, mark, end):
    text = end.join(["", "[", *(json.dumps(v, ensure_ascii=False) + "," for v in VALUES)])
    path = make("a.json", mark + (text.rstrip(",") + end * 2 + "]" + end).encode())
    assert places(path, chunk, monkeypatch) == [(n + 3, v) for n, v in enumerate(VALUES)]
    path = make("b.json", mark + end.join(["", json.dumps(VALUES, indent=1)]).encode())
    assert [value for _, value in places(path, chunk, monkeypatch)] == VALUES
    assert places(path, chunk, monkeypatch)[0][0] == 3


@pytest.mark.parametrize("chunk", [1, 4, 2**20])
def test_objects_over_several_lines(make, monkeypatch, chunk):
    path = make("a.json", "\n".join(json.dumps(v, indent=2) for v in VALUES))
    found = places(path, chunk, monkeypatch)
    assert [value for _, value in found] == VALUES
    assert [number for number, _ in found][:2] == [1, 4]


def test_json_lines_after_blank_ones(make, monkeypatch):
    path = make("a.jsonl", "\n \n" + "\n\n".join(json.dumps(v) for v in VALUES))
    assert places(path, 1, monkeypatch) == [(3 + 2 * n, v) for n, v in enumerate(VALUES)]
    assert Sample(path).records == VALUES


@given(value=st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists, max_leaves=9))
@settings(
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_value_in_an_array(make, monkeypatch, value):
    values = [{"v": value}, 12, value]
    path = make("a.json", json.dumps(values))
    assert [v for _, v in places(path, 3, monkeypatch)] == values


@pytest.mark.parametrize("chunk", [1, 2**20])
@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ('[\n{"a": 1},\n', 3, "the file ends inside its JSON array, after 1 record"),
        ('[\n{"a": 1},\n{"b": ', 3, "may be truncated within the record that begins at"),
        ('[\n{"a": 1},\n{"b":\n "xy', 4, "may be truncated within the record that begins at"),
        ('[\n{"a": 1}\n{"b": 2}]', 3, "expected ',' or ']' after record 1"),
        ('[\n{"a": 1}\n]\n\nmore', 5, "more text after the end of the array"),
        ('[\n{"a": 1},\n{"b": nope, "c": 333333333}\n]', 3, "not valid JSON"),
        ('[\n{"a": 1},\n{"b": "\t"}, {"c": 333333333333}\n]', 3, "Invalid control character"),
        ('[\n{"a": 1},\n{"b": "\\ud800"}\n]', 3, "unpaired surrogate"),
        ('{"a": 1}\n{"b": 1\n{"c": 1}\n', 2, "not valid JSON"),
        ('{"a": 1\n{"b": 1}\n{"c": 1}\n', 1, "not valid JSON"),
        ('{"a": 1}\n' + "[" * 20000 + "\n", 2, "cannot be decoded"),
        ('[\n{"a": 1},\n' + "[" * 20000, 3, "cannot be decoded"),
        ("[" + "9" * 5000 + "]", 1, "cannot be decoded"),
    ],
)
def test_broken_json_says_where(make, monkeypatch, chunk, content, line, message):
    path = make("a.json", content)
    with pytest.raises(DataError) as caught:
        places(path, chunk, monkeypatch)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("chunk", [4, 2**20])
def test_wrong_encoding_in_an_array_says_where(make, monkeypatch, chunk):
    path = make("a.json", '[\n{"a": "ö"},\n{"b": "é"}]'.encode().replace(b"\xa9", b""))
    with pytest.raises(DataError, match=r"a\.json:3: not UTF-8 \(byte 0xc3\)"):
        places(path, chunk, monkeypatch)


def test_checking_goes_on_where_it_can(make):
    refused: list[DataError] = []
    path = make("a.jsonl", '{"tokens": ["a"]}\n{\n{"tokens": ["b"]}\n3\n{"tokens": ["\\ud800"]}\n')
    found = list(formats.iterate_with_errors(path, None, refused))
    assert [s.words for s in found] == [["a"], ["b"]]
    assert [str(e).split(": ")[0] for e in refused] == [f"{path}:{n}" for n in (2, 4, 5)]
    refused.clear()
    path = make("b.json", '[{"tokens": ["a"]},\n{"tokens": 1},\n{"tokens": ["b"]},\n{"to')
    found = list(formats.iterate_with_errors(path, "jsonl", refused))
    assert [s.words for s in found] == [["a"], ["b"]]
    assert [str(e).split(": ")[0] for e in refused] == [f"{path}:{n}" for n in (2, 4)]


def test_arrays_stream(make):
    """Ten megabytes in little memory and in a time that grows with the file, not its square."""
    record = json.dumps({"tokens": ["Rome", "fell"], "entities": []})
    path = make("a.json", "[\n" + ",\n".join([record] * 100_000) + "\n]\n")
    began = time.perf_counter()
    assert sum(1 for _ in json_files.read_values(Source(path))) == 100_000
    assert time.perf_counter() - began < 6
    small = make("b.json", "[\n" + ",\n".join([record] * 30_000) + "\n]\n")
    tracemalloc.start()
    try:
        assert sum(1 for _ in json_files.read_values(Source(small))) == 30_000
        assert tracemalloc.get_traced_memory()[1] < 12 * 2**20
    finally:
        tracemalloc.stop()


def test_messages_do_not_repeat_what_is_long(make):
    for record in (
        {"tokens": ["a"], "entities": [{"start": "x" * 10**6, "end": 1, "label": "X"}]},
        {"tokens": ["a"], "entities": [{"start": 0, "end": 1, "label": ["x" * 10**6]}]},
        {f"key {n}": 1 for n in range(10**5)},
    ):
        with pytest.raises(DataError) as caught:
            formats.read(make("a.jsonl", json.dumps(record)), "jsonl")
        assert len(str(caught.value)) < 1000
