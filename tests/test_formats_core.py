"""Features of all formats: detection, options, texts, compatibility, atomic writes."""

from __future__ import annotations

import gzip
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from diffusionner import formats
from diffusionner.corpus import Discontinuous, Irregular, Sentence, Span
from diffusionner.data.fingerprint import fingerprint
from diffusionner.errors import DataError, WriteError
from diffusionner.files import write_bytes, write_folders
from diffusionner.formats import FORMATS, Format
from diffusionner.formats.compatibility import make_compatible
from diffusionner.formats.documents import (
    Annotation,
    TextDocument,
    TextOptions,
    contiguous,
    to_documents,
    to_sentences,
)
from diffusionner.formats.format import Capabilities
from diffusionner.formats.source import HEAD, Sample

# --- Telling formats apart --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("README.md", "# A corpus\n\nOne JSON object a line:\n\n```\n{}\n```\n", "not a file of"),
        ("book.txt", "It was the best of times,\nit was the worst of times.\n", "not a file of"),
        ("war.txt", "They flew a B-52\nover the town, and then over\nthe sea.\n", "not a file of"),
        ("data.csv", "tokens,tags\nRome,B-LOC\nfell,O\n", "not a file of"),
        ("data.csv", "Rome,B-LOC\nfell,O\n", "unless it is conll:separator=comma"),
        ("data.txt", "Rome|NNP|B-LOC\nfell|VBD|O\n", "unless it is conll:separator=pipe"),
        ("page.html", "<!DOCTYPE html>\n<html><body>Rome</body></html>\n", "not a file of"),
        ("set.xml", "<?xml version='1.0'?>\n<corpus><s>Rome</s></corpus>\n", "not a file of"),
        ("settings.yaml", "data:\n  train: a.jsonl\n", "not a file of"),
        ("code.py", "import json\nprint(json)\n", "not a file of"),
        (
            "a.jsonl",
            gzip.compress(b'{"tokens": ["a"]}\n', mtime=0),
            "compressed with gzip: decompress it first",
        ),
        ("a.jsonl", '{"tokens": ["a"]}\n'.encode("utf-16"), "UTF-16: convert it to UTF-8"),
        ("a.conll", "Rome O\n".encode("utf-16-le"), "and not text"),
        ("a.bin", bytes(range(256)) * 8, "and not text"),
        ("string.json", '"Rome"\n', "not a file of"),
        ("list.json", '["Rome", "fell"]\n', "not a file of"),
        ("nested.json", '[[{"tokens": ["a"]}]]\n', "not a file of"),
    ],
)
def test_what_is_no_corpus_is_said_to_be_none(make, name, content, message):
    path = make(name, content)
    with pytest.raises(DataError) as caught:
        formats.detect(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "name the format, one of: " in str(caught.value)


@pytest.mark.parametrize("text", ["{}", "[]", '{"name": "package", "version": 1}', '[{"a": [1]}]'])
def test_json_of_another_kind_shows_how_ours_looks(make, text):
    with pytest.raises(DataError, match=r"a\.json:1: no 'tokens' among|has no sentences"):
        formats.read(make("a.json", text))


def test_folders_without_a_corpus(tmp_path):
    with pytest.raises(DataError, match="not a folder of a known format"):
        formats.detect(tmp_path)
    (tmp_path / "notes.md").write_text("nothing")
    with pytest.raises(DataError, match="not a folder of a known format"):
        formats.read(tmp_path)


def test_paths_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    for path in ("x" * 300, tmp_path / "file" / "a.jsonl", "nul\0.jsonl"):
        for format in (None, "jsonl"):
            with pytest.raises(DataError, match=r"no such file|cannot be read"):
                formats.iterate(path, format)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no such files here")
def test_a_pipe_is_refused_before_it_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for format in (None, "conll"):
        with pytest.raises(DataError, match="pipe: a pipe or device; save it to a file"):
            formats.iterate(tmp_path / "pipe", format)


def test_a_sample_is_only_the_head(make):
    line = json.dumps({"tokens": ["a"] * 50}) + "\n"
    sample = Sample(make("a.jsonl", line * 1000))
    assert len(sample.raw) == HEAD
    assert 0 < len(sample.records) <= HEAD // len(line)
    assert sample.keys == {"tokens"}
    assert set(sample.members("tokens")) == {"a"}
    assert sample.members("none") == []


@pytest.mark.parametrize("end", [', "ner": []}', ""])
def test_a_first_record_beyond_the_head_has_its_keys(make, end):
    long = '[\n{"first": 1, "text": "' + "x" * 2 * HEAD + '"' + end
    assert Sample(make("a.json", long)).keys == {"first", "text"} | ({"ner"} if end else set())


def test_every_format_is_described():
    for name, format in FORMATS.items():
        assert name == format.name and name.isalnum() and name.islower()
        assert "\n" not in format.summary and len(format.summary) < 100
        assert all(extension.startswith(".") for extension in format.extensions)
        format.options()  # all have defaults


# --- Options ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "message"),
    [
        ("conll:wort=1", "format conll has no option 'wort'; did you mean 'word'"),
        ("conll:word", "format conll: write the option as word=VALUE"),
        ("conll:word=first", "word is the number of a column, not 'first'"),
        ("conll:word=" + "1" * 5000, "word is the number of a column"),
        ("conll:labels=1+x", "labels are columns such as 3 or 1\\+2, not '1\\+x'"),
        ("conll:separator=;", "separator is one of tab, space"),
        ("conll:scheme=iobes", "scheme is one of iob1, iob2"),
        ("jsonl:words=none", "format jsonl: words is one of rules, spaces, not 'none'"),
        ("gliner:x=1", "format gliner has no option 'x'; it has no options"),
        ("", "unknown format ''; choose one of"),
        ("Jsonl", "unknown format 'Jsonl'; did you mean 'jsonl'"),
    ],
)
def test_options_that_cannot_be(make, format, message):
    with pytest.raises(DataError, match=message):
        formats.read(make("a.jsonl", '{"tokens": ["a"]}'), format)
    with pytest.raises(DataError, match=message):
        formats.write(make("a.jsonl", "").with_name("out"), [Sentence(["a"])], format)


