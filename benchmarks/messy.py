"""`python -m benchmarks messy`"""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from benchmarks.coarse import coarse
from benchmarks.compare_spacy import load_spacy
from diffusionner import DiffusionNER, formats
from diffusionner.corpus import Entity, Sentence, Span
from diffusionner.errors import DataError

Offsets = set[tuple[int, int, str]]  # start, end, type: characters of a text
Finder = Callable[[str], Offsets]
# spaCy's types as the labels of corpora.
SPACY_TYPES = {"PERSON": "PER", "ORG": "ORG", "GPE": "LOC", "LOC": "LOC", "FAC": "LOC"}
WIDTH = 72
LISTED = 120  # names in a long list


class Shape(NamedTuple):
    """Sentences written in one way, with the places of their gold entities."""

    name: str
    text: str
    gold: Offsets
    pieces: list[tuple[int, str]]  # offset and text of what is a sentence or an item by itself


class Writer:
    """Puts words into a text and keeps the places of the entities."""

    def __init__(self) -> None:
        self.text = ""
        self.gold: Offsets = set()
        self.pieces: list[tuple[int, str]] = []

    def add(self, words: Sequence[str], entities: Sequence[Span], separator: str) -> None:
        """Add a sentence; a word may contain the space or line break before it."""
        if self.text:
            self.text += separator
        start, offsets, piece = len(self.text), [], ""
        for number, word in enumerate(words):
            piece += "" if not number or word[0].isspace() else " "
            bare = word.lstrip()
            piece += word[: len(word) - len(bare)]
            offsets.append((start + len(piece), start + len(piece) + len(bare)))
            piece += bare
        self.text += piece
        self.pieces.append((start, piece))
        self.gold |= {(offsets[s.start][0], offsets[s.end - 1][1], s.label) for s in entities}

    def shape(self, name: str) -> Shape:
        return Shape(name, self.text, self.gold, self.pieces)


def unpunctuated(sentence: Sentence) -> Sentence:
    """Drop words without a letter or digit, from the entities too."""
    kept = [i for i, word in enumerate(sentence.words) if any(map(str.isalnum, word))]
    place = {old: new for new, old in enumerate(kept)}
    entities = []
    for start, end, label in sentence.entities:
        inside = [place[i] for i in range(start, end) if i in place]
        if inside:
            entities.append(Span(inside[0], inside[-1] + 1, label))
    return Sentence([sentence.words[i] for i in kept], entities)


def lower(sentence: Sentence) -> Sentence:
    return Sentence([word.lower() for word in sentence.words], sentence.entities)


def joined(name: str, sentences: Sequence[Sentence], separator: str) -> Shape:
    writer = Writer()
    for sentence in sentences:
        writer.add(sentence.words, sentence.entities, separator)
    return writer.shape(name)


def wrapped(name: str, sentences: Sequence[Sentence], per_paragraph: int = 5) -> Shape:
    """Wrap paragraphs of a few sentences at WIDTH columns."""
    writer = Writer()
    for first in range(0, len(sentences), per_paragraph):
        some = sentences[first : first + per_paragraph]
        text = " ".join(word for s in some for word in s.words)
        lines = textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
        breaks = set(accumulate(len(line.split()) for line in lines))  # words after a line break
        word = 0
        for number, sentence in enumerate(some):
            broken = []
            for one in sentence.words:
                broken.append("\n" + one if word in breaks else one)
                word += 1
            at_break = bool(broken) and broken[0][0] == "\n"
            if at_break:
                broken[0] = broken[0][1:]
            separator = "\n\n" if not number else "\n" if at_break else " "
            writer.add(broken, sentence.entities, separator)
    shape = writer.shape(name)
    return shape._replace(pieces=[(at, piece.replace("\n", " ")) for at, piece in shape.pieces])


def mentions(sentences: Sequence[Sentence]) -> list[Sentence]:
    """Return distinct gold mentions, each as a sentence of its own."""
    found = {
        (tuple(s.words[start:end]), label) for s in sentences for start, end, label in s.entities
    }
    # By their last letters: the same in every run, and types and first names are mixed.
    chosen = sorted(found, key=lambda one: " ".join(one[0])[::-1])
    return [Sentence(list(words), [Span(0, len(words), label)]) for words, label in chosen]


