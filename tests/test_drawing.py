"""Entities drawn as HTML and SVG."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import diffusionner.service
from diffusionner.corpus import Entities, Entity
from diffusionner.drawing.html import page
from diffusionner.drawing.lanes import assign, pieces
from diffusionner.errors import WriteError
from models import lively_model

TEXT = "the Bank of England\nin <b>London</b> & Köln 東京都"
FOUND = [
    Entity(4, 19, "ORG", 0.912, "Bank of England"),
    Entity(12, 19, "GPE", 0.5, "England"),
    Entity(26, 32, "GPE", 0.75, "London"),
    Entity(44, 47, "<i>", 0.25, "東京都"),
]
SYMPTOMS = "Muscle pain and stiffness."
DISCONTINUOUS = [
    Entity(0, 11, "SYM", 0.9, "Muscle pain"),
    Entity(0, 25, "SYM", 0.8, "Muscle … stiffness", gaps=((6, 16),)),
    Entity(12, 15, "X", 0.5, "and"),
]
NASTY = "</style><script>alert(1)</script> \0 \ud800 \x1b \uffff end"


class Shown(HTMLParser):
    """Collects the text and the elements of a drawing."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.captions: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in ("br", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "b":
            self.text += data
        elif self.open and self.open[-1] == "em":
            self.captions.append(data)


def test_html_has_the_text_and_the_entities():
    html = Entities.of(FOUND, TEXT, ["GPE", "ORG"]).to_html()
    shown = Shown(html)
    assert shown.text == TEXT.replace("\n", " ")
    assert sorted(shown.captions) == sorted(["ORG 0.91", "GPE 0.50", "GPE 0.75", "<i> 0.25"])
    assert "4 entities" in html
    assert '<i class="c1 s"' in html  # the second of the model's labels, beginning here


def test_text_is_escaped():
    drawn = Entities.of([Entity(0, 8, NASTY, 0.5, NASTY[:8])], NASTY, [])
    for html in (drawn.to_html(), drawn._repr_html_(), page([drawn])):
        assert {"script", "img"}.isdisjoint(Shown(html).tags)
    ElementTree.fromstring(drawn.to_svg())


def test_no_entities():
    for text in ("", "Nothing here.", " \n "):
        assert "no entities" in Entities.of([], text).to_html()
        ElementTree.fromstring(Entities.of([], text).to_svg())


def test_svg():
    svg = Entities.of(FOUND, TEXT, ["GPE", "ORG"]).to_svg()
    root = ElementTree.fromstring(svg)
    name = "{http://www.w3.org/2000/svg}"
    texts = [node.text for node in root.iter(f"{name}text")]
    assert "ORG 0.91" in texts and "<i> 0.25" in texts
    assert "the Bank of England" in texts
    assert len(list(root.iter(f"{name}rect"))) == 1 + len(FOUND)


def test_discontinuous_entities_in_html():
    """A bar under each fragment, a line under the gap, in one lane that is taken by both."""
    html = Entities.of(DISCONTINUOUS, SYMPTOMS).to_html()
    drawn = re.findall(r"<span><b>(.*?)</b>(.*?)</span>", html)
    assert [(text, re.findall(r'<i(?: class="([^"]*)")?', bars)) for text, bars in drawn] == [
        ("Muscle", ["c0 s", "c0 s e"]),
        (" ", ["c0", "c0 g"]),
        ("pain", ["c0 e", "c0 g"]),
        (" ", ["", "c0 g"]),
        ("and", ["c1 s e", "c0 g"]),
        (" ", ["", "c0 g"]),
        ("stiffness", ["", "c0 s e"]),
        (".", []),
    ]
    assert sorted(Shown(html).captions) == ["SYM 0.80", "SYM 0.90", "X 0.50"]
    assert "<li>SYM, score 0.80: Muscle … stiffness</li>" in html


def test_discontinuous_entities_in_svg():
    root = ElementTree.fromstring(Entities.of(DISCONTINUOUS[1:], SYMPTOMS).to_svg())
    name = "{http://www.w3.org/2000/svg}"
    _, line, *fragments, other = root.iter(f"{name}rect")
    assert [bar.get("height") for bar in (line, *fragments, other)] == ["1", "4", "4", "4"]
    assert len({bar.get("y") for bar in (other, *fragments)}) == 2  # two lanes
    left, width = (float(line.get(key) or 0) for key in ("x", "width"))
    assert left == float(fragments[0].get("x") or 0)
    assert left + width == sum(float(fragments[1].get(key) or 0) for key in ("x", "width"))
    (title,) = root.iter(f"{name}title")
    assert title.text == "SYM: Muscle … stiffness; X: and"


def test_discontinuous_entities_over_two_lines_in_svg():
    text = f"Muscle {'word ' * 20}stiffness"
    entity = Entity(0, len(text), "SYM", 0.8, gaps=((6, len(text) - 9),))
    root = ElementTree.fromstring(Entities.of([entity], text).to_svg())
    name = "{http://www.w3.org/2000/svg}"
    assert [bar.get("height") for bar in root.iter(f"{name}rect")][1:] == ["1", "4", "1", "4"]
    assert sum(node.text == "SYM 0.80" for node in root.iter(f"{name}text")) == 1