def test_output_without_a_format(tmp_path):
    for name in ("out", "out.docx", "out.json"):
        with pytest.raises(DataError, match="the extension does not determine the format"):
            formats.write(tmp_path / name, [Sentence(["a"])])
    with pytest.raises(DataError, match="format genia is read-only; write one of: "):
        formats.write(tmp_path / "out.xml", [Sentence(["a"])], "genia")


# --- Texts --------------------------------------------------------------------------------

TEXT = "Dr. Who met U.S. officials.\nHe ran."


def whole(*annotations: tuple[int, int, str], text: str = TEXT) -> TextDocument:
    found = [contiguous(*annotation) for annotation in annotations]
    return TextDocument(text, found, "d", "f:1")


def test_annotations_become_runs_of_words():
    first, second = to_sentences(
        whole((0, 7, "PER"), (12, 16, "GPE"), (12, 26, "P"), (28, 30, "P"))
    )
    assert first.words == ["Dr.", "Who", "met", "U.S.", "officials", "."]
    assert first.entities == [Span(0, 2, "PER"), Span(3, 4, "GPE"), Span(3, 5, "P")]
    assert second.words == ["He", "ran", "."]
    assert second.entities == [Span(0, 1, "P")]
    assert first.text is second.text and second.text == TEXT
    assert [TEXT[start:end] for start, end in second.offsets or []] == second.words


@pytest.mark.parametrize(
    "parts",
    [
        ((0, 2),),  # cuts a word
        ((5, 7),),
        ((3, 7),),  # begins with a space
        ((7, 8),),  # nothing but a space
        ((0, 3), (12, 14)),
        ((0, 2), (12, 16)),
        ((0, 3), (7, 8)),
    ],
)
def test_what_does_not_align_with_words_is_irregular(parts):
    first, _ = to_sentences(TextDocument(TEXT, [Annotation(parts, "X")]))
    assert (first.all_entities, first.irregular) == ([], [Irregular(parts, "X")])


