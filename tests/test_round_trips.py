"""From any format to any other and back: nothing that both can hold is lost or changed.

Formats that only keep a text (`SPLITTING`) have their words cut anew when they are read. They are
read with words=spaces, and only words without white space, a sentence a line, can come back.
"""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import pairwise, permutations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diffusionner import formats
from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats import FORMATS, Format
from diffusionner.formats.compatibility import make_compatible
from diffusionner.formats.documents import (
    Annotation,
    TextDocument,
    character_annotations,
    to_sentences,
)

WRITABLE = [name for name, format in FORMATS.items() if format.write is not None]
SPLITTING = {"brat", "doccano", "labelstudio"}
UNORDERED = {"brat"}  # its documents are files, in the order of their names, and all have one

AWKWARD = (
    *("#", "#tag", "-DOCSTART-", "O", '"', "[", "{", "B-PER", "1", "2", "_", "-", "(", ")", "*"),
    *("\\", "'", ",", "a,b", "|", "<b>", "&amp;", "/", "//", "=", "null", "true", "-LRB-", "%20"),
    "e\u0301",  # a letter with a combining mark
    "\u0301",  # the mark alone
    "\U0001f469\u200d\U0001f469\u200d\U0001f467",  # a family, of three and two joiners
    *("\U0001d518", "שלום", "\u200fא", "中国", "ﬁ", "İ", "\u200b", "\u00ad", "\ufeff", "\ufffd"),
    *("a\u00a0b", "a\u2028b", "a\u0085b", "a\u3000b", "\u00a0", "a\x1fb", "a\x00b", "a\rb", "a b"),
)
LABELS = ("PER", "LOC", "creative-work", "Ä.1", "O")
DOCUMENTS = (None, "d1", "nw/2", "Köln 3")
COMMON = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@cache
def missing(name: str) -> str | None:
    """Why a format cannot be used here: its package really is not installed."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            formats.write(Path(folder) / "out", [Sentence(["a"])], name)
        except DataError as error:
            needed = re.search(r"needs the package '(\w+)'", str(error))
            if needed is None or importlib.util.find_spec(needed[1]) is not None:
                raise
            return str(error)
    return None


def skip_without_package(*names: str) -> None:
    for name in names:
        if reason := missing(name):
            pytest.skip(reason)


# --- What is written ------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """Constraints on generated text: the chosen formats must be able to represent it."""

    splitting: bool
    chosen: tuple[Format, ...]

    @classmethod
    def of(cls, *names: str) -> Kind:
        return cls(bool(SPLITTING.intersection(names)), tuple(FORMATS[name] for name in names))

    def word(self, word: str) -> bool:
        if self.splitting and (re.search(r"\s", word) or word.isspace()):
            return False
        return all(format.capabilities.word(word) for format in self.chosen)


@cache
def lines(kind: Kind) -> st.SearchStrategy[list[list[str]]]:
    """The words of the sentences of a document."""
    some = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4)
    word = st.one_of(st.sampled_from(AWKWARD), st.sampled_from(("a", "the", "Köln")), some)
    sentence = st.lists(word.filter(kind.word), min_size=1, max_size=6)
    return st.lists(sentence, min_size=1, max_size=3)


@st.composite
def annotations(draw: st.DrawFn, offsets: Sequence[tuple[int, int]], text: str) -> list[Annotation]:
    """Runs of words, of every kind of overlap; runs in parts; and runs cut through a word."""
    last = len(offsets) - 1
    at = st.integers(0, last)
    found = []
    for _ in range(draw(st.integers(0, 4))):
        first, end = sorted((draw(at), draw(at)))
        parts = [(first, end)]
        if draw(st.integers(0, 4)) == 0 and end + 2 <= last:
            begin = draw(st.integers(end + 2, last))
            parts.append((begin, draw(st.integers(begin, last))))
        characters = [(offsets[one][0], offsets[other][1]) for one, other in parts]
        # The words before the next part might all be invisible: then it is not in parts.
        if any(not text[a[1] : b[0]].strip() for a, b in pairwise(characters)):
            continue
        if draw(st.integers(0, 4)) == 0:
            start, stop = characters[-1]
            if stop - start > 1:
                characters[-1] = draw(st.integers(start, stop - 1)), stop
        found.append(Annotation(tuple(characters), draw(st.sampled_from(LABELS))))
    return found


@st.composite
def document(draw: st.DrawFn, kind: Kind) -> list[Sentence]:
    """A document's sentences, with or without a text."""
    doc = draw(st.sampled_from(DOCUMENTS))
    if draw(st.booleans()):
        return draw(document_of_words(kind, doc))
    within = st.sampled_from(
        (" ", "  ", "\t", "\u00a0", "\u2028", *([] if kind.splitting else [""]))
    )
    between = st.sampled_from(("\n", " \n", "\r\n", "\n\n", *([] if kind.splitting else [" "])))
    edge = st.sampled_from(("", " ", "\n"))
    text = draw(edge)
    sentences: list[list[tuple[int, int]]] = []
    for words in draw(lines(kind)):
        text += draw(between) if sentences else ""
        offsets = []
        for word in words:
            text += draw(within) if offsets else ""
            offsets.append((len(text), len(text) + len(word)))
            text += word
        sentences.append(offsets)
    text += draw(edge)
    whole = TextDocument(text, [], doc, "here")
    whole.annotations = draw(annotations([pair for offsets in sentences for pair in offsets], text))
    # Sentences that are joined by an annotation that not all formats hold would come back parted.
    fitted = fit_all(to_sentences(whole, sentences=sentences), kind)
    whole.annotations = [annotation for s in fitted for annotation in character_annotations(s)]
    return to_sentences(whole, sentences=sentences)


