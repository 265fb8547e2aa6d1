"""Corpora as they are given out: GENIA's XML and ACE's pairs of files."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from xml.sax.saxutils import escape

import pytest
from corpus_files import put, refuses

from diffusionner import formats
from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats import iterate_with_errors, read
from reproduce.formats import xml_elements

# GENIA.

ARTICLE = """<article>
<articleinfo>
<bibliomisc>MEDLINE:1</bibliomisc>
</articleinfo>
<title>
<sentence><cons lex="IL-2_gene" sem="G#DNA_domain_or_region"><cons lex="IL-2" sem=\
"G#protein_molecule">IL-2</cons> gene</cons>-driven T cells &lt; <cons sem="G#other_name">x\
</cons>.</sentence>
</title>
<abstract>
<sentence>A <cons sem="G#cell_type"><cons sem="G#cell_line">T
 cell</cons></cons>, <cons sem="(AND G#protein_molecule G#protein_molecule)"><cons lex="a*">a\
</cons> and b</cons> <cons sem="G#RNA_N/A">mRNA</cons>.</sentence>
</abstract>
</article>
"""
HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE set SYSTEM "gpml.dtd">\n<set>\n'
GENIA = HEAD + ARTICLE + "</set>\n"


def archive(content: bytes, name: str = "GENIA_term_3.02/corpus.xml", junk: int = 0) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for member, data in (("gpml.css", b"x"), (name, content), ("README", os.urandom(junk))):
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


@pytest.mark.parametrize("name", ["corpus.xml", "corpus.tgz", "corpus.tar.gz"])
def test_genia_words_entities_and_text(tmp_path, name):
    content = GENIA.encode() if name.endswith("xml") else archive(GENIA.encode())
    path = put(tmp_path, {name: content}) / name
    assert formats.detect(path).name == "genia"
    first, second = read(path)
    assert first.words == ["IL-2", "gene", "-driven", "T", "cells", "<", "x", "."]
    assert first.entities == [Span(0, 1, "protein"), Span(0, 2, "DNA")]
    assert second.words == ["A", "T", "cell", ",", "a", "and", "b", "mRNA", "."]
    # Of two types for one span the innermost; terms in a coordination are none.
    assert second.entities == [Span(1, 3, "cell_line"), Span(7, 8, "RNA")]
    assert first.doc == second.doc == "MEDLINE:1"
    assert (first.where, second.where) == (f"{path}:9", f"{path}:12")
    assert first.text is second.text
    assert first.text == "IL-2 gene-driven T cells < x.\nA T\n cell, a and b mRNA."
    for sentence in first, second:
        assert [sentence.text[s:e] for s, e in sentence.offsets] == sentence.words


def test_genia_keeps_the_outermost_in_the_document_where_the_benchmark_does(tmp_path):
    path = put(tmp_path, {"a.xml": GENIA.replace("MEDLINE:1", "MEDLINE:96074843")}) / "a.xml"
    assert read(path)[1].entities == [Span(1, 3, "cell_type"), Span(7, 8, "RNA")]


def test_genia_split_is_the_benchmarks(tmp_path):
    sentences = "".join(f"<sentence>s{n}</sentence>\n" for n in range(18546))
    article = ARTICLE.partition("<sentence>")[0] + sentences + "</title></article>"
    path = put(tmp_path, {"a.tgz": archive((HEAD + article + "</set>").encode())}) / "a.tgz"
    train = [sentence.words for sentence in read(path, "genia:part=train_dev")]
    test = [sentence.words for sentence in read(path, "genia:part=test")]
    assert (len(train), train[0], train[-1]) == (16692, ["s0"], ["s16691"])
    assert (len(test), test[0], test[-1]) == (1854, ["s16692"], ["s18545"])
    assert [sentence.words for sentence in read(path)] == train + test


def test_genia_split_of_another_number_of_sentences(tmp_path):
    path = put(tmp_path, {"a.xml": GENIA}) / "a.xml"
    refuses(path, "genia:part=test", str(path), "2 sentences, but the benchmark has 18546")
    with pytest.raises(DataError, match="part is one of all, train_dev, test, not 'dev'"):
        read(path, "genia:part=dev")


BILLION = '<!DOCTYPE set [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>\n'


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (GENIA[:-20], 14, "not well-formed XML (unclosed token"),
        (GENIA[:-7], 16, "not well-formed XML (no element found"),
        (GENIA.replace("</cons>.</sentence>", ".</sentence>"), 9, "mismatched tag"),
        (GENIA.replace("IL-2</cons>", "IL-\xf6</cons>").encode("latin-1"), 9, "invalid token"),
        (GENIA.replace("UTF-8", "nonsense"), 1, "unknown XML encoding"),
        (GENIA.replace("UTF-8", "gb2312"), 1, "unknown XML encoding"),
        (GENIA.replace('<!DOCTYPE set SYSTEM "gpml.dtd">\n', BILLION), 2, "XML entity 'a'"),
        (GENIA.replace("cells", "&alpha;"), 9, "XML entity 'alpha'"),
        (GENIA.replace("cells", "<cons>" * 200 + "</cons>" * 200), 9, "more than 100 deep"),
        (GENIA.replace("</title>", "<sentence> </sentence></title>"), 10, "without words"),
        (GENIA.replace("cells", '<cons sem="G#protein"/>'), 9, "entity protein [4, 4) lies"),
    ],
)
def test_genia_xml_that_is_wrong(tmp_path, content, line, message):
    path = put(tmp_path, {"a.xml": content}) / "a.xml"
    if "lies" in message:  # not wrong as XML: checking sees such entities themselves
        with pytest.raises(DataError, match=r"a\.xml:9: entity protein"):
            read(path)
        return
    refuses(path, "genia", f"{path}:{line}", message)


def test_genia_reads_no_other_file(tmp_path):
    (tmp_path / "secret").write_text("secret")
    declared = f'<!DOCTYPE set [<!ENTITY a SYSTEM "{tmp_path}/secret">]>\n'
    content = GENIA.replace('<!DOCTYPE set SYSTEM "gpml.dtd">\n', declared)
    path = put(tmp_path, {"a.xml": content.replace("cells", "&a;")}) / "a.xml"
    refuses(path, "genia", f"{path}:2", "XML entity 'a'")


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


LONG = archive(GENIA.encode(), junk=50_000)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LONG[:300], "damaged or truncated"),
        (LONG[:-9], "damaged or truncated"),
        (flipped(LONG, 60), "damaged or truncated"),
        (flipped(LONG, len(LONG) - 5), "damaged or truncated"),  # the checksum
        (gzip.compress(GENIA.encode()), "damaged or truncated"),
        (b"\x1f\x8bnot packed", "damaged or truncated"),
        (archive(GENIA.encode(), name="corpus.txt"), "no XML file in this archive"),
    ],
)
def test_genia_archive_that_is_wrong(tmp_path, content, message):
    path = put(tmp_path, {"a.tgz": content}) / "a.tgz"
    refuses(path, "genia", str(path), message)


def test_genia_reads_from_the_archive_without_unpacking_it(tmp_path):
    content = archive(GENIA.encode(), name="../../outside.xml")
    path = put(tmp_path, {"a/b/a.tgz": content}) / "a" / "b" / "a.tgz"
    assert len(read(path)) == 2
    assert list(tmp_path.rglob("*.xml")) == []


def test_xml_without_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(xml_elements, "MAX_RECORD", 100_000)
    path = put(tmp_path, {"a.xml": GENIA.replace("cells", "\n" + "x" * 200_000)}) / "a.xml"
    refuses(path, "genia", f"{path}:10", "longer than")


# ACE.

SGM = """<DOC>
<DOCID> NEWS_1 </DOCID>
<DATETIME> 2003-03-04 </DATETIME>
<BODY>
<HEADLINE>
Talks
in Rome
</HEADLINE>
<TEXT>
<TURN
 id="1">
