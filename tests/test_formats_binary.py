"""spaCy's DocBin, Parquet and Hugging Face datasets: files made by the real packages."""

from __future__ import annotations

import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from corpus_files import refuses
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diffusionner import formats
from diffusionner.corpus import Discontinuous, Irregular, Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats import docbin, iterate_with_errors, read

datasets = pytest.importorskip("datasets")
pandas = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
spacy = pytest.importorskip("spacy")
srsly = pytest.importorskip("srsly")
from spacy.tokens import Doc, DocBin  # noqa: E402
from spacy.tokens import Span as DocSpan  # noqa: E402

BINARY = ("docbin", "parquet", "huggingface")
NLP = spacy.blank("en")


def everything(sentence: Sentence) -> tuple[object, ...]:
    """All but the place in the file."""
    kept = (sentence.words, sentence.entities, sentence.doc, sentence.text, sentence.offsets)
    return (*kept, sentence.discontinuous, sentence.irregular)


# --- Round trips ----------------------------------------------------------------------------------


@st.composite
def documents(draw: st.DrawFn) -> list[Sentence]:
    """Sentences that share a text of any kind, or have none; every overlap, and doubles."""
    name = draw(st.sampled_from((None, "d", " ")))
    some = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3)
    words = st.lists(st.one_of(st.sampled_from(("PERSON", "\u00a0", "\n")), some), min_size=1)
    gap = st.one_of(st.sampled_from((" ", "", "  ", " \n", "\n ", " x ")), some)
    has_text = draw(st.booleans())
    text = draw(gap)
    sentences = []
    for chosen in draw(st.lists(words, min_size=1, max_size=3)):
        offsets = []
        for word in chosen:
            offsets.append((len(text), len(text) + len(word)))
            text += word + draw(gap)
        at = st.integers(0, len(chosen))
        spans = st.tuples(at, at, st.sampled_from(("PERSON", "B"))).filter(lambda s: s[0] < s[1])
        found = [Span(*span) for span in draw(st.lists(spans, max_size=4))]
        sentence = Sentence(chosen, found, name, offsets=offsets if has_text else None)
        gaps = st.lists(st.sets(st.integers(0, len(chosen)), min_size=4, max_size=8), max_size=3)
        for bounds in map(sorted, draw(gaps if len(chosen) > 2 else st.just([]))):
            fragments = tuple(zip(bounds[::2], bounds[1::2], strict=False))
            sentence.discontinuous.append(Discontinuous(fragments, "GAPPED"))
        sentences.append(sentence)
    for sentence in sentences:
        sentence.text = text if has_text else None
    return sentences


@pytest.mark.parametrize("format", BINARY)
def test_nothing_is_lost(format):
    @settings(
        deadline=None,
        derandomize=True,
        database=None,
        max_examples=60,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(documents(), min_size=1, max_size=2), st.booleans())
    def check(drawn, irregular):
        sentences = [sentence for document in drawn for sentence in document]
        if irregular and format != "docbin":
            _, ((start, end), *others) = sentences[0].characters()
            if end - start > 1:  # cut the first word
                parts = ((start, end - 1), *others[-1:])
                sentences[0].irregular = [Irregular(parts, "X"), Irregular(parts[:1], "Y")]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "corpus"
            formats.write(path, sentences, format)
            assert formats.detect(path).name == format
            found = list(iterate_with_errors(path, None, []))
            if format == "docbin":
                texts = list(dict.fromkeys(s.text for s in sentences if s.text is not None))
                docs = DocBin().from_disk(path).get_docs(NLP.vocab)
                written = [doc.text for doc in docs if not doc.has_unknown_spaces]
                assert list(dict.fromkeys(written)) == texts
        assert list(map(everything, found)) == list(map(everything, sentences))

    check()


@pytest.mark.parametrize("format", BINARY)
def test_a_package_that_is_missing(format, tmp_path, monkeypatch):
    formats.write(tmp_path / "a", [Sentence(["a"])], format)
    package, extra = ("spacy", "spacy") if format == "docbin" else ("pyarrow", "parquet")
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    message = rf"format {format} needs the package '{package}'; .*\[{extra}\]"
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a", format)
    with pytest.raises(DataError, match=message):
        formats.write(tmp_path / "b", [Sentence(["a"])], format)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("format", BINARY)