@st.composite
def document_of_words(draw: st.DrawFn, kind: Kind, doc: str | None) -> list[Sentence]:
    sentences = []
    for words in draw(lines(kind)):
        _, offsets = Sentence(words).characters()
        text = " ".join(words)
        whole = TextDocument(text, draw(annotations(offsets, text)), doc, "here")
        (sentence,) = to_sentences(whole, sentences=[offsets])
        sentences.append(replace(sentence, text=None, offsets=None))
    return fit_all(sentences, kind)


def fit_all(sentences: list[Sentence], kind: Kind) -> list[Sentence]:
    """Return the part of the sentences that all formats represent."""
    for format in kind.chosen:
        sentences = [make_compatible(sentence, format, lossy=True) for sentence in sentences]
    return sentences


@st.composite
def corpora(draw: st.DrawFn, kind: Kind) -> list[Sentence]:
    """A few documents, each with a name of its own or none."""
    found: list[Sentence] = []
    for number in range(draw(st.integers(1, 3))):
        for sentence in draw(document(kind)):
            if sentence.doc is not None:
                sentence.doc += f".{number}"
            found.append(sentence)
    return found


# --- How it is compared ---------------------------------------------------------------------


def position(sentence: Sentence, parts: tuple[tuple[int, int], ...]) -> tuple[tuple[int, ...], ...]:
    """Parts by words and the characters within them: the same with any space between words."""
    _, offsets = sentence.characters()
    found = []
    for start, end in parts:
        first = max(i for i, (begin, _) in enumerate(offsets) if begin <= start)
        last = min(i for i, (_, stop) in enumerate(offsets) if end <= stop)
        found.append((first, start - offsets[first][0], last, end - offsets[last][1]))
    return tuple(found)


def essence(sentence: Sentence) -> tuple[list[str], list[object], ...]:
    irregular = {(position(sentence, parts), label) for parts, label in sentence.irregular}
    sets = (set(sentence.entities), set(sentence.discontinuous), irregular)
    return sentence.words, *map(sorted, sets)


