"""Formats of research code and corpora: reference, w2ner, mrc, ontonotes, conllu."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffusionner import formats
from diffusionner.corpus import Discontinuous, Irregular, Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats import FORMATS, detect, read

WORDS = ["Bank", "of", "China", "fell"]
NESTED = [Span(0, 3, "ORG"), Span(2, 3, "GPE")]

REFERENCE = """[
{"tokens": ["Bank", "of", "China", "fell"],
 "entities": [{"type": "ORG", "start": 0, "end": 3}, {"type": "GPE", "start": 2, "end": 3}],
 "relations": {}, "org_id": "d1", "pos": ["NN", "IN", "NN", "VB"],
 "ltokens": [], "rtokens": ["It", "rose"]},
{"tokens": ["It", "rose"], "entities": [], "relations": {}, "org_id": "d1",
 "ltokens": ["Bank", "of", "China", "fell"], "rtokens": []}
]
"""
W2NER = """[{"sentence": ["Bank", "of", "China", "fell"],
 "ner": [{"index": [0, 1, 2], "type": "ORG"}, {"index": [2], "type": "GPE"}],
 "word": [[0, 1], [2]]}]"""
MRC = """[
{"context": "Bank of China fell", "end_position": [2], "entity_label": "GPE", "impossible": false,
 "qas_id": "0.1", "query": "countries and cities", "span_position": ["2;2"], "start_position": [2]},
{"context": "Bank of China fell", "end_position": [2], "entity_label": "ORG", "impossible": false,
 "qas_id": "0.2", "query": "companies", "span_position": ["0;2"], "start_position": [0]},
{"context": "Bank of China fell", "end_position": [], "entity_label": "PER", "impossible": true,
 "qas_id": "0.3", "query": "people", "span_position": [], "start_position": []}
]"""
ONTONOTES = """#begin document (bn/abc/00/abc_0001); part 000
bn/abc/00/abc_0001   0   0   Bank  NNP (TOP(S(NP*  -  - - Ann  (ORG*       (ARG1*  (12
bn/abc/00/abc_0001   0   1   of    IN  *           -  - - Ann  *           *       -
bn/abc/00/abc_0001   0   2   China NNP *)          -  - - Ann  (GPE))      *)      12)
bn/abc/00/abc_0001   0   3   fell  VBD (VP*)))     fall 01 1 Ann *         (V*)    -

#end document
"""
CONLLU = """# newdoc id = GUM_news_bank
# global.Entity = GRP-etype-infstat-centering-minspan-link-identity
# sent_id = GUM_news_bank-1
# text = Bank of China fell
1\tBank\tbank\tNOUN\tNN\tNumber=Sing\t4\tnsubj\t4:nsubj\tEntity=(1-ORG-new-cf1*-1,3-coref-Bank
2\tof\tof\tADP\tIN\t_\t3\tcase\t3:case\t_
3\tChina\tChina\tPROPN\tNNP\tNumber=Sing\t1\tnmod\t1:nmod:of\tEntity=(2-GPE-new-cf2-1-sgl-China)1)
4\tfell\tfall\tVERB\tVBD\tTense=Past\t0\troot\t0:root\t_