@pytest.mark.parametrize(
    ("parts", "fragments"),
    [
        (((0, 3), (12, 16)), ((0, 1), (3, 4))),
        (((0, 7), (12, 16), (26, 27)), ((0, 2), (3, 4), (5, 6))),
        (((0, 3), (4, 7)), ((0, 2),)),  # nothing but a space between them
        (((12, 16), (17, 26), (26, 27)), ((3, 6),)),
        (((0, 3), (4, 7), (12, 16)), ((0, 2), (3, 4))),
        (((0, 2), (2, 3)), ((0, 1),)),  # touch inside a word
        (((0, 2), (2, 3), (8, 11)), ((0, 1), (2, 3))),
    ],
)
def test_parts_that_align_with_words_are_fragments(parts, fragments):
    first, _ = to_sentences(TextDocument(TEXT, [Annotation(parts, "X")]))
    assert [entity.fragments for entity in first.all_entities] == [fragments]
    assert len(first.discontinuous) == (len(fragments) > 1)
    assert first.irregular == []


def test_an_annotation_over_a_sentence_end_joins_the_two():
    (joined,) = to_sentences(whole((17, 30, "X")))
    assert joined.words[4:7] == ["officials", ".", "He"]
    assert joined.entities == [Span(4, 7, "X")]
    parts = Annotation(((0, 3), (28, 30)), "X")
    (joined,) = to_sentences(TextDocument(TEXT, [parts]))
    assert joined.discontinuous == [Discontinuous(((0, 1), (6, 7)), "X")]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (((0, 99),), r"entity X \[0, 99\) lies outside its text of 35 characters"),
        (((-3, 2),), "lies outside"),
        (((2, 2),), r"entity X \[2, 2\) is empty"),
        (((4, 7), (0, 3)), "starts before the end of the one before, 7"),
        (((0, 5), (4, 7)), "starts before the end of the one before, 5"),
        ((), "has no characters"),
    ],
)
def test_annotations_that_do_not_fit_their_text(parts, message):
    with pytest.raises(DataError, match=rf"f:1: .*{message}"):
        to_sentences(TextDocument(TEXT, [Annotation(parts, "X")], where="f:1"))


def test_a_text_without_words():
    assert to_sentences(whole(text=" \n")) == []
    with pytest.raises(DataError, match="f:1: entities in a text without words"):
        to_sentences(whole((0, 1, "X"), text=" \n"))


def test_words_between_spaces_and_sentences_on_lines():
    text = "\u00a0Dr. Who,\u2003met\r\n\n \nU.S.\x85troops."
    found = to_sentences(whole(text=text), TextOptions(words="spaces"))
    assert [s.words for s in found] == [["Dr.", "Who,", "met"], ["U.S.", "troops."]]


def test_documents_are_put_together_again():
    one = whole((0, 7, "PER"), (0, 2, "CUT"), (28, 30, "PER"))
    one.annotations += [Annotation(((0, 3), (12, 16)), "P"), Annotation(((0, 2), (12, 16)), "CUT")]
    two = replace(whole((0, 1, "X"), text="A"), doc=None)
    # Texts of one letter are one object in Python, and yet two documents.
    documents = [one, two, two, one]
    again = list(to_documents(s for d in documents for s in to_sentences(d)))
    assert [(d.text, set(d.annotations), d.doc) for d in again] == [
        (d.text, set(d.annotations), d.doc) for d in documents
    ]


def test_sentences_without_a_text_become_lines():
    found = to_documents(
        [
            Sentence(["a", "b"], [Span(1, 2, "X")], "d"),
            Sentence(list("cgh"), [], "d", discontinuous=[Discontinuous(((0, 1), (2, 3)), "Y")]),
            Sentence(["e"], doc=None),
            Sentence(["e"], doc=None),
        ]
    )
    assert [(d.text, d.annotations) for d in found] == [
        ("a b\nc g h", [contiguous(2, 3, "X"), Annotation(((4, 5), (8, 9)), "Y")]),
        ("e", []),
        ("e", []),
    ]


def test_many_annotations_over_many_sentences_take_no_time():
    text = "a\n" * 20_000
    document = TextDocument(text, [contiguous(0, len(text) - 1, str(n)) for n in range(3000)])
    began = time.perf_counter()
    (sentence,) = to_sentences(document, TextOptions(words="spaces"))
    assert len(sentence.entities) == 3000
    assert time.perf_counter() - began < 3