<SPEAKER> ANN
</SPEAKER>
The head of AT&amp;T, which
sued Rome, spoke. He left
</TURN>
</TEXT>
</BODY>
</DOC>
"""
BARE = SGM.replace('<TURN\n id="1">', "")
for tag in "DOC DOCID DATETIME BODY HEADLINE TEXT TURN SPEAKER".split():
    BARE = BARE.replace(f"<{tag}>", "").replace(f"</{tag}>", "")


def apf(*mentions: tuple[str, str], text: str = BARE, root: str = "source_file") -> str:
    """An annotation file to the published DTD's shape; mentions are (type, extent)."""
    entities = []
    for number, (label, extent) in enumerate(mentions, 1):
        start = text.index(extent)
        said = escape(extent.replace("&amp;", "&").replace("\n", " "))
        entities.append(
            f'<entity ID="E{number}" TYPE="{label}" SUBTYPE="Other" CLASS="SPC">\n'
            f'<entity_mention ID="E{number}-1" TYPE="NAM" LDCTYPE="NAM">\n'
            f'<extent><charseq START="{start}" END="{start + len(extent) - 1}">{said}</charseq>'
            f'</extent>\n<head><charseq START="0" END="1">\n\n</charseq></head>\n'
            f"</entity_mention>\n"
            f'<entity_attributes><name NAME="x"><charseq START="0" END="0">x</charseq></name>'
            f"</entity_attributes></entity>\n"
        )
    return (
        '<?xml version="1.0"?>\n<!DOCTYPE source_file SYSTEM "apf.v5.1.1.dtd">\n'
        f'<{root} URI="NEWS_1.sgm" SOURCE="newswire" TYPE="text" AUTHOR="LDC" ENCODING="UTF-8">\n'
        f'<document DOCID="NEWS_1">\n{"".join(entities)}'
        '<timex2 ID="T1"><timex2_mention ID="T1-1"><extent><charseq START="3" END="4">?</charseq>'
        f"</extent></timex2_mention></timex2>\n</document>\n</{root}>\n"
    )


