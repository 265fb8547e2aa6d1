"""Reading and writing corpus files."""

from __future__ import annotations

import json

import pytest

from diffusionner import formats
from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError, WriteError
from diffusionner.formats import iterate, jsonl, read

# The registry: choosing a format, opening files.

ROWS = "Rome B-LOC\nfell O\n"
OBJECT = '{"tokens": ["Rome", "fell"], "entities": [{"start": 0, "end": 1, "label": "LOC"}]}\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", OBJECT),
        ("a.JSON", OBJECT),
        ("eng.train", "\n \n" + OBJECT),
        ("a.bio", ROWS),
        ("a.IOB2", "# a first line that says nothing\n" + ROWS),
        ("a.txt", ROWS),
        ("eng.testa", ROWS),
        ("eng.train", "\n" + ROWS),
        ("eng.train", "-DOCSTART- -X- O O\n\n" + ROWS),
        ("noextension", ROWS),
    ],
)
def test_detects_the_format(make, name, content):
    (sentence,) = read(make(name, content))
    assert sentence.words == ["Rome", "fell"]
    assert sentence.entities == [Span(0, 1, "LOC")]


def test_a_named_format_beats_the_extension(make):
    assert read(make("a.txt", OBJECT), "jsonl")[0].words == ["Rome", "fell"]
    assert read(make("a.jsonl", ROWS), format="conll")[0].words == ["Rome", "fell"]


def test_unknown_format_names_the_nearest(make):
    with pytest.raises(DataError, match="unknown format 'jsonlines'; did you mean 'jsonl'"):
        read(make("a.jsonl", OBJECT), "jsonlines")


def test_undetectable_format_lists_the_choices(make):
    path = make("corpus.xml", "<set>\n")
    with pytest.raises(DataError, match=r"corpus\.xml: .*one of: .*jsonl, conll"):
        read(path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(DataError, match=r"gone\.jsonl: no such file"):
        iterate(tmp_path / "gone.jsonl")  # before the first sentence is asked for
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path, "jsonl")


@pytest.mark.parametrize("name", ["a.jsonl", "a.conll", "unknown"])
@pytest.mark.parametrize("content", ["", "\n  \n\n"])
def test_file_without_sentences(make, name, content):
    with pytest.raises(DataError, match="has no sentences"):
        read(make(name, content))


def test_not_utf8_names_the_line(make):
    path = make("a.conll", b"Rome B-LOC\n\nK\xf6ln B-LOC\n")
    with pytest.raises(DataError, match=r"a\.conll:3: not UTF-8 \(byte 0xf6\)"):
        read(path)


def test_byte_order_mark_and_windows_line_ends(make):
    path = make("a.conll", b"\xef\xbb\xbfRome\tB-LOC\r\nfell\tO\r\n\r\nYes\tO\r\n")
    assert [s.words for s in read(path)] == [["Rome", "fell"], ["Yes"]]
    path = make("a.jsonl", b"\xef\xbb\xbf" + OBJECT.encode())
    assert read(path)[0].words == ["Rome", "fell"]


def test_only_a_line_feed_ends_a_line(make):
    text = '{"tokens": ["a\u2028b", "c\u0085d"]}\n'
    assert read(make("a.jsonl", text))[0].words == ["a\u2028b", "c\u0085d"]


def test_iterate_streams(make):
    stream = iterate(make("a.jsonl", OBJECT + "broken\n"))
    assert next(stream).words == ["Rome", "fell"]
    with pytest.raises(DataError, match=r"a\.jsonl:2"):
        next(stream)


# JSON lines.


def test_jsonl_reads_everything(make):
    record = {
        "doc": "d1",
        "tokens": ["the", "Bank", "of", "中国"],
        "entities": [
            {"start": 1, "end": 4, "label": "ORG"},
            {"start": 3, "end": 4, "label": "LOC"},
            {"start": 1, "end": 4, "label": "ORG"},
            {"start": 3, "end": 4, "label": "GPE", "id": "T4"},
        ],
        "source": "ignored",
    }
    path = make("a.jsonl", f"\n{json.dumps(record)}\n\n" + '{"doc": 7, "tokens": ["b"]}')
    first, second = read(path)
    assert first == Sentence(
        ["the", "Bank", "of", "中国"],
        [Span(1, 4, "ORG"), Span(3, 4, "LOC"), Span(3, 4, "GPE")],
        "d1",
        f"{path}:2",
    )
    assert second == Sentence(["b"], [], "7", f"{path}:4")


@pytest.mark.parametrize(("doc", "expected"), [("null", None), ('""', None), ("0", "0")])
def test_jsonl_documents(make, doc, expected):
    path = make("a.jsonl", f'{{"doc": {doc}, "tokens": ["a"]}}')
    assert read(path)[0].doc == expected