def assert_same(found: list[Sentence], expected: list[Sentence], names: Sequence[str]) -> None:
    views = [[repr(essence(s)) for s in sentences] for sentences in (found, expected)]
    if UNORDERED.intersection(names):
        assert sorted(views[0]) == sorted(views[1])
    else:
        assert views[0] == views[1]
        assert [s.doc for s in found] == [s.doc for s in expected]
    if all(FORMATS[name].capabilities.text for name in names):
        # A sentence without a text may get one: its words, joined by spaces.
        kept = Counter(repr((s.text, s.offsets)) for s in expected if s.text is not None)
        assert kept <= Counter(repr((s.text, s.offsets)) for s in found)


def there_and_back(sentences: list[Sentence], names: Sequence[str]) -> None:
    """Write and read in each format after the other; each time all must be as it was."""
    current = sentences
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(names):
            path = Path(folder) / f"{number}{''.join(FORMATS[name].extensions[:1])}"
            formats.write(path, current, name)
            spaces = any(field.name == "words" for field in fields(FORMATS[name].options))
            current = formats.read(path, f"{name}:words=spaces" if spaces else name)
            assert_same(current, sentences, names[: number + 1])


@pytest.mark.parametrize("name", WRITABLE)
def test_a_format_gives_back_what_it_holds(name):
    skip_without_package(name)

    @settings(COMMON, max_examples=40)
    @given(corpora(Kind.of(name)))
    def check(sentences):
        there_and_back(sentences, [name])

    check()


@pytest.mark.parametrize("name", WRITABLE)
def test_awkward_words_come_back(name):
    """All of them, which no small number of examples would have."""
    skip_without_package(name)
    words = [word for word in AWKWARD if Kind.of(name).word(word)]
    assert len(words) > len(AWKWARD) / 2
    alone = [Sentence([word], [Span(0, 1, "X")], "d") for word in words]
    spans = [Span(n, n + 1, "X") for n in range(len(words))]
    there_and_back([*alone, Sentence(words, spans)], [name])


@pytest.mark.parametrize(("one", "other"), list(permutations(WRITABLE, 2)))
def test_from_one_format_to_another_and_back(one, other):
    skip_without_package(one, other)

    @settings(COMMON, max_examples=6)
    @given(corpora(Kind.of(one, other)))
    def check(sentences):
        there_and_back(sentences, [one, other, one])

    check()


@pytest.mark.parametrize("name", WRITABLE)
def test_what_is_written_is_known_again(name):
    skip_without_package(name)

    @settings(COMMON, max_examples=20)
    @given(corpora(Kind.of(name)), st.booleans())
    def check(sentences, named):
        if named:
            sentences = [replace(s, doc=s.doc or "d") for s in sentences]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "corpus"  # with no help from an extension
            formats.write(path, sentences, name)
            assert formats.detect(path).name == name

    check()


ODD_NAMES = st.one_of(
    st.sampled_from(
        ("", " ", "a b", "a\tb", "a\nb", "a\rb", " a", "a ", "\u00a0", "-", "_", "(", ")", "|")
    ),
    st.sampled_from(("B-PER", "a/../b", "..", ".", "/", "a/", "x" * 300, "a;b", "%2D", "=", "*")),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5),
)


@pytest.mark.parametrize("name", WRITABLE)
def test_odd_names_come_back_or_are_refused(name):
    """Names of labels and documents are free; a file must not break on them unseen."""
    skip_without_package(name)

    @settings(COMMON, max_examples=40)
    @given(ODD_NAMES.filter(str.strip), ODD_NAMES)
    def check(label, doc):
        sentences = [
            Sentence(["a", "b"], [Span(0, 1, label), Span(0, 2, "X")], doc or None),
            Sentence(["c"], [Span(0, 1, "Y")], "z"),
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "corpus"
            try:
                formats.write(path, sentences, name)
            except DataError:
                assert not list(Path(folder).iterdir())
                return
            found = formats.read(path, name)
            names = [s.doc for s in found]
        found.sort(key=lambda s: len(s.words), reverse=True)
        assert [set(s.entities) for s in found] == [set(s.entities) for s in sentences]
        if name not in UNORDERED:
            assert names == [s.doc for s in sentences]

    check()