def table(name: str, items: Sequence[Sentence]) -> Shape:
    """Write one mention a row, between a number and a remark."""
    writer = Writer()
    for number, item in enumerate(items):
        cell = io.StringIO()
        csv.writer(cell).writerow([" ".join(item.words)])
        if cell.getvalue().startswith('"'):
            continue
        start = len(writer.text) + (1 if writer.text else 0)
        row = f"{number + 1},{' '.join(item.words)},{1900 + number},open"
        writer.text += ("\n" if writer.text else "") + row
        at = start + len(f"{number + 1},")
        writer.gold.add((at, at + len(" ".join(item.words)), item.entities[0].label))
        writer.pieces.append((at, " ".join(item.words)))
    return writer.shape(name)


def shapes(sentences: Sequence[Sentence]) -> Iterator[Shape]:
    """Yield the sentences in all shapes."""
    bare = [one for one in map(unpunctuated, sentences) if one.words]
    yield joined("stretch", bare, " ")
    yield joined("stretch, lower case", [lower(s) for s in bare], " ")
    yield joined("one a line", bare, "\n")
    yield joined("prose", sentences, " ")
    yield wrapped(f"wrapped at {WIDTH}", sentences)
    names = mentions(bare)
    for size in (12, 28):
        for first in range(0, min(len(names), 3 * size), size):
            if len(names) >= first + size:
                label = f"comma list of {size}, no. {first // size + 1}"
                yield joined(label, names[first : first + size], ", ")
    yield joined("names one a line", names[:LISTED], "\n")
    yield table("CSV", names[:LISTED])


def our_finder(ner: DiffusionNER, types: set[str]) -> Finder:
    def find(text: str) -> Offsets:
        found: list[Entity] = ner(text)
        return {(e.start, e.end, coarse(e.label)) for e in found if coarse(e.label) in types}

    return find


def spacy_finder(folder: str, types: set[str]) -> Finder:
    nlp = load_spacy(folder)
    nlp.max_length = 10**8

    def find(text: str) -> Offsets:
        named = ((e.start_char, e.end_char, SPACY_TYPES.get(e.label_)) for e in nlp(text).ents)
        return {(start, end, label) for start, end, label in named if label and label in types}

    return find


def f1(found: Offsets, gold: Offsets) -> float:
    return 200 * len(found & gold) / max(1, len(found) + len(gold))


def messy(
    model: Annotated[str, typer.Option(help="Installed model or folder.")],
    data: Annotated[Path, typer.Option(help="Corpus with gold entities; dev, never test.")],
    sentences: Annotated[int, typer.Option(help="Use the first N sentences.")] = 400,
    spacy: Annotated[str | None, typer.Option(help="spaCy's pipeline to compare with.")] = None,
    backend: Annotated[str | None, typer.Option(help="torch or onnx.")] = None,
) -> None:
    """Compare what is found in untidy text with what is found sentence by sentence.

    The same sentences are written in several shapes: one stretch without punctuation, the same in
    lower case, one a line, prose, wrapped prose; their names as lists and as CSV. "alone" is what
    is found if each sentence or item is a text of its own.
    """
    ner = DiffusionNER.from_pretrained(model, device="cpu", backend=backend)
    read = formats.read(data)
    types = {span.label for s in read for span in s.entities} & set(map(coarse, ner.labels))
    if not types:
        raise DataError(f"{data}: none of its labels is one of the model's; map them first")
    chosen = [
        Sentence(s.words, [e for e in s.entities if e.label in types]) for s in read[:sentences]
    ]
    finders = {"model": our_finder(ner, types)}
    if spacy is not None:
        finders["spaCy"] = spacy_finder(spacy, types)
    print(f"{len(chosen)} sentences, types {', '.join(sorted(types))}")
    print(f"{'':32}{'':7}{'gold':>6}{'alone':>7}{'found':>7}{'share':>7}{'F1 alone':>10}{'F1':>7}")
    for shape in shapes(chosen):
        for name, find in finders.items():
            alone = {
                (at + start, at + end, label)
                for at, piece in shape.pieces
                for start, end, label in find(piece)
            }
            found = find(shape.text)
            share = len(found) / len(alone) if alone else float("nan")
            print(
                f"{shape.name:32}{name:7}{len(shape.gold):6}{len(alone):7}{len(found):7}"
                f"{share:7.0%}{f1(alone, shape.gold):10.1f}{f1(found, shape.gold):7.1f}",
                flush=True,
            )
    repeated = "Paris " * 2000
    for name, find in finders.items():
        print(f"{'Paris, 2,000 times':32}{name:7}{2000:6}{2000:7}{len(find(repeated)):7}")