APF = apf(
    ("PER", "ANN"),
    ("PER", "The head of AT&amp;T, which\nsued Rome"),
    ("ORG", "AT&amp;T, which\nsued Rome"),
    ("GPE", "Rome, spoke"[:4]),
    ("PER", "He"),
)
APF = APF.replace(f'START="{BARE.index("Rome")}"', f'START="{BARE.rindex("Rome")}"').replace(
    f'END="{BARE.index("Rome") + 3}"', f'END="{BARE.rindex("Rome") + 3}"'
)


def test_ace_sentences_and_mentions(tmp_path):
    folder = put(tmp_path, {"nw/NEWS_1.sgm": SGM, "nw/NEWS_1.apf.xml": APF})
    assert formats.detect(folder).name == "ace"
    sentences = read(folder)
    # The headline and the lines above it have no mention; the speaker's name is in the text.
    assert [" ".join(sentence.words) for sentence in sentences] == [
        "ANN",
        "The head of AT&amp ; T , which sued Rome , spoke .",
        "He left",
    ]
    path = folder / "nw" / "NEWS_1.sgm"
    assert [s.where for s in sentences] == [f"{path}:12", f"{path}:14", f"{path}:15"]
    assert [sentence.entities for sentence in sentences] == [
        [Span(0, 1, "PER")],
        [Span(0, 10, "PER"), Span(3, 10, "ORG"), Span(9, 10, "GPE")],
        [Span(0, 1, "PER")],
    ]
    assert {sentence.doc for sentence in sentences} == {"NEWS_1"}
    for sentence in sentences:
        assert sentence.text == BARE
        assert [BARE[s:e] for s, e in sentence.offsets] == sentence.words
    for name in ("NEWS_1.sgm", "NEWS_1.apf.xml"):
        assert read(folder / "nw" / name) == sentences


def test_ace_keeps_mentions_outside_the_text_and_splits_at_spaces(tmp_path):
    files = {"a.sgm": SGM, "a.apf.xml": apf(("GPE", "Rome"), ("PER", "ANN"))}
    first, second, *rest = read(put(tmp_path, files), "ace:words=spaces")
    assert (first.words, first.entities) == (["in", "Rome"], [Span(1, 2, "GPE")])
    assert (second.words, second.entities) == (["ANN"], [Span(0, 1, "PER")])
    assert [" ".join(s.words) for s in rest] == [
        "The head of AT&amp;T, which",
        "sued Rome, spoke. He left",
    ]


def test_ace_without_text_element_takes_all(tmp_path):
    sgm = "<DOC>\n<p>Rome</p><p>fell</p>\n</DOC>\n"
    first, second = read(
        put(tmp_path, {"a.sgm": sgm, "a.apf.xml": apf(("GPE", "Rome"), text="\nRomefell\n\n")})
    )
    assert (first.words, second.words) == (["Rome"], ["fell"])
    assert first.entities == [Span(0, 1, "GPE")]


def small(word: str) -> dict[str, str]:
    text = f"<DOC><TEXT>{word}</TEXT></DOC>"
    return {"sgm": text, "apf.xml": apf(("PER", word), text=word)}


def corpus(**words: str) -> dict[str, str]:
    """The files of documents of one word; a folder is parted from the name by two underscores."""
    return {
        f"{name.replace('__', '/')}.{end}": content
        for name, word in words.items()
        for end, content in small(word).items()
    }


