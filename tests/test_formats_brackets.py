"""Corpora whose entities are brackets: what is particular to ontonotes and conllu."""

from __future__ import annotations

import pytest
from test_formats_research import WORDS

from diffusionner import formats
from diffusionner.corpus import Discontinuous, Sentence, Span
from diffusionner.data.fingerprint import fingerprint
from diffusionner.formats import detect, read
from diffusionner.formats.documents import Annotation, TextDocument, contiguous, to_sentences

# ontonotes


def test_ontonotes_documents(make):
    row = "x 0 0 a - * - - - - * -\n"
    content = f"#begin document (x/y); part 001\n{row}\n#end document\n{row}\n{row}"
    content += f"#begin document (z (2));\n{row}\n#end document"
    assert [s.doc for s in read(make("a", content), "ontonotes")] == [
        *["x/y; part 001", None, None, "z (2)"]
    ]


def test_ontonotes_brackets(make, tmp_path):
    column = ["(A(B*", "(C)", "*)", "(D(E))*)", "*"]
    rows = [f"d 0 {i} w{i} - * - - - - {text} -" for i, text in enumerate(column)]
    (sentence,) = read(make("a", "#begin document (d);\n" + "\n".join(rows) + "\n#end document"))
    expected = [Span(0, 4, "A"), Span(0, 3, "B"), Span(1, 2, "C"), Span(3, 4, "D"), Span(3, 4, "E")]
    assert sentence.entities == expected
    formats.write(tmp_path / "b.gold_conll", [sentence])
    written = (tmp_path / "b.gold_conll").read_text()
    assert written.startswith("#begin document (d);\nd 0 0 w0 - * - - - - (A(B* -\n")
    assert [line.split()[10] for line in written.splitlines()[1:6]] == [
        *["(A(B*", "(C)", "*)", "(D(E*)))", "*"]
    ]
    assert written.endswith("\n\n#end document\n")


def test_ontonotes_as_bio_columns(make):
    content = "Bank NNP (NP* B-ORG\nof IN * I-ORG\nChina NNP *) I-ORG\nfell VBD (VP*) O\n"
    path = make("train.bio", content)
    assert detect(path).name == "conll"
    assert read(path) == [Sentence(WORDS, [Span(0, 3, "ORG")], None, f"{path}:1")]


# conllu


def rows(*pairs: tuple[str, str], head: str = "") -> str:
    lines = []
    count = 0
    for word, misc in pairs:
        number, _, form = word.rpartition(" ")
        count += not number
        lines.append("\t".join([number or str(count), form, *"_______", misc or "_"]))
    return head + "\n".join(lines) + "\n\n"


GUM = "# global.Entity = GRP-etype-infstat\n"


@pytest.mark.parametrize(
    ("head", "marks", "entities"),
    [
        (GUM, ["(1-a-new", "(2-b", "1)", "2)"], [Span(0, 3, "a"), Span(1, 4, "b")]),
        (GUM, ["(1-a(1-b", "", "1)", "1)"], [Span(0, 4, "a"), Span(0, 3, "b")]),
        (GUM, ["(1-a-x)(2-b)", "(3-c", "(4-d)3)(5-e", "5)"],
         [Span(0, 1, "a"), Span(0, 1, "b"), Span(1, 3, "c"), Span(2, 3, "d"), Span(2, 4, "e")]),
        ("# global.Entity = entity-GRP-MIN\n", ["(per-1-1", "1)", "(per-1-1)", ""],
         [Span(0, 2, "per"), Span(2, 3, "per")]),
        ("# global.Entity = etype-identity\n", ["(per", "(place-Rome-Italy)per)", "", ""],
         [Span(0, 2, "per"), Span(1, 2, "place")]),
        ("# global.Entity = eid-etype-head-other\n", ["(e12-per-1-x:y,z", "e12)", "", ""],
         [Span(0, 2, "per")]),
        ("", ["(per-1", "per-1)", "(7-org)", "(place)"],
         [Span(0, 2, "per"), Span(2, 3, "org"), Span(3, 4, "place")]),
        (GUM, ["(1-creative%2Dwork-new)", "", "", ""], [Span(0, 1, "creative-work")]),
    ],
)  # fmt: skip
def test_conllu_brackets(make, head, marks, entities):
    words = zip("wxyz", (f"Entity={mark}" if mark else "" for mark in marks), strict=True)
    (sentence,) = read(make("a", rows(*words, head=head)))
    assert (sentence.words, sentence.entities) == (list("wxyz"), entities)


def test_conllu_discontinuous(make):
    marks = ["(1[1/2]-a(2[1/3]-b)", "1[1/2])", "(2[2/3]-b)", "(1[2/2]-a)", "(2[3/3]-b", "2[3/3])"]
    words = zip("uvwxyz", (f"Entity={mark}" for mark in marks), strict=True)
    (sentence,) = read(make("a", rows(*words, head=GUM)))
    assert sentence.entities == []
    assert sentence.discontinuous == [
        Discontinuous(((0, 2), (3, 4)), "a"),
        Discontinuous(((0, 1), (2, 3), (4, 6)), "b"),
    ]