"""
SMALL = {
    "reference": REFERENCE,
    "w2ner": W2NER,
    "mrc": MRC,
    "ontonotes": ONTONOTES,
    "conllu": CONLLU,
}


@pytest.mark.parametrize("name", SMALL)
def test_reads_nested_entities(make, name):
    sentence, *_ = read(make("file", SMALL[name]))
    assert sentence.words == WORDS
    assert sorted(sentence.entities) == NESTED
    assert sentence.discontinuous == sentence.irregular == []


@pytest.mark.parametrize("name", SMALL)
def test_windows_line_ends_and_byte_order_mark(make, name):
    content = b"\xef\xbb\xbf" + SMALL[name].replace("\n", "\r\n").encode()
    sentence, *_ = read(make("file", content))
    assert sentence.words == WORDS
    assert sorted(sentence.entities) == NESTED


OTHERS = {
    "jsonl": '{"tokens": ["a"], "entities": [{"start": 0, "end": 1, "label": "X"}]}\n',
    "gliner": '{"tokenized_text": ["a", "b"], "ner": [[0, 1, "X"]]}\n',
    "conll": "# global.Entity\nRome B-LOC\nfell O\n",
}
VARIANTS = [
    *((name, text) for name, text in (SMALL | OTHERS).items()),
    ("reference", '{"tokens": ["a"], "entities": [], "orig_id": 5}\n'),
    ("reference", '{"tokens": ["a"], "entities": [{"type": "X", "start": 0, "end": 1}]}\n'),
    ("jsonl", '{"tokens": ["a"], "entities": []}\n'),
    ("jsonl", '{"doc": "d", "tokens": ["a"], "entities": []}\n'),
    ("w2ner", '{"sentence": ["a"], "ner": []}\n'),
    ("reference", REFERENCE.replace('"Bank", "of"', '"Bank"' + ', "of"' * 20_000)),
    ("ontonotes", ONTONOTES.partition("\n")[2].partition("#")[0]),
    ("conll", "1\tRome\tB-LOC\tO\n2\tfell\tO\tO\n"),
    ("conll", "Rome\tNNP\t*\t_\t_\t_\t_\t_\t_\tB-LOC\n"),
]


@pytest.mark.parametrize(("name", "content"), VARIANTS)
def test_formats_are_told_apart(make, name, content):
    assert detect(make("file.json", content)).name == name


def test_folders_are_told_apart(make, tmp_path):
    (tmp_path / "gum").mkdir()
    (tmp_path / "onto" / "bn").mkdir(parents=True)
    make("gum/b.conllu", CONLLU.replace("GUM_news_bank", "b"))
    make("gum/a.conllu", CONLLU.replace("GUM_news_bank", "a"))
    make("onto/bn/b.v4_auto_conll", ONTONOTES.replace("ORG", "NORP"))
    make("onto/bn/b.v4_gold_conll", ONTONOTES)
    make("onto/bn/b.v4_gold_skel", "x")
    assert [s.doc for s in read(tmp_path / "gum")] == ["a", "b"]
    assert detect(tmp_path / "onto").name == "ontonotes"
    (sentence,) = read(tmp_path / "onto")  # the gold ones alone
    assert sorted(sentence.entities) == NESTED


# Round trips.

CHARACTERS = st.characters(exclude_categories=["Cs"]) | st.sampled_from(
    "()[]*|-_%=#;\u00a0\u2028\u3000\u200d\u0301\ufeff\U0001f600"
)
DOCUMENTS = {
    "conllu": lambda name: name.strip() == name and "\n" not in name,
    "ontonotes": lambda name: "\n" not in name and "\r" not in name,
}


@st.composite
def corpora(draw: st.DrawFn, name: str) -> list[Sentence]:
    able = FORMATS[name].capabilities
    word = st.text(CHARACTERS, min_size=1, max_size=5).filter(able.word)
    label = st.text(CHARACTERS, min_size=1, max_size=5).filter(
        lambda text: text.strip() and able.label(text)
    )
    known = draw(st.lists(label, min_size=1, max_size=3))
    document = st.text(CHARACTERS, min_size=1, max_size=4) | st.sampled_from(
        ["a", "a; part 012", "a); part 3", "(a; part 3)", "-"]
    )
    names = st.none() | document.filter(DOCUMENTS.get(name, bool))
    docs = draw(st.lists(names, min_size=1, max_size=2))
    corpus = []
    for doc in sorted(draw(st.lists(st.sampled_from(docs), min_size=1, max_size=4)), key=repr):
        words = draw(st.lists(word, min_size=1, max_size=7))
        sentence = Sentence(words, doc=doc)
        bounds = st.lists(st.integers(0, len(words)), min_size=2, max_size=6, unique=True).map(
            sorted
        )
        for kind in draw(st.lists(st.sampled_from(known), max_size=5)):
            cuts = draw(bounds)
            parts = list(zip(cuts[::2], cuts[1::2], strict=False))
            fragments = merged(parts)
            if len(fragments) == 1 or not able.discontinuous:
                span = Span(*parts[0], kind)
                if able.crossing or not any(crosses(span, s) for s in sentence.entities):
                    sentence.entities.append(span)
            else:
                sentence.discontinuous.append(Discontinuous(fragments, kind))
        corpus.append(sentence)
    return corpus


def merged(parts: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Join the parts that touch."""
    words = [i for start, end in parts for i in range(start, end)]
    runs = [list(run) for _, run in groupby(words, lambda i: i - words.index(i))]
    return tuple((run[0], run[-1] + 1) for run in runs)