def test_a_file_cut_short_anywhere(format, tmp_path):
    formats.write(tmp_path / "a", [Sentence([f"w{i}"] * 20) for i in range(40)], format)
    path = tmp_path / "a"
    if format == "huggingface":
        path /= "data-00000-of-00001.arrow"
    content = path.read_bytes()
    for size in range(1, len(content), len(content) // 25):
        path.write_bytes(content[:size])
        with pytest.raises(DataError) as caught:
            read(tmp_path / "a", format)
        assert str(caught.value).startswith(f"{path}:"), size


# --- DocBin ---------------------------------------------------------------------------------------


def save(path: Path, *docs: Doc, **options: Any) -> Path:
    DocBin(docs=docs, **options).to_disk(path)
    return path


def annotated() -> Doc:
    doc = NLP("\n Rome  fell\n\nto Mr. Smith . Yes")
    words = [token.text for token in doc]
    assert words == ["\n ", "Rome", " ", "fell", "\n\n", "to", "Mr.", "Smith", ".", "Yes"]
    doc.ents = [DocSpan(doc, 1, 2, "LOC"), DocSpan(doc, 6, 8, "PER")]
    doc.spans["sc"] = [DocSpan(doc, 7, 8, "NAME"), DocSpan(doc, 6, 8, "PER")]
    doc.spans["other"] = [DocSpan(doc, 0, 5, "EVENT"), DocSpan(doc, 7, 8, "NAME")]
    return doc


def test_docbin_of_a_pipeline(tmp_path):
    """White space is no word; what several groups say comes once; offsets are the text's."""
    path = save(tmp_path / "a.bin", annotated())
    (sentence,) = read(path)
    assert sentence.words == ["Rome", "fell", "to", "Mr.", "Smith", ".", "Yes"]
    assert sorted(sentence.entities) == [
        Span(0, 1, "LOC"),
        Span(0, 2, "EVENT"),
        Span(3, 5, "PER"),
        Span(4, 5, "NAME"),
    ]
    assert (sentence.text, sentence.where) == (annotated().text, f"{path}:1")
    assert [sentence.text[start:end] for start, end in sentence.offsets] == sentence.words


@pytest.mark.parametrize(
    ("spans", "labels"),
    [
        ("sc", {"NAME", "PER"}),
        ("ents", {"LOC", "PER"}),
        ("other+ents", {"EVENT", "NAME", "LOC", "PER"}),
    ],
)
def test_docbin_groups_by_name(tmp_path, spans, labels):
    (sentence,) = read(save(tmp_path / "a.spacy", annotated()), f"docbin:spans={spans}")
    assert {entity.label for entity in sentence.entities} == labels


def test_docbin_group_that_is_not_there(tmp_path):
    path = save(tmp_path / "a.spacy", annotated())
    message = "no document has a span group 'gold'; available: ents, other, sc"
    refuses(path, "docbin:spans=gold", f"{path}", message)


@pytest.mark.parametrize(
    "attributes", [None, ["SENT_START", "ENT_IOB", "ENT_TYPE"], ["HEAD", "DEP"]]
)
def test_docbin_sentences(tmp_path, attributes):
    """As marked or parsed; an entity over a border joins."""
    words = "He came . He saw . He won".split()
    heads, deps = [1, 1, 1, 4, 4, 4, 7, 7], ["a", "ROOT", "b"] * 2 + ["a", "ROOT"]
    doc = Doc(NLP.vocab, words=words, heads=heads, deps=deps)
    doc.spans["sc"] = [DocSpan(doc, 4, 7, "X"), DocSpan(doc, 0, 1, "Y")]
    options = {} if attributes is None else {"attrs": attributes}
    first, second = read(save(tmp_path / "a.spacy", Doc(NLP.vocab), doc, **options))
    assert (first.words, first.entities) == (words[:3], [Span(0, 1, "Y")])
    assert (second.words, second.entities) == (words[3:], [Span(1, 4, "X")])
    assert first.text is None and first.where.endswith(":2")


def test_docbin_without_sentences(tmp_path):
    text = "He came.  Dr. No saw it. He won"
    path = save(tmp_path / "a.spacy", NLP(text), Doc(NLP.vocab, words=text.split()))
    assert [len(s.words) for s in read(path)] == [10, 8]
    split = [s.words for s in read(path, "docbin:split=true")]
    assert split[:3] == [["He", "came", "."], ["Dr.", "No", "saw", "it", "."], ["He", "won"]]
    assert split[3:] == [["He", "came."], ["Dr.", "No", "saw", "it."], ["He", "won"]]


def test_what_spacy_reads(tmp_path):
    text = "Bank of  China in Rome\nfell. PERSON ORTH"
    offsets = [(0, 4), (5, 7), (9, 14), (15, 17), (18, 22), (23, 27), (27, 28)]
    entities = [
        Span(2, 3, "GPE"),
        Span(0, 3, "ORG"),
        Span(0, 3, "B"),
        Span(2, 5, "X"),
        Span(4, 5, "GPE"),
        Span(4, 5, "GPE"),
    ]
    words = [text[start:end] for start, end in offsets]
    first = Sentence(words, entities, "d1", text=text, offsets=offsets)
    second = Sentence(["PERSON", "ORTH"], [Span(0, 2, "PERSON")], "d1", text=text)
    second.offsets = [(29, 35), (36, 40)]
    path = tmp_path / "a.spacy"
    formats.write(
        path, [first, second, Sentence(["No", "text"], [], "d2"), Sentence(["."], [], "d2")]
    )
    one, other = DocBin().from_disk(path).get_docs(NLP.vocab)
    assert one.text == text
    assert [sentence.text for sentence in one.sents] == [
        "Bank of  China in Rome\nfell.",
        "PERSON ORTH",
    ]
    assert [(e.text, e.label_) for e in one.spans["sc"]] == [
        ("China", "GPE"),
        ("Bank of  China", "ORG"),
        ("Bank of  China", "B"),
        ("China in Rome", "X"),
        ("Rome", "GPE"),
        ("Rome", "GPE"),
        ("PERSON ORTH", "PERSON"),
    ]
    flat = {("Bank of  China", "ORG"), ("Rome", "GPE"), ("PERSON ORTH", "PERSON")}
    assert {(e.text, e.label_) for e in one.ents} == flat
    assert one.user_data == {"doc": "d1"} and other.user_data == {"doc": "d2"}
    assert other.has_unknown_spaces and [s.text for s in other.sents] == ["No text", "."]
    assert not other.ents and other.has_annotation("ENT_IOB")  # none, which is not unknown
    examples = list(spacy.training.Corpus(path)(NLP))
    assert [len(example.reference.spans["sc"]) for example in examples] == [7, 0]


@pytest.mark.parametrize(("text", "offsets"), [("du", [(0, 2), (0, 2)]), ("de le", None)])
def test_docbin_of_words_that_are_no_tokens_of_their_text(tmp_path, text, offsets):
    """A contraction's two words, as treebanks have them: the words are kept, the text goes."""
    sentence = Sentence(["de", "le"], [Span(0, 2, "X")], text=text, offsets=offsets)
    formats.write(tmp_path / "a.spacy", [sentence])
    (found,) = read(tmp_path / "a.spacy")
    assert (found.words, found.entities, found.text) == (["de", "le"], [Span(0, 2, "X")], None)


def packed(**changes: Any) -> bytes:
    """A DocBin with some of its parts replaced."""
    whole = srsly.msgpack_loads(zlib.decompress(DocBin(docs=[annotated()]).to_bytes()))
    return zlib.compress(srsly.msgpack_dumps({**whole, **changes}))


@pytest.mark.parametrize(
    ("content", "place", "message"),
    [
        (b"text, no DocBin", "", "not a complete DocBin (Error -3"),
        (zlib.compress(b"text"), "", "not a complete DocBin"),
        (
            zlib.compress(srsly.msgpack_dumps({"attrs": []})),
            "",
            "not a complete DocBin ('strings')",
        ),
        (packed(lengths=b"123"), "", "not a complete DocBin"),
        (packed(strings=[]), ":1", "not a valid Doc"),
        (packed(span_groups=[b"\xc1"]), ":1", "not a valid Doc"),
        (packed(attrs=[0]), ":1", "not a valid Doc"),
    ],
)
def test_no_docbin(tmp_path, content, place, message):
    path = tmp_path / "bad.spacy"
    path.write_bytes(content)
    refuses(path, None, f"{path}{place}", message)


@pytest.mark.parametrize(
    ("start", "end", "label", "message"),
    [
        (2, 3, "X", "entity X at tokens 2-3 is only white space"),
        (3, 3, "X", "entity X at token 3 is empty"),
        (3, 4, "", "label of an entity must be a non-empty string"),
    ],
)
def test_docbin_errors_name_the_doc(tmp_path, start, end, label, message):
    bad = annotated()
    bad.spans["sc"] = [DocSpan(bad, start, end, label)]
    path = save(tmp_path / "a.spacy", annotated(), bad, annotated())
    refuses(path, None, f"{path}:2", message)
    refused: list[DataError] = []
    assert [s.where for s in iterate_with_errors(path, None, refused)] == [f"{path}:1", f"{path}:3"]
    assert len(refused) == 1


def test_span_outside_its_doc(tmp_path):
    doc = Doc(NLP.vocab, words=["a", "b"])
    doc.spans["sc"] = [DocSpan(doc, 1, 2, "X")]
    content = DocBin(docs=[doc]).to_bytes()
    whole = srsly.msgpack_loads(zlib.decompress(content))
    bound = (2).to_bytes(4, "big")
    assert whole["span_groups"][0].count(bound) >= 1
    whole["span_groups"] = [whole["span_groups"][0].replace(bound, (9).to_bytes(4, "big"))]
    path = tmp_path / "a.spacy"
    path.write_bytes(zlib.compress(srsly.msgpack_dumps(whole)))
    refuses(path, None, f"{path}:1", "spaCy cannot decode the entities ([E035]")


def test_foreign_user_data_is_left_alone(tmp_path):
    doc = annotated()
    doc.user_data.update({"doc": {"id": 3}, ("._.", "x", None, None): [1]})
    assert read(save(tmp_path / "a.spacy", doc, store_user_data=True))[0].doc is None
    doc.user_data[docbin._GAPS] = "1"
    path = save(tmp_path / "a.spacy", doc, store_user_data=True)
    refuses(path, None, f"{path}:1", "is not a list of tokens")


def test_more_than_a_docbin_holds(tmp_path, monkeypatch):
    def to_bytes(self: DocBin) -> bytes:
        raise ValueError("bytes is too large")  # as msgpack does beyond 4 GiB

    monkeypatch.setattr(DocBin, "to_bytes", to_bytes)
    with pytest.raises(DataError, match="more words than a DocBin can store"):
        formats.write(tmp_path / "a.spacy", [Sentence(["a"])])
    assert not list(tmp_path.iterdir())