# --- What formats can hold -------------------------------------------------------------------


def limited(**what: object) -> Format:
    able = Capabilities(**what)  # type: ignore[arg-type]
    return replace(FORMATS["jsonl"], name="some", capabilities=able)


OUTER, INNER, SAME, CROSSING = Span(0, 3, "A"), Span(1, 2, "B"), Span(0, 3, "C"), Span(2, 4, "D")


@pytest.mark.parametrize(
    ("what", "entities", "kept"),
    [
        ({"crossing": False}, [CROSSING, OUTER, INNER], [OUTER, INNER]),
        ({"crossing": False}, [OUTER, SAME, INNER, OUTER], None),
        ({"label": str.islower}, [Span(0, 1, "x")], None),
    ],
)
def test_crossing_entities_are_refused_or_dropped(what, entities, kept):
    sentence = Sentence(list("abcd"), entities, where="f:7")
    if kept is None:
        assert set(make_compatible(sentence, limited(**what), lossy=False).entities) == set(
            entities
        )
        return
    with pytest.raises(DataError, match=r"f:7: entities .* cross, which format some"):
        make_compatible(sentence, limited(**what), lossy=False)
    assert make_compatible(sentence, limited(**what), lossy=True).entities == kept
    assert sentence.entities == entities


@pytest.mark.parametrize(
    ("discontinuous", "irregular", "kept", "problem"),
    [
        (True, True, "parts cut both", None),
        (True, False, "parts", "cut at characters 0-2 does not align with token boundaries"),
        (False, True, "cut", "parts [0, 1), [2, 3) is discontinuous"),
        (False, False, "", "parts [0, 1), [2, 3) is discontinuous"),
    ],
)
def test_discontinuous_and_irregular_annotations_that_fit(discontinuous, irregular, kept, problem):
    sentence = Sentence(
        ["abc", "def", "ghi"],
        where="f:7",
        discontinuous=[Discontinuous(((0, 1), (2, 3)), "parts")],
        irregular=[Irregular(((0, 2),), "cut"), Irregular(((0, 2), (8, 11)), "both")],
    )
    some = limited(discontinuous=discontinuous, irregular=irregular)
    fitted = make_compatible(sentence, some, lossy=True)
    assert " ".join(a.label for a in (*fitted.discontinuous, *fitted.irregular)) == kept
    if problem is None:
        assert make_compatible(sentence, some, lossy=False) == sentence
        return
    with pytest.raises(DataError) as caught:
        make_compatible(sentence, some, lossy=False)
    assert str(caught.value) == (
        f"f:7: entity {problem}, which format some cannot represent; write jsonl, which "
        "represents everything, or remove it with --lossy"
    )


def test_words_labels_and_wrong_offsets_are_never_left_out():
    for lossy in (True, False):
        with pytest.raises(DataError, match="sentence: there is a word 'B'"):
            make_compatible(Sentence(["a", "B"]), limited(word=str.islower), lossy)
        with pytest.raises(DataError, match="sentence: there is a label 'X'"):
            make_compatible(Sentence(["a"], [Span(0, 1, "X")]), limited(label=str.islower), lossy)
        with pytest.raises(DataError, match="lies outside its sentence"):
            make_compatible(Sentence(["a"], [Span(0, 2, "X")]), limited(), lossy)


# --- Whole files only -----------------------------------------------------------------------


def test_a_folder_is_there_whole_or_not_at_all(tmp_path):
    def fill(folder: Path) -> None:
        (folder / "one").write_text("1")

    def fail(folder: Path) -> None:
        fill(folder)
        raise KeyError("stopped half way")

    path = tmp_path / "new" / "folder"
    with pytest.raises(KeyError):
        write_folders({path: fill, tmp_path / "other": fail})
    assert [p.name for p in tmp_path.rglob("*")] == ["new"]
    write_folders({path: fill})
    assert [p.name for p in path.iterdir()] == ["one"]
    with pytest.raises(WriteError, match="already exists; remove it or choose another name"):
        write_folders({path: fill})
    (tmp_path / "file").touch()
    with pytest.raises(WriteError, match="cannot be written"):
        write_folders({tmp_path / "file" / "folder": fill})


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no such files here")
def test_devices_and_folders_are_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/"), Path(".")):
        with pytest.raises(WriteError, match="choose another name"):
            write_bytes(path, b"x")
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]
    assert (tmp_path / "pipe").is_fifo()