def crosses(one: Span, other: Span) -> bool:
    (a, b), (c, d) = sorted([one[:2], other[:2]])
    return a < c < b < d


@pytest.mark.parametrize("name", SMALL)
def test_round_trip(name, tmp_path_factory):
    path = tmp_path_factory.mktemp("trip") / "corpus"

    @settings(max_examples=50, deadline=None)
    @given(corpora(name))
    def check(corpus: list[Sentence]) -> None:
        formats.write(path, corpus, name)
        assert detect(path).name == name
        found = read(path)
        assert [s.words for s in found] == [s.words for s in corpus]
        assert [s.doc for s in found] == [s.doc for s in corpus]
        assert [set(s.entities) for s in found] == [set(s.entities) for s in corpus]
        assert [set(s.discontinuous) for s in found] == [set(s.discontinuous) for s in corpus]

    check()


OVERLAPS = Sentence(
    ["a", "b", "c", "d", "e"],
    [Span(0, 3, "X"), Span(0, 3, "Y"), Span(1, 2, "X"), Span(2, 5, "X"), Span(0, 5, "X")],
    discontinuous=[Discontinuous(((0, 1), (2, 4)), "X"), Discontinuous(((1, 2), (3, 4)), "Y")],
)


@pytest.mark.parametrize("name", SMALL)
def test_every_kind_of_overlap(tmp_path, name):
    """Nested, same-span, crossing and discontinuous entities in one sentence."""
    able = FORMATS[name].capabilities
    formats.write(tmp_path / "corpus", [OVERLAPS], name, lossy=True)
    (found,) = read(tmp_path / "corpus")
    lost = set() if able.crossing else {Span(2, 5, "X")}
    assert set(found.entities) == set(OVERLAPS.entities) - lost
    assert found.discontinuous == (OVERLAPS.discontinuous if able.discontinuous else [])


# Sentences that a format cannot represent.

NO_GAPS = sorted(n for n, f in FORMATS.items() if f.write and not f.capabilities.discontinuous)

CROSSING = [Span(0, 2, "A"), Span(1, 3, "B")]
CUT = [Irregular(((1, 2),), "A")]
GAPPED = [Discontinuous(((0, 1), (2, 3)), "A")]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("ontonotes", Sentence(["a", "b", "c"], CROSSING)),
        ("ontonotes", Sentence(["a b"])),
        ("ontonotes", Sentence(["a"], [Span(0, 1, "A*")])),
        ("ontonotes", Sentence(["a"], [Span(0, 1, "A B")])),
        ("ontonotes", Sentence(["a"], [Span(0, 1, "(A")])),
        ("ontonotes", Sentence(["a"], doc="a\nb")),
        ("mrc", Sentence(["a\u00a0b"])),
        ("conllu", Sentence(["a\tb"])),
        ("conllu", Sentence(["a"], doc="a\nb")),
        ("conllu", Sentence(["a"], doc=" a")),
        ("conllu", Sentence(["abc"], irregular=CUT)),
        ("w2ner", Sentence(["abc"], irregular=CUT)),
        *((name, Sentence(list("abc"), discontinuous=GAPPED)) for name in NO_GAPS),
    ],
)
def test_what_cannot_be_represented_is_refused(tmp_path, name, sentence):
    sentence.where = "in:7"
    with pytest.raises(DataError, match=rf"^in:7: .* format {name} cannot represent"):
        formats.write(tmp_path / "out", [sentence], name)
    assert list(tmp_path.iterdir()) == []


