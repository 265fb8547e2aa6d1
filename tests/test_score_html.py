"""The HTML page: no text of a corpus becomes code, and every entity is shown."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from diffusionner.corpus import Irregular, Sentence, Span
from diffusionner.evaluation.alignment import align
from diffusionner.evaluation.matching import Outcome
from diffusionner.evaluation.page import render
from diffusionner.evaluation.result import Evaluation
from diffusionner.evaluation.scorer import score_pairs

EVIL = "</script></style><script>alert(1)</script><img src=x onerror='alert(\"2\")'>&amp;"
VOID = {"meta", "input", "br"}


class Page(HTMLParser):
    """Every element with its attributes, and the text inside each kind of element."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(html)
        self.close()
        assert not self.open, "an element is not closed"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in set(self.open):
            self.texts[tag][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def evaluate(
    gold: list[Sentence], predicted: list[Sentence], name: str = "pred.jsonl"
) -> Evaluation:
    names = ("gold.jsonl", name)
    pairs, _ = align(gold, predicted, names)
    report = score_pairs(pairs)
    return Evaluation.from_report(report.compare_with(report, name, 20), names, resamples=20)


@pytest.fixture
def nasty() -> Page:
    """EVIL wherever a file can put it."""
    words = [EVIL, "met", EVIL]
    entities = [Span(0, 1, EVIL), Span(0, 3, "A"), Span(1, 2, "A")]
    gold = [Sentence(words, entities, doc=EVIL, where=EVIL)]
    found = [Sentence(words, [Span(0, 1, "A"), Span(0, 2, EVIL), Span(2, 3, EVIL)])]
    return Page(render(evaluate(gold, found, EVIL), 10))


def test_text_stays_text(nasty):
    assert len(nasty.all("script")) == len(nasty.all("style")) == 1
    assert not {"img", "iframe", "object", "link", "base", "svg"} & {t for t, _ in nasty.elements}
    for _, attributes in nasty.elements:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert set(attributes) & {"src", "href"} <= {"href"}
        assert re.fullmatch(r"#\w+", attributes.get("href") or "#x")
    assert nasty.texts["b"].count(EVIL) == 2  # the words
    assert nasty.texts["h3"] == [f"1 {EVIL} {EVIL}"]
    assert sum(EVIL in text for text in nasty.texts["i"]) == 3  # the labels of the lanes
    assert EVIL in nasty.texts["option"]
    assert EVIL in nasty.texts["th"]
    assert nasty.texts["title"] == [f"Scores of {EVIL}"]
    assert any(f"other: {EVIL};" in text for text in nasty.texts["p"])
    assert any(f"gold {EVIL}" in text for text in nasty.texts["li"])


def test_only_the_own_style_and_script_may_run(nasty):
    (policy,) = (a["content"] for a in nasty.all("meta") if "http-equiv" in a)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for name in ("style", "script"):
        (content,) = nasty.texts[name]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{name}-src"] == f"'sha256-{digest}'"
        assert "alert" not in content
        assert not re.search(r"https?:|url\(|@import|fetch\(|innerHTML", content)
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    names = [tag for tag, _ in nasty.elements]
    assert names.index("meta") < names.index("style") < names.index("script")


def lanes(html: str) -> list[tuple[list[str], str, list[str]]]:
    """For each word the marks and labels above it, from the top down, itself, and those below."""
    cells = re.findall(r'<span class="w[^"]*">(.*?)</span>', html)
    found = []
    for cell in cells:
        over, word, under = re.fullmatch(r"(.*)<b>(.*)</b>(.*)", cell).groups()
        segments = [re.findall(r"<i(?: class=\"([^\"]*)\")?>(.*?)</i>", s) for s in (over, under)]
        named = [[text or kinds for kinds, text in side] for side in segments]
        found.append((named[0], word, named[1]))
    return found


def test_nested_lanes():
    words = "the wife of the captain left".split()
    gold = [Sentence(words, [Span(0, 5, "P"), Span(3, 5, "P")])]
    found = [Sentence(words, [Span(0, 5, "P"), Span(3, 5, "Q"), Span(5, 6, "P")])]
    html = render(evaluate(gold, found), 10)
    assert lanes(html) == [
        (["✓ P", ""], "the", ["", "✓ P"]),
        (["c", ""], "wife", ["", "c"]),
        (["c", ""], "of", ["", "c"]),
        (["c", "≠ P"], "the", ["≠ Q", "c"]),
        (["c E", "t E"], "captain", ["t E", "c E"]),
        ([], "left", ["+ P"]),
    ]
    (article,) = Page(html).all("article")
    assert article["data-k"] == "c0 s0 t0 t1"
    # What hangs below is as deep as the style sheet knows.
    assert ".v2{--below:2}" in html
    assert ".v3{" not in html


def test_crossing_entities_stand_in_lanes_of_their_own():
    words = "a b c d".split()
    both = [Sentence(words, [Span(0, 3, "X"), Span(1, 4, "Y"), Span(3, 4, "Z")])]
    drawn = lanes(render(evaluate(both, both), 1))
    expected = [["✓ X"], ["✓ Y", "c"], ["c", "c E"], ["c E", "✓ Z"]]
    assert [over for over, _, _ in drawn] == expected
    assert [under[::-1] for _, _, under in drawn] == expected


def test_irregular_annotations_are_drawn_and_listed():
    words = "left and right lung cancers".split()
    parts, cut = Irregular(((0, 4), (15, 27)), "D"), Irregular(((16, 19),), "X")
    html = render(evaluate([Sentence(words, irregular=[parts, cut])], [Sentence(words)]), 1)
    assert [over for over, _, _ in lanes(html)] == [
        ["− D", ""], ["m gap", ""], ["m gap", ""], ["m S", "− X"], ["m E", ""],
    ]  # fmt: skip
    listed = Page(html).texts["li"]
    assert "− missed D left … lung cancers" in listed
    assert "− missed X ung" in listed


@pytest.mark.parametrize(
    ("most", "shown", "said"),
    [
        (9, [1, 2, 3, 4, 5, 6], "All 6 sentences are shown."),
        (3, [1, 2, 5], "3 of 6 sentences are shown; 0 of the other 3 have errors."),
        (1, [2], "1 of 6 sentences are shown; 1 of the other 5 have errors."),
        (0, [], "0 of 6 sentences are shown; 2 of the other 6 have errors."),
    ],
)
def test_sentences_with_errors_come_first(most, shown, said):
    gold = [Sentence(["a", "b"], [Span(0, 1, "A")]) for _ in range(6)]
    found = [Sentence(["a", "b"], [Span(0, 1, "B" if i in (1, 4) else "A")]) for i in range(6)]
    page = Page(render(evaluate(gold, found), most))
    assert [article["id"] for article in page.all("article")] == [f"s{n}" for n in shown]
    assert any(said in text for text in page.texts["p"])


def test_outcomes_are_distinguishable_without_colour():
    """Each has a mark of its own, in the legend, in the filter and on the entities."""
    words = ["w"] * 14
    gold = [Span(0, 1, "A"), Span(2, 3, "A"), Span(4, 6, "A"), Span(7, 9, "A"), Span(10, 11, "A")]
    found = [Span(0, 1, "A"), Span(2, 3, "B"), Span(4, 5, "A"), Span(8, 10, "B"), Span(12, 13, "B")]
    page = Page(render(evaluate([Sentence(words, gold)], [Sentence(words, found)]), 1))
    marks = {outcome.mark for outcome in Outcome}
    assert len(marks) == len(Outcome)
    on_entities = {text[0] for text in page.texts["i"] if len(text) > 1}
    assert on_entities == marks
    for mark in marks:
        assert mark in page.texts["i"]  # the legend
        assert sum(mark in text for text in page.texts["label"]) == 1
    assert all("(1)" in text for text in page.texts["label"][1:])
    boxes = [box["value"] for box in page.all("input")]
    keys = {key[0] for key in page.all("article")[0]["data-k"].split()}
    assert set(boxes) == keys


def test_odd_text_survives():
    words = ["👩‍👩‍👧‍👦", "שלום", "\u202eevil", "x" * 5000, "$policy", "\u2028", "${script}"]
    both = [Sentence(words, [Span(0, 7, "$title")])]
    page = Page(render(evaluate(both, both), 1))
    assert page.texts["b"] == words
    assert "✓ $title" in page.texts["i"]