# --- Fingerprints -----------------------------------------------------------------------------


def test_a_fingerprint_is_of_words_and_entities_alone(tmp_path):
    sentences = to_sentences(whole((0, 7, "PER"), (0, 7, "ORG"), (0, 2, "CUT"), (28, 30, "PER")))
    mark = fingerprint(sentences)
    assert (mark.sentences, mark.entities) == (2, 4)
    assert str(mark) == f"2 sentences, 4 entities, {mark.hash}"
    assert mark.to_dict() == {"sentences": 2, "entities": 4, "hash": mark.hash}
    turned = [replace(s, entities=s.entities[::-1] * 2, doc="x", where="y") for s in sentences]
    assert fingerprint(turned) == mark
    plain = [replace(s, irregular=[], text=None, offsets=None) for s in sentences]
    for name in ("a.jsonl", "a.conll"):
        formats.write(tmp_path / name, plain)
        assert fingerprint(formats.iterate(tmp_path / name)) == fingerprint(plain) != mark
    # So that figures can be compared between versions of Python and of this package.
    assert (
        fingerprint([Sentence(["Köln", "\U0001fae8"], [Span(0, 1, "Ä")])]).hash
        == "3accc59198130a68"
    )


GAPPED = Discontinuous(((0, 1), (2, 3)), "X")


def test_a_fingerprint_of_discontinuous_entities():
    """The place of an entity counts, not how it is stored."""
    words = ["a", "b", "cd"]
    found = fingerprint([Sentence(words, discontinuous=[GAPPED])])
    assert (found.entities, found.hash) == (1, "0e0a086cb0b2622d")
    assert fingerprint([Sentence(words, discontinuous=[GAPPED, GAPPED])]) == found
    assert fingerprint([Sentence(words, irregular=[Irregular(((0, 1), (4, 6)), "X")])]) == found
    spaced = Sentence(
        words, text="a  b cd", offsets=[(0, 1), (3, 4), (5, 7)], discontinuous=[GAPPED]
    )
    assert fingerprint([spaced]) == found
    for other in (((0, 1), (3, 4)), ((0, 2), (3, 4))):
        sentence = Sentence([*words, "e"], discontinuous=[Discontinuous(other, "X")])
        assert fingerprint([sentence]).hash != found.hash


@pytest.mark.parametrize(
    "other",
    [
        [Sentence(["a", "b"])],
        [Sentence(["a", "b"], [Span(0, 1, "Y")])],
        [Sentence(["a", "b"], [Span(0, 2, "X")])],
        [Sentence(["ab"], [Span(0, 1, "X")])],
        [Sentence(["a", "B"], [Span(0, 1, "X")])],
        [Sentence(["a"], [Span(0, 1, "X")]), Sentence(["b"])],
        [Sentence(["a", "b"], [Span(0, 1, "X")], irregular=[Irregular(((0, 1), (2, 3)), "X")])],
        [Sentence(["a", "b", "c"], [Span(0, 1, "X")], discontinuous=[GAPPED])],
        [Sentence(["a", "b", "c"], [Span(0, 1, "X")])],
    ],
)
def test_anything_else_has_another_fingerprint(other):
    assert fingerprint(other) != fingerprint([Sentence(["a", "b"], [Span(0, 1, "X")])])


def test_gzipped_files_are_read(tmp_path):
    lines = b'{"tokens": ["Ada"], "entities": [{"start": 0, "end": 1, "label": "PER"}]}\n'
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(lines))
    (sentence,) = formats.read(packed)
    assert (sentence.words, sentence.where) == (["Ada"], f"{packed}:1")
    for damaged in (gzip.compress(lines)[:-10], gzip.compress(lines)[:20] + b"?" * 30, b"plain\n"):
        packed.write_bytes(damaged)
        with pytest.raises(DataError, match="damaged, or not compressed with gzip"):
            formats.read(packed)