def test_lossy_leaves_out_only_what_cuts_a_word(tmp_path):
    irregular = [Irregular(((0, 1), (4, 5)), "A")]
    sentence = Sentence(["a", "b", "ccc"], discontinuous=GAPPED, irregular=irregular)
    for name in ("w2ner", "conllu"):
        formats.write(tmp_path / name, [sentence], name, lossy=True)
        (found,) = read(tmp_path / name)
        assert (found.discontinuous, found.irregular) == (GAPPED, [])


# What is wrong with a file is said with its place, once.


def spoil(name: str, old: str, new: str) -> tuple[str, str]:
    assert old in SMALL[name]
    return name, SMALL[name].replace(old, new, 1)


BROKEN = [
    ("reference", "[]]", 1, "more text after the end"),
    ("reference", '[\n"a"]', 2, "expected an object"),
    ("reference", '[{"tokens": ["a"], "relations": []}]', 1, "no 'entities'"),
    (*spoil("reference", '"Bank", "of"', '"Bank", 3'), 2, "token 1 must be a string"),
    (*spoil("reference", '"start": 0', '"start": "0"'), 2, "'start' .* integer"),
    (*spoil("reference", '"type": "ORG", ', ""), 2, "no 'type'"),
    (*spoil("reference", '"end": 3', '"end": 9'), 2, "lies outside"),
    (*spoil("reference", '"org_id": "d1"', '"org_id": []'), 2, "'org_id' must be"),
    (*spoil("w2ner", "[0, 1, 2]", "[]"), 1, "'index' of entity ORG is empty"),
    (*spoil("w2ner", "[0, 1, 2]", "[0, 2, 1]"), 1, "not in order"),
    (*spoil("w2ner", "[0, 1, 2]", "[0, 0]"), 1, "not in order"),
    (*spoil("w2ner", "[0, 1, 2]", "[0, 9]"), 1, "lies outside"),
    (*spoil("w2ner", "[0, 1, 2]", "[-2, 1]"), 1, "lies outside"),
    (*spoil("w2ner", "[2]", "[4]"), 1, "lies outside"),
    (*spoil("w2ner", "[0, 1, 2]", "[0, true]"), 1, "integer"),
    (*spoil("w2ner", '"type": "GPE"', '"type": ""'), 1, "label of an entity"),
    (*spoil("w2ner", '"Bank", "of", "China", "fell"', ""), 1, "'sentence' is empty"),
    (*spoil("mrc", "Bank of", "Bank  of"), 2, "an extra space"),
    (*spoil("mrc", '"2;2"', '"2"'), 2, "not a position"),
    (*spoil("mrc", '"2;2"', '"3;2"'), 2, "'start_position' contradicts"),
    (*spoil("mrc", '"end_position": [2]', '"end_position": [3]'), 2, "'end_position' contradicts"),
    (*spoil("mrc", "false", "true"), 2, "'impossible' contradicts"),
    (*spoil("mrc", '"0.1"', "0.1"), 2, "'qas_id' must be a string"),
    (*spoil("mrc", '"entity_label": "GPE", ', ""), 2, "no 'entity_label'"),
    (*spoil("ontonotes", "(ORG*", "[ORG*"), 2, "is not a bracket"),
    (*spoil("ontonotes", "(ORG*", "*    "), 4, "without an opening one"),
    (*spoil("ontonotes", "(GPE))", "(GPE) "), 2, "'.ORG' is not closed"),
    (*spoil("ontonotes", "Bank", "[WORD]"), 2, "skeleton2conll"),
    (*spoil("ontonotes", "China", "Chi na"), 4, "14 columns where .* has 13"),
    (*spoil("ontonotes", "  (12\n", "\n"), 3, "13 columns where .* has 12"),
    (*spoil("ontonotes", "(bn/abc/00/abc_0001); part 000", "x"), 1, "does not name a document"),
    (*spoil("ontonotes", "#end document\n", ""), 6, "no '#end document'"),
    (*spoil("ontonotes", "#end", "#begin document (x);\n#end"), 7, "at .*:1 has no '#end"),
    (*spoil("conllu", "\t3:case\t_", "\t3:case"), 6, "9 columns"),
    (*spoil("conllu", "3\tChina", "4\tChina"), 7, "expected word 3"),
    (*spoil("conllu", "3\tChina", "x\tChina"), 7, "not CoNLL-U"),
    (*spoil("conllu", "\tBank\t", "\t\t"), 5, "expected word 1"),
    (*spoil("conllu", ")1)", ")"), 5, "'.1-ORG-new.*' is not closed"),
    (*spoil("conllu", ")1)", ")7)"), 7, "'7.' closes an entity that was not opened"),
    (*spoil("conllu", ")1)", "))1)"), 7, "is not a list of brackets"),
    (*spoil("conllu", "(2-GPE", "(2--GPE"), 7, "has no type"),
    (*spoil("conllu", "(2-GPE", "(2-%FF"), 7, "not UTF-8"),
    (*spoil("conllu", "GRP-etype", "GRP-head"), 5, "has no type"),
    (*spoil("conllu", "(2-GPE", "(2[2/2]-GPE"), 7, "does not continue"),
    (*spoil("conllu", "(2-GPE", "(2[1/2]-GPE"), 7, "lacks a part"),
    (*spoil("conllu", "# text", "# global.columns = ID FORM X\n# text"), 1, "global.columns"),
    (*spoil("conllu", "1\tBank", "1-2\tBank of\t_\t_\t_\t_\t_\t_\t_\tEntity=(1-x)\n1\tBank"), 5,
     "multiword"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "line", "message"), BROKEN)
