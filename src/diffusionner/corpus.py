"""What flows through everything: entities, sentences and the label set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from diffusionner.errors import DataError


class Entity(NamedTuple):
    """An entity found in a text (character offsets) or in a list of words (word offsets).

    `end` is exclusive. `score` is the probability that it is right, as measured on dev; of a model
    without such a calibration, the mean of the probabilities of the left boundary, the right
    boundary and the type (the paper's sum divided by three). `votes` is how many of the denoised
    spans ended at its boundaries.
    """

    start: int
    end: int
    label: str
    score: float = 1.0
    text: str = ""
    votes: int = 1


class Entities(list[Entity]):
    """The entities of one text, or of one sentence given as words; shown as HTML in notebooks.

    A list that also keeps the `text` (or words) and the model's `labels`, whose order determines
    the colours of a drawing.
    """

    def __init__(
        self,
        entities: Iterable[Entity] = (),
        text: str | Sequence[str] = "",
        labels: Sequence[str] = (),
    ) -> None:
        super().__init__(entities)
        self.text = text
        self.labels = list(labels)

    def characters(self) -> tuple[str, list[Entity]]:
        """Return the text and the entities with character offsets; words are joined by spaces."""
        if isinstance(self.text, str):
            return self.text, list(self)
        text, offsets = join_words(self.text)
        return text, [
            entity._replace(start=offsets[entity.start][0], end=offsets[entity.end - 1][1])
            for entity in self
        ]

    def to_html(self, path: str | Path | None = None) -> str:
        """Return an HTML fragment that draws the entities; with a path, also write a page there."""
        from diffusionner.drawing import html

        if path is not None:
            html.write_page(Path(path), [self])
        return html.fragment([self])

    def to_svg(self, path: str | Path | None = None) -> str:
        """Return an SVG image that draws the entities; with a path, also write it there."""
        from diffusionner.drawing import html, svg

        image = svg.picture(*self.characters(), self.labels)
        if path is not None:
            html.write(Path(path), image)
        return image

    def _repr_html_(self) -> str:
        return self.to_html()


class Span(NamedTuple):
    """A labelled run of words, `end` exclusive: what corpora hold and what is scored."""

    start: int
    end: int
    label: str


class Irregular(NamedTuple):
    """An annotation that no run of whole words is: in several parts, or cut through a word.

    Parts are characters of the sentence's text, `end` exclusive, in order. It is kept and
    reported, but the model, which predicts runs of words, neither learns nor finds it.
    """

    parts: tuple[tuple[int, int], ...]
    label: str


@dataclass(slots=True)
class Sentence:
    """Words with their entities; `doc` ties neighbouring sentences together as context.

    Where the source has a text, `text` is the whole of the document's (one string that all its
    sentences share) and `offsets` says which of its characters each word is. `types` are the labels
    that the annotators looked for: of others, that none is marked says nothing.
    """

    words: list[str]
    entities: list[Span] = field(default_factory=list)
    doc: str | None = None
    where: str = ""  # "file:line", for messages
    text: str | None = None
    offsets: list[tuple[int, int]] | None = None
    irregular: list[Irregular] = field(default_factory=list)
    types: tuple[str, ...] | None = None  # None: all there are

    def check(self) -> None:
        """Raise DataError when the sentence is empty or an entity does not fit it."""
        place = self.where or "sentence"
        if not self.words:
            raise DataError(f"{place}: the sentence has no words; remove the line")
        for start, end, label in self.entities:
            if not 0 <= start < end <= len(self.words):
                raise DataError(
                    f"{place}: entity {label} [{start}, {end}) lies outside its sentence of "
                    f"{len(self.words)} words; offsets count words from 0, end exclusive"
                )

    def characters(self) -> tuple[str, list[tuple[int, int]]]:
        """The text and the words' characters in it; without a text, words joined by spaces."""
        if self.text is not None and self.offsets is not None:
            return self.text, self.offsets
        return join_words(self.words)


def join_words(words: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Return the words joined by spaces, and the (start, end) characters of each."""
    starts = accumulate((len(word) + 1 for word in words), initial=0)
    offsets = [(start, start + len(word)) for start, word in zip(starts, words, strict=False)]
    return " ".join(words), offsets


def is_annotated(sentence: Sentence, label: str) -> bool:
    """Whether an entity of that label would have been marked."""
    return sentence.types is None or label in sentence.types


def collect_labels(sentences: Iterable[Sentence]) -> list[str]:
    """Every label in use, sorted, so that the order does not depend on the file's."""
    return sorted({span.label for sentence in sentences for span in sentence.entities})


def check_labels(sentences: Sequence[Sentence], labels: Sequence[str]) -> None:
    """Raise DataError at the first entity whose label the model does not know."""
    known = set(labels)
    for sentence in sentences:
        for span in sentence.entities:
            if span.label not in known:
                raise DataError(
                    f"{sentence.where or 'sentence'}: unknown label '{span.label}'; "
                    f"the model knows: {', '.join(labels)}"
                )
