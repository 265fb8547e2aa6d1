"""CoNLL columns: schemes, layouts, documents."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from diffusionner import formats
from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats import read
from diffusionner.formats.bio_tags import SCHEMES, decode_tags, split_layers


@pytest.fixture
def make(tmp_path: Path):
    """A function that writes a file and returns its path."""

    def write(name: str, content: str) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode("utf-8"))
        return path

    return write


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        # IOB1: I begins; B only parts neighbours of one type.
        ("O I-A I-A O I-B", [(1, 3, "A"), (4, 5, "B")]),
        ("I-A I-A B-A I-A I-B", [(0, 2, "A"), (2, 4, "A"), (4, 5, "B")]),
        # IOB2.
        ("B-A I-A B-A B-B I-B O B-A", [(0, 2, "A"), (2, 3, "A"), (3, 5, "B"), (6, 7, "A")]),
        ("O O", []),
        # BIOES, with S and E next to the same type.
        ("B-A I-A E-A S-A B-A E-A", [(0, 3, "A"), (3, 4, "A"), (4, 6, "A")]),
        ("S-A S-A O S-B", [(0, 1, "A"), (1, 2, "A"), (3, 4, "B")]),
        # BILOU and BMES.
        ("U-A B-A I-A L-A U-B", [(0, 1, "A"), (1, 4, "A"), (4, 5, "B")]),
        ("B-A L-A I-A", [(0, 2, "A"), (2, 3, "A")]),
        ("B-A M-A M-A E-A O S-A", [(0, 4, "A"), (5, 6, "A")]),
        # Broken sequences: nothing marked is lost.
        ("B-A I-B", [(0, 1, "A"), (1, 2, "B")]),
        ("E-A I-A", [(0, 1, "A"), (1, 2, "A")]),
        ("B-A O E-A", [(0, 1, "A"), (2, 3, "A")]),
        ("B-A B-A E-B", [(0, 1, "A"), (1, 2, "A"), (2, 3, "B")]),
        # A type may hold a hyphen.
        ("B-creative-work I-creative-work", [(0, 2, "creative-work")]),
    ],
)
def test_decodes_every_scheme(tags, spans):
    assert decode_tags(tags.split()) == [Span(*span) for span in spans]


def test_conll_sentences_documents_and_places(make):
    path = make(
        "a.conll",
        "-DOCSTART- -X- O O\n"
        "\n"
        "EU NNP I-NP I-ORG\n"
        "rejects VBZ I-VP O\n"
        "\n"
        "\n"
        "Peter  NNP  I-NP  I-PER\n"
        "Blackburn NNP I-NP I-PER \n"
        "-DOCSTART-\n"
        "BRUSSELS NNP I-NP I-LOC",
    )
    assert read(path) == [
        Sentence(["EU", "rejects"], [Span(0, 1, "ORG")], "doc-1", f"{path}:3"),
        Sentence(["Peter", "Blackburn"], [Span(0, 2, "PER")], "doc-1", f"{path}:7"),
        Sentence(["BRUSSELS"], [Span(0, 1, "LOC")], "doc-2", f"{path}:10"),
    ]


def test_conll_without_docstart_has_no_documents(make):
    assert [s.doc for s in read(make("a.conll", "a O\n\nb O\n"))] == [None, None]


def test_entities_end_with_their_sentence(make):
    first, second = read(make("a.conll", "a B-X\n\nb I-X\n"))
    assert first.entities == second.entities == [Span(0, 1, "X")]


def test_tabs_keep_other_spaces_in_the_word(make):
    (sentence,) = read(make("a.tsv", "10 000\tCD\tB-N\t\na\u00a0b\tNN\tI-N\n"))
    assert sentence.words == ["10 000", "a\u00a0b"]
    assert sentence.entities == [Span(0, 2, "N")]
    (sentence,) = read(make("a.conll", "a\u3000b B-N\n"))
    assert sentence.words == ["a\u3000b"]


def test_hash_as_word_and_as_comment(make):
    path = make(
        "a.conll",
        "# sent_id = 12\n"
        "# O\n"
        "1 O\n"
        "# newpar\n"
        "# on vitamin O\n"
        "#tag B-X\n"
        "# I-X\n"
        "\n"
        "# text = the end\n"
        "end O\n",
    )
    first, second = read(path)
    assert first.words == ["#", "1", "#tag", "#"]
    assert first.entities == [Span(2, 4, "X")]
    assert first.where == f"{path}:2"
    assert second.words == ["end"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("word", "'word' is alone on its line"),
        ("word PER", "unknown tag 'PER'"),
        ("word B-", "unknown tag 'B-'"),
        ("word B", "a tag is O, or one of B I E S (also M, L, U)"),
        ("word X-PER", "unknown tag 'X-PER'"),
        ("word b-PER", "unknown tag 'b-PER'"),
        ("word O-PER", "unknown tag 'O-PER'"),
        ("\tO", "only white space"),
        ("\u3000\tO", "only white space"),
        ("b O\rc O\rd O", "a carriage return inside the line"),
        ("New York B-LOC", "3 columns where the previous rows have 2"),
    ],
)
def test_conll_errors_name_file_and_line(make, row, message):
    path = make("bad.conll", f"a O\n\nb O\n{row}\n")
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:4: ")
    assert message in str(caught.value)


# Which columns of a file are what.

CONLL03 = "EU NNP I-NP I-ORG\nrejects VBZ I-VP O\nGerman JJ I-NP I-MISC\n"
GERMEVAL = (
    "#\thttp://de.wikipedia.org/wiki/O\t[2009-10-17]\n"
    "1\tUniversität\tB-ORG\tO\n2\tKöln\tI-ORG\tB-LOC\n\n"
    "#\thttp://example.org\t[2010-01-01]\n1\t1\tO\tO\n"
)
LITBANK = (
    "the\tB-PER\tO\tO\tO\t\nking\tI-PER\tO\tO\tO\t\n"
    "of\tI-PER\tO\tO\tO\t\nRome\tI-PER\tB-GPE\tO\tO\t\n"
)
CHUNKS = "It B-NP O\nwas B-VP O\nraining I-VP O\n\nin B-PP O\nRome B-NP B-LOC\n"


@pytest.mark.parametrize(
    ("content", "words", "entities"),
    [
        (CONLL03, ["EU", "rejects", "German"], [(0, 1, "ORG"), (2, 3, "MISC")]),
        (GERMEVAL, ["Universität", "Köln"], [(0, 2, "ORG"), (1, 2, "LOC")]),
        (LITBANK, ["the", "king", "of", "Rome"], [(0, 4, "PER"), (3, 4, "GPE")]),
        ("a B-X\nb I-X\n", ["a", "b"], [(0, 2, "X")]),
        (CHUNKS, ["It", "was", "raining"], []),
        # Numbers that are words.
        ("1 O\n2 B-X\n", ["1", "2"], [(1, 2, "X")]),
        ("1 O O\n2 B-X O\n3 I-X B-Y\n", ["1", "2", "3"], [(1, 3, "X"), (2, 3, "Y")]),
        ("12 CD B-X\n13 CD I-X\n", ["12", "13"], [(0, 2, "X")]),
        # Comments that would be rows of another width.
        ("#id one O\na O B-X\n\n#id two O\nb O O\n", ["a"], [(0, 1, "X")]),
        # The first sentences have no tags at all.
        ("a O O\n\n" * 80 + "b B-X B-Y\n", ["a"], []),
    ],
)
def test_columns_are_found_out(make, content, words, entities):
    path = make("a.txt", content)
    assert formats.detect(path).name == "conll"
    first = read(path)[0]
    assert first.words == words
    assert first.entities == [Span(*entity) for entity in entities]


def test_columns_after_a_first_sentence_without_tags(make):
    *_, last = read(make("a.txt", "a O O\n\n" * 80 + "b B-X B-Y\n"))
    assert last.entities == [Span(0, 1, "X"), Span(0, 1, "Y")]
    *_, last = read(make("a.txt", CHUNKS))
    assert last.entities == [Span(1, 2, "LOC")]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("c\tO\n", "2 columns where the previous rows have 3"),
        ("c\tO\tO\tO\n", "4 columns where the previous rows have 3"),
        ("c\tBPER\tO\n", "unknown tag 'BPER' in column 1"),
    ],
)
def test_a_wrong_row_does_not_change_how_others_are_read(make, bad, message):
    path = make("a.tsv", "a\tB-X\tO\n\n" + "b\tO\tO\n\n" * 2 + bad)
    with pytest.raises(DataError, match=rf"a\.tsv:7: {message}"):
        read(path)
    refused: list[DataError] = []
    kept = list(formats.iterate_with_errors(path, None, refused))
    assert [s.words for s in kept] == [["a"], ["b"], ["b"]]
    assert kept[0].entities == [Span(0, 1, "X")]
    assert len(refused) == 1


def test_a_wrong_numbering_is_still_a_numbering(make):
    rows = "".join(f"{n}\tw{n}\tO\tO\n" for n in (*range(1, 20), 21))
    assert read(make("a.tsv", rows))[0].words[:2] == ["w1", "w2"]


@pytest.mark.parametrize(
    ("options", "entities"),
    [
        ("labels=1", [(0, 1, "X")]),
        ("labels=-1", [(1, 2, "Y")]),
        ("labels=1+2", [(0, 1, "X"), (1, 2, "Y")]),
        ("labels=1+2,word=0,separator=tab", [(0, 1, "X"), (1, 2, "Y")]),
    ],
)
def test_columns_as_told(make, options, entities):
    path = make("a.tsv", "a\tB-X\tO\nb\tO\tB-Y\n")
    assert read(path, f"conll:{options}")[0].entities == [Span(*entity) for entity in entities]


@pytest.mark.parametrize("option", ["word=4", "labels=4", "labels=-4", "labels=1+9"])
def test_columns_that_are_not_there(make, option):
    with pytest.raises(DataError, match=r"a\.tsv:1: no column -?\d among 2"):
        read(make("a.tsv", "a\tO\n"), f"conll:{option}")


# Writing.


def test_layers_are_found_in_time_for_a_sentence_of_a_whole_document():
    spans = [Span(n, n + 1, "X") for n in range(20_000)] + [Span(0, 20_000, "Y")]
    began = time.perf_counter()
    assert [len(layer) for layer in split_layers(spans)] == [1, 20_000]
    assert time.perf_counter() - began < 3


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_is_written_as_it_is_read(tmp_path, scheme):
    spans = [Span(0, 1, "A"), Span(1, 3, "A"), Span(3, 4, "B"), Span(5, 8, "A"), Span(6, 7, "B")]
    sentences = [Sentence(list("abcdefgh"), spans), Sentence(["i"])]
    path = tmp_path / "a.conll"
    formats.write(path, sentences, f"conll:scheme={scheme}")
    found, other = read(path)
    assert set(found.entities) == set(spans)
    assert (other.words, other.entities) == (["i"], [])
    letters = {tag[0] for line in path.read_text().split("\n") for tag in line.split("\t")[1:]}
    used = {"iob1": "BIO", "iob2": "BIO", "bioes": "BEIOS", "bilou": "BILOU", "bmes": "BEMOS"}
    assert letters == set(used[scheme])


def test_documents_are_written(tmp_path):
    docs = ["one", "one", None, None, "two words", "doc-1"]
    path = tmp_path / "a.conll"
    formats.write(path, [Sentence(["a"], doc=doc) for doc in docs])
    assert [s.doc for s in read(path)] == docs


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        (Sentence(["-DOCSTART-"]), "a word '-DOCSTART-', which format conll cannot represent"),
        (Sentence(["a b"]), "a word 'a b'"),
        (Sentence(["a\n"]), r"a word 'a\\n'"),
        (Sentence(["\xa0"]), r"a word '\\xa0'"),
        (Sentence(["\ufeffa"]), r"a word '\\ufeffa'"),
        (Sentence(["a"], [Span(0, 1, "X\tY")]), r"a label 'X\\tY'"),
        (Sentence(["a"], [Span(0, 1, "X ")]), "a label 'X '"),
        (Sentence(["a"], doc="-"), "a document named '-'"),
        (Sentence(["a"], doc="O"), "a document named 'O'"),
        (Sentence(["a"], doc="b\nc O"), "a document named"),
        (Sentence(["a"], [Span(0, 2, "X")]), "lies outside its sentence"),
    ],
)
def test_what_columns_cannot_hold_is_refused(tmp_path, sentence, message):
    path = tmp_path / "a.conll"
    for lossy in (False, True):
        with pytest.raises(DataError, match=message):
            formats.write(path, [Sentence(["before"]), sentence], lossy=lossy)
    assert not list(tmp_path.iterdir())


def test_options_for_reading_are_refused_in_writing(tmp_path):
    with pytest.raises(DataError, match="are for reading"):
        formats.write(tmp_path / "a.conll", [Sentence(["a"])], "conll:separator=comma")