def test_malformed(make, name, content, line, message):
    path = make("bad", content)
    with pytest.raises(DataError, match=rf"^\S*bad:{line}: .*{message}"):
        read(path, name)


@pytest.mark.parametrize(("name", "content", "line", "message"), BROKEN)
def test_checking_goes_on(make, name, content, line, message):
    """Reading continues after an invalid record or sentence."""
    refused: list[DataError] = []
    found = list(formats.iterate_with_errors(make("bad", content), name, refused))
    wrong = [s for s in found if any(e.end > len(s.words) for e in s.entities)]
    assert len(refused) + len(wrong) == 1


@pytest.mark.parametrize("name", SMALL)
def test_wrong_encoding(make, name):
    content = SMALL[name].encode().replace(b"China", b"Chin\xe9", 1)
    line = content[: content.index(b"\xe9")].count(b"\n") + 1
    with pytest.raises(DataError, match=rf"bad:{line}: not UTF-8 \(byte 0xe9\)"):
        read(make("bad", content), name)


@pytest.mark.parametrize("name", SMALL)
def test_truncated_anywhere(make, name):
    """A file cut off within a record is an error with its place, never a traceback."""
    content = SMALL[name].encode().rstrip()
    whole = read(make("whole", content), name)
    accepted = 0
    for size in range(1, len(content)):
        path = make("cut", content[:size])
        try:
            found = read(path, name)
        except DataError as error:
            assert f"{path}" in str(error)
        else:
            accepted += 1
            assert name == "conllu"  # which has no mark at its end
            assert found[0].words == whole[0].words[: len(found[0].words)]
            assert len(found[0].entities) in (0, 2)
    assert accepted < 40