def test_ace_documents_in_the_order_of_a_list(tmp_path):
    folder = put(tmp_path, corpus(bn__a="A", bn__b="B", nw__c="C", nw__d="D"))
    listed = tmp_path / "train.txt"
    listed.write_bytes(b"\xef\xbb\xbfnw/timex2norm/d\r\n\r\nb.sgm\n  bn\\a.apf.xml\n")
    assert [s.words for s in read(folder, f"ace:documents={listed}")] == [["D"], ["B"], ["A"]]
    assert [s.words for s in read(folder)] == [["A"], ["B"], ["C"], ["D"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [("a\ngone.sgm\n", "no document 'gone'"), ("a\nbn/a.sgm\n", "'a' is listed twice")],
)
def test_ace_list_that_is_wrong(tmp_path, content, message):
    listed = tmp_path / "train.txt"
    listed.write_text(content)
    refuses(put(tmp_path, corpus(bn__a="A")), f"ace:documents={listed}", f"{listed}:2", message)


def test_ace_list_that_is_missing(tmp_path):
    gone = tmp_path / "gone.txt"
    refuses(put(tmp_path, corpus(a="A")), f"ace:documents={gone}", str(gone), "cannot be read")


def test_ace_prefers_the_final_version_of_a_document(tmp_path):
    a = corpus(bn__fp1__a="one", bn__timex2norm__a="final", bn__adj__a="adj", bn__fp2__a="two")
    folder = put(tmp_path, a | corpus(nw__fp1__b="one", nw__fp2__b="two"))
    assert [s.words for s in read(folder)] == [["final"], ["two"]]


def test_ace_the_same_document_in_two_folders(tmp_path):
    folder = put(tmp_path, corpus(bn__a="one", nw__a="two"))
    refuses(folder, "ace", str(folder / "nw" / "a.apf.xml"), "has the same document")


FIRST = f'START="{BARE.index("ANN")}"'


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ("</document>", "", ":47", "not well-formed XML"),
        ("<document DOCID", "<documents DOCID", ":46", "mismatched tag"),
        (FIRST, 'START="0"', ":6", "is 'ANN', but the text at its offsets is"),
        (FIRST, 'START="-1"', ":6", "START and END must be numbers"),
        (FIRST, 'START="x"', ":6", "START and END must be numbers"),
        (FIRST, "", ":6", "START and END must be numbers"),
        (FIRST, f'START="{"9" * 5000}"', ":6", "START and END must be numbers"),
        (FIRST, 'START="9999"', ":6", "lies outside its text"),
        ("<extent>", "<extant>", ":7", "mismatched tag"),
        ('TYPE="PER" SUBTYPE', "SUBTYPE", ":6", "has no TYPE"),
        (">ANN<", ">ANNE<", ":6", "mention E1-1 is 'ANNE', but the text at its offsets is 'ANN'"),
    ],
)
def test_ace_annotations_that_are_wrong(tmp_path, old, new, place, message):
    assert old in APF
    folder = put(tmp_path, {"a.sgm": SGM, "a.apf.xml": APF.replace(old, new, 1)})
    refuses(folder, "ace", f"{folder / 'a.apf.xml'}{place}", message)


def test_ace_annotations_without_extent_or_document(tmp_path):
    nothing = APF.replace("extent>", "head>")
    folder = put(tmp_path, {"a.sgm": SGM, "a.apf.xml": nothing})
    refuses(folder, None, f"{folder / 'a.apf.xml'}:6", "no <charseq> in an <extent>")
    folder = put(tmp_path, {"a.apf.xml": "<x></x>"})
    refuses(folder, None, str(folder / "a.apf.xml"), "no <document>")


def test_ace_checking_goes_on_behind_what_is_wrong(tmp_path):
    files = {"a.sgm": SGM, "a.apf.xml": APF.replace(">ANN<", ">ANNE<"), "b.sgm": SGM}
    refused: list[DataError] = []
    sentences = list(iterate_with_errors(put(tmp_path, files), None, refused))
    assert [s.doc for s in sentences] == ["a"] * 3
    assert [len(s.entities) for s in sentences] == [0, 3, 1]
    assert len(refused) == 2  # the mention, and b, which has no annotations


@pytest.mark.parametrize(("there", "missing"), [("a.sgm", "a.apf.xml"), ("a.apf.xml", "a.sgm")])
def test_ace_half_a_pair(tmp_path, there, missing):
    folder = put(tmp_path, {there: SGM if there.endswith("sgm") else APF})
    refuses(folder, "ace", str(folder / there), f"{missing} is missing")


def test_ace_wrong_files(tmp_path):
    folder = put(
        tmp_path, {"a.sgm": SGM.replace("ANN", "\xc4NN").encode("latin-1"), "a.apf.xml": APF}
    )
    refuses(folder, None, f"{folder / 'a.sgm'}:12", "not UTF-8 (byte 0xc4)")
    other = put(tmp_path, {"other": "x"}) / "other"
    refuses(other, "ace", str(other), "not an ACE file")
    with pytest.raises(DataError, match="words is one of"):
        read(folder, "ace:words=letters")
    with pytest.raises(DataError, match="format ace is read-only"):
        formats.write(folder / "out", [Sentence(["a"])], "ace")


# Each is told from the others.


def test_other_archives_and_xml_are_not_genias(tmp_path):
    folder = put(tmp_path, {"a.tgz": archive(b"<x/>"), "b.xml": "<x><sentence>a</sentence></x>"})
    for name in ("a.tgz", "b.xml"):
        with pytest.raises(DataError, match="not a file of a known format"):
            formats.detect(folder / name)