def test_conllu_parts_that_touch_are_one_entity(make):
    marks = ["(1[1/2]-a", "1[1/2])", "(1[2/2]-a)", ""]
    words = zip("wxyz", (f"Entity={mark}" if mark else "" for mark in marks), strict=True)
    (sentence,) = read(make("a", rows(*words, head=GUM)))
    assert (sentence.entities, sentence.discontinuous) == ([Span(0, 3, "a")], [])


def test_conllu_multiword_tokens_and_empty_nodes(make):
    content = rows(
        ("I", "Entity=(1-per)"),
        ("2-3 don't", "SpaceAfter=No"),
        ("do", "Entity=(2-x"),
        ("n't", ""),
        ("3.1 go", "Entity=2)(3-y"),
        ("3.2 _", "Entity=(4-zero)"),
        (".", "Entity=3)"),
        head="# newdoc id = d\n# text = I don't.\n" + GUM,
    )
    first, second = read(make("a", content + rows(("Yes", ""), head="# newpar\n# text = Yes\n")))
    assert first.words == ["I", "do", "n't", "."]
    assert first.entities == [Span(0, 1, "per"), Span(1, 3, "x"), Span(3, 4, "y")]
    assert first.text is second.text and first.text == "I don't.\nYes"
    assert first.offsets == [(0, 1), (2, 4), (4, 7), (7, 8)]
    assert second.offsets == [(9, 12)]


@pytest.mark.parametrize(
    ("second", "text"),
    [
        ("# text = b c\n", "a b c"),
        ("# newpar id = 2\n# text = b c\n", "a\nb c"),
        ("# text = b\u00a0c\n", "a b\u00a0c"),
        ("", None),
        ("# text = bc d\n", None),
        ("# text = c b\n", None),
    ],
)
def test_conllu_text_of_a_document(make, second, text):
    content = rows(("a", ""), head="# newdoc id = d\n# text = a\n")
    content += rows(("b", ""), ("c", ""), head=second)
    found = read(make("a", content))
    assert [s.text for s in found] == [text, text]
    content = content.replace("# newdoc id = d\n", "").replace("a\t_", "a\t_", 1)
    assert [s.text for s in read(make("a", content))] == ["a", text and text[2:]]
    attached = content.replace("_\n", "SpaceAfter=No\n", 1).replace("# text", "# newdoc\n# text", 1)
    if text == "a b c":
        assert [(s.doc, s.text) for s in read(make("a", attached))] == [("doc-1", "ab c")] * 2


def test_conllu_writes_text_and_documents(tmp_path):
    text = "I don't.\n\nYes, now!He\nleft."
    document = TextDocument(text, [contiguous(2, 7, "a-b"), contiguous(0, 1, "c")], "d")
    corpus = to_sentences(document)
    assert len(corpus) == 3
    formats.write(tmp_path / "a.conllu", [*corpus, Sentence(["x"]), Sentence(["y"])])
    written = (tmp_path / "a.conllu").read_text().split("\n\n")
    assert written[0].splitlines() == [
        "# newdoc id = d",
        "# global.Entity = GRP-etype",
        "# sent_id = 1",
        "# text = I don't.",
        "1\tI\t_\t_\t_\t_\t_\t_\t_\tEntity=(2-c)",
        "2\tdo\t_\t_\t_\t_\t_\t_\t_\tEntity=(1-a%2Db|SpaceAfter=No",
        "3\tn't\t_\t_\t_\t_\t_\t_\t_\tEntity=1)|SpaceAfter=No",
        "4\t.\t_\t_\t_\t_\t_\t_\t_\t_",
    ]
    assert written[1].startswith("# sent_id = 2\n# newpar\n# text = Yes, now!\n")
    found = read(tmp_path / "a.conllu")
    assert [s.doc for s in found] == ["d", "d", "d", None, None]
    assert [s.text for s in found] == ["I don't.\nYes, now!He left."] * 3 + [None] * 2
    assert found[0].entities == [Span(0, 1, "c"), Span(1, 3, "a-b")]


def test_text_does_not_change_the_fingerprint(tmp_path):
    """White space in a text is not the corpus, and neither format keeps all of it."""
    text = "  He can't\nwalk."
    document = TextDocument(text, [Annotation(((2, 4), (11, 15)), "X")], "d")
    corpus = to_sentences(document)
    for name in ("conllu", "w2ner"):
        formats.write(tmp_path / name, corpus, name)
        found = read(tmp_path / name)
        assert found[0].discontinuous == corpus[0].discontinuous != []
        assert fingerprint(found) == fingerprint(corpus)