def entity(start: object = 0, end: object = 1, label: object = "X") -> str:
    entities = [{"start": start, "end": end, "label": label}]
    return json.dumps({"tokens": ["a", "b"], "entities": entities})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"tokens": ["a"],}', "not valid JSON"),
        ("[" * 100_000, "cannot be decoded"),
        ('["a", "b"]', "expected an object, found a list"),
        ("null", "expected an object, found null"),
        ('{"words": ["a"]}', "no 'tokens' among the keys ('words')"),
        ('{"tokens": "a b"}', "'tokens' must be a list, not a string"),
        ('{"tokens": []}', "'tokens' is empty"),
        ('{"tokens": ["a", 3]}', "token 1 must be a string, not a number"),
        ('{"tokens": ["a", ""]}', "token 1 is empty"),
        ('{"tokens": ["a\\ud83d"]}', "unpaired surrogate (\\ud83d)"),
        ('{"tokens": ["a"], "doc": true}', "'doc' must be a string or a number, not true"),
        ('{"tokens": ["a"], "doc": ["d"]}', "'doc' must be a string or a number, not a list"),
        ('{"tokens": ["a"], "entities": null}', "'entities' must be a list, not null"),
        ('{"tokens": ["a"], "entities": {}}', "'entities' must be a list, not an object"),
        ('{"tokens": ["a"], "entities": [[0, 1, "X"]]}', "expected an object, found a list"),
        ('{"tokens": ["a"], "entities": [{"start": 0, "end": 1}]}', "no 'label' among the keys"),
        (entity(start=True), "'start' must be an integer, not true"),
        (entity(end=1.0), "'end' must be an integer, not 1.0"),
        (entity(end="1"), 'must be an integer, not "1"'),
        (entity(label=""), "must be a non-empty string, not ''"),
        (entity(label="  "), "must be a non-empty string, not '  '"),
        (entity(label=3), "must be a non-empty string, not 3"),
        (entity(start=-1), "entity X [-1, 1) lies outside its sentence of 2 words"),
        (entity(end=3), "entity X [0, 3) lies outside"),
        (entity(start=1), "entity X [1, 1) lies outside"),
    ],
)
def test_jsonl_errors_name_file_and_line(make, line, message):
    path = make("bad.jsonl", OBJECT + "\n" + line + "\n" + OBJECT)
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert message in str(caught.value)


def test_whole_surrogate_pair_is_one_character(make):
    path = make("a.jsonl", '{"tokens": ["\\ud83d\\ude00"]}')
    assert read(path)[0].words == ["\U0001f600"]


def test_write_then_read_gives_the_same(tmp_path):
    sentences = [
        Sentence(["Köln", "中国", "\U0001f600"], [Span(0, 2, "LOC"), Span(1, 2, "GPE")], "d"),
        Sentence(["a\u2028b"]),
    ]
    path = tmp_path / "out.jsonl"
    formats.write(path, iter(sentences))
    again = read(path)
    assert [(s.words, s.entities, s.doc) for s in again] == [
        (s.words, s.entities, s.doc) for s in sentences
    ]
    assert "Köln" in path.read_text(encoding="utf-8")
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]


def test_sentence_to_record():
    sentence = Sentence(["a"], [Span(0, 1, "X")], "d", "file:3")
    assert jsonl.to_record(0, sentence) == {
        "doc": "d",
        "tokens": ["a"],
        "entities": [{"start": 0, "end": 1, "label": "X"}],
    }
    assert jsonl.to_record(0, Sentence(["a"])) == {"tokens": ["a"], "entities": []}


def test_failed_write_leaves_the_old_file(make):
    path = make("out.jsonl", OBJECT)

    def sentences():
        yield Sentence(["new"])
        raise RuntimeError("stopped half way")

    with pytest.raises(RuntimeError):
        formats.write(path, sentences())
    assert path.read_text() == OBJECT
    assert [entry.name for entry in path.parent.iterdir()] == ["out.jsonl"]


def test_write_over_what_it_reads(make):
    path = make("a.jsonl", OBJECT * 3)
    formats.write(path, iterate(path))
    assert len(read(path)) == 3


def test_write_where_nothing_can_be_written(make):
    path = make("file", "").parent / "file" / "out.jsonl"
    with pytest.raises(WriteError, match="cannot be written"):
        formats.write(path, [Sentence(["a"])])


def test_tokens_of_white_space_are_read(make):
    assert read(make("a.jsonl", '{"tokens": ["a", "\\u00a0"]}'))[0].words == ["a", "\xa0"]