def test_page_has_a_strict_policy():
    html = page([Entities.of(FOUND, TEXT), Entities.of([], "Nothing.")])
    assert "default-src 'none'" in html
    assert html.count("<figure") == 2
    assert not re.search(r"<script|https?://|style=", html)


def test_files(tmp_path):
    drawn = Entities.of(FOUND, TEXT)
    drawn.to_html(tmp_path / "a.html")
    drawn.to_svg(tmp_path / "a.svg")
    assert (tmp_path / "a.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").startswith("<svg")
    with pytest.raises(WriteError, match="cannot be written"):
        drawn.to_html(tmp_path / "a.svg" / "a.html")


def test_what_models_return(encoder_folder):
    ner = lively_model(encoder_folder)
    text = "Ada Lovelace met Charles Babbage."
    found = ner(text)
    assert isinstance(found, list) and isinstance(found, Entities)
    assert found.text == text and found.labels == ner.labels
    assert Shown(found.to_html()).text == text
    again = pickle.loads(pickle.dumps(found))
    assert again == found and again.text == text
    words = text[:-1].split()
    (found,) = ner.predict_tokens([words])
    assert Shown(found.to_html()).text == " ".join(words)
    assert len(Shown(found.to_html()).captions) == len(found)
    given = ner.refine(words, [(0, 2)], only=True)
    assert Shown(given.entities.to_html()).text == " ".join(words)


def test_predict_writes_a_page(cli, folder, tmp_path):
    target = tmp_path / "found.html"
    done = cli("predict", "--model", folder, "--html", target, "Ada met <b>Charles</b>.", "Second.")
    assert done.status == 0
    html = target.read_text(encoding="utf-8")
    assert html.count("<figure") == 2 and "&lt;b&gt;" in html
    lines = tmp_path / "in.jsonl"
    lines.write_text('{"text": "Third."}\n{"tokens": ["Fourth", "one"]}\n')
    done = cli("predict", "--model", folder, "--input", lines, "--html", target)
    assert done.status == 0 and len(done.records) == 2
    assert "Fourth" in target.read_text(encoding="utf-8")


spans = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 12)).map(lambda s: (s[0], s[0] + s[1])),
    max_size=12,
)


@given(spans)
@settings(max_examples=100, deadline=None)
def test_entities_in_a_lane_do_not_overlap(found):
    lanes = assign(found)
    for i, (one, lane) in enumerate(zip(found, lanes, strict=True)):
        for other, its in zip(found[:i], lanes[:i], strict=True):
            assert lane != its or one[1] <= other[0] or other[1] <= one[0]
    if found:
        shortest = min(end - start for start, end in found)
        assert any(
            e - s == shortest and lane == 0 for (s, e), lane in zip(found, lanes, strict=True)
        )


@given(st.text("ab \n𝔘", max_size=50), spans)
@settings(max_examples=100, deadline=None)
def test_pieces_cover_the_text(text, found):
    entities = [Entity(s, e, "X") for s, e in found if e <= len(text)]
    entities += [e._replace(gaps=((e.start + 1, e.end - 1),)) for e in entities if e.end > e[0] + 2]
    cut = list(pieces(text, entities))
    assert "".join(text[start:end] for start, end in cut) == text
    edges = {0, len(text)} | {at for piece in cut for at in piece}
    assert {at for e in entities for fragment in e.fragments for at in fragment} <= edges


@pytest.mark.skipif(shutil.which("node") is None, reason="no node: install Debian's 'nodejs'")
def test_the_script_of_the_page_draws_the_same(tmp_path):
    """lanes.js must give the same layout as lanes.py."""
    script = Path(diffusionner.service.__file__).parent / "page" / "lanes.js"
    shutil.copy(script, tmp_path / "lanes.mjs")
    drawn: list[tuple[str, list[tuple[Any, ...]]]] = [
        (
            "the Bank of England in London, England",
            [(4, 19), (12, 19), (0, 19), (23, 38), (23, 29)],
        ),
        ("𝔘𝔫𝔦 of 日本 x\n\ny ", [(0, 3), (0, 9), (7, 9), (10, 11), (2, 8)]),
        ("one", []),
        ("𝔘𝔫 𝔦n, a b", [(0, 8, ((2, 3), (5, 7))), (3, 5), (6, 10, ((8, 9),))]),
    ]
    (tmp_path / "run.mjs").write_text(
        """import { assign, inUnits, pieces } from "./lanes.mjs";
        const cases = JSON.parse(process.argv[2]);
        console.log(JSON.stringify(cases.map(([text, spans]) => {
          const units = inUnits(text, spans);
          return [assign(units), pieces(text, units).map(([s, e]) => text.slice(s, e))];
        })));"""
    )
    cases = [
        (text, [Entity(s, e, "X", gaps=g[0] if g else ()) for s, e, *g in found])
        for text, found in drawn
    ]
    given = [(text, [entity.to_dict() for entity in found]) for text, found in cases]
    command = ["node", str(tmp_path / "run.mjs"), json.dumps(given)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    for (text, found), (lanes, cut) in zip(cases, json.loads(done.stdout), strict=True):
        assert lanes == assign([_in_units(text, (e.start, e.end)) for e in found])
        assert cut == [text[s:e] for s, e in pieces(text, found)]


def _in_units(text: str, span: tuple[int, int]) -> tuple[int, int]:
    start, end = (len(text[:at].encode("utf-16-le")) // 2 for at in span)
    return start, end
