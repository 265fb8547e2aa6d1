"""Contents to attack with: every word and label occurs once and can be told from the bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import reproduce.formats  # noqa: F401 - registers the formats of research corpora
from diffusionner.corpus import Discontinuous, Irregular, Sentence, Span
from diffusionner.formats import FORMATS

SPLITTING = {"brat", "doccano", "labelstudio", "ace"}  # their words are cut from a text
BY_DOCUMENT = {"brat", "ace"}  # their documents are files
ODD = (
    *("", "", "", "", "é", "#", '"', "'", "\\", "/", ",", ";", "|", "<", "&", "=", "%20", "(", "*"),
    *("\u00a0", "\u2028", "\u0085", "\u3000", "\u200b", "\ufeff", "\x1f", "\x00", "\x0b", "\x7f"),
    *(
        "\U0001f469\u200d\U0001f467",
        "e\u0301",
        "\u200fא",
        "中",
        "-DOCSTART-",
        "B-PER",
        "O",
        " ",
        "\t",
    ),
    *("\r", "\n"),
)
LABELS = ("", "", "", "-x", " x", '"', "\\", "é", "/", ":", "\u00a0x", "|", ")", "\t", "\n")

Content = tuple[tuple[str, ...], frozenset[Span], str | None, frozenset[Discontinuous | Irregular]]


def content_of(sentence: Sentence) -> Content:
    others: list[Discontinuous | Irregular] = [*sentence.discontinuous, *sentence.irregular]
    return tuple(sentence.words), frozenset(sentence.entities), sentence.doc, frozenset(others)


def make_corpus(name: str, chance: Random) -> list[Sentence]:
    """Return a few documents of one sentence; every word and every label occurs once."""
    capabilities = FORMATS[name].capabilities
    plain = name in ("ace", "genia")

    def odd(token: str, choices: Sequence[str], accepts: Callable[[str], Any]) -> str:
        text = chance.choice(
            (token, token, token + chance.choice(choices), chance.choice(choices) + token)
        )
        space = name in SPLITTING and re.search(r"\s", text)
        return token if plain or space or not accepts(text) else text

    corpus = []
    for number in range(chance.randint(2, 6)):
        size = chance.choice((1, 2, 3, 5, 8)) if chance.random() < 0.99 else 2000
        words = [odd(f"w{number}q{i}z", ODD, capabilities.word) for i in range(size)]
        if chance.random() < 0.01:
            words[0] += "x" * 100_000
        entities: list[Span] = []
        for i in range(chance.choice((0, 1, 1, 2, 3))):
            a, b = sorted((chance.randrange(size), chance.randrange(size)))
            clash = [e for e in entities if e.start <= b and a < e.end]
            nested = all(e.start <= a and b < e.end and e[:2] != (a, b + 1) for e in clash)
            if clash and (name == "genia" or not nested):
                continue
            label = odd(f"L{number}q{i}z", LABELS, capabilities.label)
            if name == "genia":
                label = chance.choice(("DNA", "RNA", "cell_line", "cell_type", "protein"))
            elif name == "conllu" or (name == "conll" and label.strip() != label):
                label = f"L{number}q{i}z"
            entities.append(Span(a, b + 1, label))
        corpus.append(Sentence(words, entities, f"d{number}q0z"))
    return corpus
