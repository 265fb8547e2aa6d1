"""brat standoff: texts with annotations beside them, nested, crossing and in parts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from corpus_files import put, refuses
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from diffusionner import formats
from diffusionner.corpus import Discontinuous, Irregular, Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats import iterate_with_errors, read
from diffusionner.formats.documents import (
    Annotation,
    TextDocument,
    TextOptions,
    to_documents,
    to_sentences,
)

TEXT = "South and North America won.\nNew\n  York fell."
ANN = (
    "T1\tLOC 10 23\tNorth America\n"
    "T2\tLOC 0 5;16 23\tSouth America\n"
    "R1\tx Arg1:T1 Arg2:T2\n"
    "E1\tx:T1\nA1\tx T1\nM1\tx T1\nN1\tReference T1 x:1\tx\n#1\tx T1\tx\n*\tEquiv T1 T2\n"
    "\n"
    "T3\tGPE 29 32;35 39\tNew York\n"
    "T5\tX 17 19\tme\n"
    "T4\tGPE 10 23\tNorth America\n"
)


@pytest.mark.parametrize("of", ["", "b/doc.txt", "b/doc.ann"])
def test_brat_annotations(tmp_path, of):
    folder = put(tmp_path, {"b/doc.txt": TEXT, "b/doc.ann": ANN})
    assert formats.detect(folder / of).name == "brat"
    first, second = read(folder / of)
    assert first.words == ["South", "and", "North", "America", "won", "."]
    assert first.entities == [Span(2, 4, "LOC"), Span(2, 4, "GPE")]
    assert first.discontinuous == [Discontinuous(((0, 1), (3, 4)), "LOC")]
    assert first.irregular == [Irregular(((17, 19),), "X")]
    assert second.words == ["New", "York", "fell", "."]
    assert second.entities == [Span(0, 2, "GPE")]
    assert first.doc == second.doc == ("doc" if of else "b/doc")
    path = folder / "b" / "doc.txt"
    assert (first.where, second.where) == (f"{path}:1", f"{path}:2")
    assert first.text == second.text == TEXT


def test_brat_words_at_spaces_and_windows_line_ends(tmp_path):
    text = "\ufeff\r\nAt Rome .\r\nYes\u2028so\r\n"
    ann = "\ufeffT1\tGPE 6 10\tRome\r\nT2\tX 14 20\tYes so\r\n"
    first, second = read(put(tmp_path, {"a.txt": text, "a.ann": ann}), "brat:words=spaces")[1:]
    assert (first.words, first.entities) == (["At", "Rome", "."], [Span(1, 2, "GPE")])
    assert (second.words, second.entities) == (["Yes", "so"], [Span(0, 2, "X")])
    assert first.text == text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("T9\tLOC 0 5\tNorth", "T9 is 'North', but the text at its offsets is 'South'"),
        ("T9\tLOC 1 6\tSouth", "T9 is 'South'"),
        ("T9\tLOC 0 5", "not a brat annotation"),
        ("T9 LOC 0 5 South", "not a brat annotation"),
        ("T9\tLOC 0 -5\tSouth", "not a brat annotation"),
        ("T9\tLOC 0\tSouth", "not a brat annotation"),
        (f"T9\tLOC 0 {'9' * 5000}\tSouth", "not a brat annotation"),
        ("T9\tLOC x y\tSouth", "not a brat annotation"),
        ("T9\tBig LOC 0 5\tSouth", "not a brat annotation"),
        ("X1\tLOC 0 5\tSouth", "not a brat annotation"),
        ("T9\tLOC 5 5\t", "entity LOC [5, 5) is empty; remove it"),
        ("T9\tLOC 5 0\tSouth", "lies outside its text"),
        ("T9\tLOC 10 9999\tNorth", "lies outside its text"),
        ("T9\tLOC 16 23;0 5\tAmerica South", "starts before the end of the one before, 23"),
        ("T9\tLOC 0 5;3 9\tSouth th and", "starts before the end of the one before, 5"),
        ("T1\tLOC 0 5\tSouth", "T1 is defined twice"),
    ],
)
def test_brat_lines_that_are_wrong(tmp_path, line, message):
    folder = put(tmp_path, {"a.txt": TEXT, "a.ann": ANN + line + "\nT8\tLOC 0 5\tSouth\n"})
    refuses(folder, None, f"{folder / 'a.ann'}:{ANN.count(chr(10)) + 1}", message)
    found = [s.entities for s in iterate_with_errors(folder, None, [])]
    assert Span(0, 1, "LOC") in found[0]  # the line behind it


@pytest.mark.parametrize(("there", "missing"), [("a.txt", "a.ann"), ("a.ann", "a.txt")])
def test_brat_half_a_pair(tmp_path, there, missing):
    folder = put(tmp_path, {there: TEXT, "b.txt": TEXT, "b.ann": ANN})
    refuses(folder, None, str(folder / there), f"{missing} is missing")
    assert len(list(iterate_with_errors(folder, None, []))) == 2


def test_brat_wrong_files(tmp_path):
    folder = put(tmp_path, {"a.txt": b"one\nK\xf6ln", "a.ann": ""})
    refuses(folder, None, f"{folder / 'a.txt'}:2", "not UTF-8 (byte 0xf6)")
    folder = put(tmp_path, {"a.txt": TEXT, "a.ann": b"T1\tX 0 5\tSouth\nT2\tX 0 1\t\xff"})
    refuses(folder, None, f"{folder / 'a.ann'}:2", "not UTF-8 (byte 0xff)")
    folder = put(tmp_path, {"a.txt": " \n", "a.ann": "T1\tX 0 1\t \n"})
    refuses(folder, None, str(folder / "a.ann"), "entities in a text without words")
    other = put(tmp_path, {"other": "x"}) / "other"
    refuses(other, "brat", str(other), "not a brat file")
    with pytest.raises(DataError, match="words is one of"):
        read(folder, "brat:words=letters")


def written(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes().decode() for path in files}


def test_brat_writes_what_brat_does(tmp_path):
    sentence = Sentence(
        ["New", "York", "fell"],
        [Span(0, 2, "GPE"), Span(1, 2, "LOC"), Span(0, 2, "X")],
        "d",
        text="New \r\n York\u2028fell\n",
        offsets=[(0, 3), (7, 11), (12, 16)],
        discontinuous=[Discontinuous(((0, 1), (2, 3)), "Y")],
        irregular=[Irregular(((8, 14),), "Z")],
    )
    formats.write(tmp_path / "out", [sentence], "brat")
    assert written(tmp_path / "out") == {
        "d.txt": "New \r\n York\u2028fell\n",
        "d.ann": "T1\tGPE 0 3;7 11\tNew York\n"
        "T2\tLOC 7 11\tYork\n"
        "T3\tX 0 3;7 11\tNew York\n"
        "T4\tY 0 3;12 16\tNew fell\n"
        "T5\tZ 8 14\tork fe\n",
    }


@pytest.mark.parametrize("label", ["creative work", "a\tb", "a\nb", "a\u00a0b"])
def test_brat_refuses_a_label_with_white_space(tmp_path, label):
    sentence = Sentence(["a"], [Span(0, 1, label)], where="in.jsonl:7")
    with pytest.raises(DataError, match=r"in\.jsonl:7: there is a label '[ac].* cannot represent"):
        formats.write(tmp_path / "out", [sentence], "brat")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("docs", "names"),
    [
        (["b", "a/b", "a"], ["a", "a/b", "b"]),
        ([None, None], ["000001", "000002"]),
        ([None, "000001"], ["000001", "000001-2"]),
        (["a", "b", "a"], ["a", "a-3", "b"]),
        (["a.txt/b", "a", "a.ann/c"], ["a-2", "a.ann/c", "a.txt/b"]),
        (["a", "a.txt/b"], ["a", "a.txt_b-2"]),
        (["../up", "/root", "..", ".", "a//b", "a/../../b", "a/"], None),
        (["x\0y", "new\nline", "back\\slash", "é" * 3000, " ", "MEDLINE:1"], None),
    ],
)
def test_brat_names_of_files(tmp_path, docs, names):
    sentences = [Sentence(["word"], doc=doc) for doc in docs]
    formats.write(tmp_path / "out", sentences, "brat")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    read_back = sorted(str(sentence.doc) for sentence in read(tmp_path / "out"))
    assert len(read_back) == len(set(read_back)) == len(docs)
    assert names is None or read_back == sorted(names)
    assert {"MEDLINE:1", " "} <= set(read_back) or "MEDLINE:1" not in docs


AWKWARD = st.text(
    st.sampled_from(
        "ab.'-é中ไ\U0001f600\u200d\u0301\u0e49\u00a0\u2028\u2029\x85\x0b\x1c\ufeff&< \t\r\n"
    ),
    min_size=1,
    max_size=40,
).filter(str.strip)


@st.composite
def annotated(draw: st.DrawFn) -> tuple[str, list[Annotation]]:
    """A text with annotations anywhere in it: nested, crossing, discontinuous, cut through words.

    Between two parts of one stands a letter, and so a word; else they would be joined.
    """
    text = draw(AWKWARD)
    annotations = []
    for _ in range(draw(st.integers(0, 5))):
        bounds = draw(st.sets(st.integers(0, len(text)), min_size=2, max_size=6))
        ends = sorted(bounds)[: len(bounds) // 2 * 2]
        parts = [(ends[0], ends[1])]
        for start, end in zip(ends[2::2], ends[3::2], strict=True):
            if any(map(str.isalnum, text[parts[-1][1] : start])):
                parts.append((start, end))
        annotations.append(Annotation(tuple(parts), draw(st.sampled_from(("X", "Ä-1", "a;b")))))
    return text, annotations


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example([("a\r\n b", [Annotation(((0, 5),), "X")])], "rules")
@given(st.lists(annotated(), min_size=1, max_size=3), st.sampled_from(("rules", "spaces")))
def test_brat_round_trip(documents, words):
    sentences = []
    kept = []
    for number, (text, marked) in enumerate(documents):
        document = TextDocument(text, marked, f"d/{number}", "x")
        try:
            split = to_sentences(document, TextOptions(words))
        except DataError:  # annotations, but no words
            continue
        sentences += split
        kept += [(text, set(marked))] if split else []
    if not sentences:
        return
    with tempfile.TemporaryDirectory() as folder:
        formats.write(Path(folder, "out"), sentences, "brat")
        again = read(Path(folder, "out"), f"brat:words={words}")
    content = ("words", "offsets", "text", "doc")
    assert [[getattr(s, name) for name in content] for s in again] == [
        [getattr(s, name) for name in content] for s in sentences
    ]
    assert [(set(s.all_entities), set(s.irregular)) for s in again] == [
        (set(s.all_entities), set(s.irregular)) for s in sentences
    ]
    back = to_documents(again)
    assert [(d.text, set(d.annotations)) for d in back] == kept


def test_brat_puts_together_parts_with_only_white_space_between(tmp_path):
    text = "a \n b c"
    ann = "T1\tX 0 1;4 5\ta b\nT2\tX 0 1;2 5\ta  b\nT3\tY 4 5;6 7\tb c\n"
    (sentence,) = read(put(tmp_path, {"a.txt": text, "a.ann": ann}))
    assert sentence.entities == [Span(0, 2, "X"), Span(1, 3, "Y")]
    assert sentence.discontinuous == sentence.irregular == []


def test_a_text_beside_no_annotations_is_not_brats(tmp_path):
    folder = put(tmp_path, {"a.txt": "Rome B-LOC\nfell O\n"})
    assert formats.detect(folder / "a.txt").name == "conll"
