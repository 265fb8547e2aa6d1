"""Data types shared by all packages: entities, spans and sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, starmap
from pathlib import Path
from typing import Any, NamedTuple

from diffusionner.errors import DataError
from diffusionner.files import write_bytes

MAX_LISTED = 200  # labels in a message
ELLIPSIS = " … "  # between the fragments of an entity's text
MAX_FRAGMENTS = 4  # of an entity that a model can predict

Offsets = tuple[tuple[int, int], ...]  # (start, end) pairs in order; `end` is exclusive


class Entity(NamedTuple):
    """A predicted entity with character offsets (texts) or word offsets (lists of words).

    `end` is exclusive. `score` is the probability that the entity is correct, calibrated on dev
    data. Without calibration it is the mean of the probabilities of the left boundary, the right
    boundary and the type (the paper's sum divided by three). `votes` is the number of denoised
    spans that ended at its boundaries. `gaps` are the parts between `start` and `end` that do not
    belong to a discontinuous entity; its `text` joins the fragments by " … ".
    """

    start: int
    end: int
    label: str
    score: float = 1.0
    text: str = ""
    votes: int = 1
    gaps: Offsets = ()

    @property
    def fragments(self) -> Offsets:
        """The (start, end) of each fragment; a contiguous entity is its only fragment."""
        return split_at_gaps(self.start, self.end, self.gaps)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that commands and the service write; `fragments` if there are gaps."""
        fields = {name: getattr(self, name) for name in ("start", "end", "label", "score", "text")}
        return fields | {"fragments": list(map(list, self.fragments))} if self.gaps else fields


class Coverage(NamedTuple):
    """Parts of a text that were read, and where it was split; (start, end) offsets, end exclusive.

    Offsets count characters of a text, or words of a sentence given as words. White space and
    characters that are never visible (control characters, zero-width and directional marks) are
    not counted as unread. A symbol that is not in the model's vocabulary is read as "unknown".
    """

    unread: list[tuple[int, int]]  # in order; of words, those not read to their end
    sentences: list[tuple[int, int]]
    windows: list[tuple[int, int]]  # what is read at once; windows of a long sentence overlap


class Entities(list[Entity]):
    """The entities of one text, or of one sentence given as words; shown as HTML in notebooks.

    A list that also keeps the `text` (or words) and the model's `labels`, whose order determines
    the colours of a drawing.
    """

    text: str | Sequence[str] = ""
    labels: Sequence[str] = ()
    measure: Callable[[str | Sequence[str]], Coverage] | None = None  # of the model

    @property
    def coverage(self) -> Coverage:
        """Parts of the text that were read, and where it was split; computed on access.

        Copies do not have it: AttributeError.
        """
        if self.measure is None:
            raise AttributeError(
                "these entities were not just predicted by a model, so what it read is not known; "
                "ask for the coverage before they are copied or sent to another process"
            )
        return self.measure(self.text)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is copied and pickled: the model's tokenizer is not."""
        return {"text": self.text, "labels": self.labels}

    @classmethod
    def of(
        cls, entities: Iterable[Entity], text: str | Sequence[str], labels: Sequence[str] = ()
    ) -> Entities:
        """Return the entities together with their text and the labels of the model."""
        result = cls(entities)
        result.text, result.labels = text, labels
        return result

    def characters(self) -> tuple[str, list[Entity]]:
        """Return the text and the entities with character offsets; words are joined by spaces."""
        if isinstance(self.text, str):
            return self.text, list(self)
        text, offsets = join_words(self.text)

        def characters(start: int, end: int) -> tuple[int, int]:
            return offsets[start][0], offsets[end - 1][1]

        moved = []
        for entity in self:
            start, end = characters(entity.start, entity.end)
            gaps = gaps_between(tuple(starmap(characters, entity.fragments)))
            moved.append(entity._replace(start=start, end=end, gaps=gaps))
        return text, moved

    def to_html(self, path: str | Path | None = None) -> str:
        """Return an HTML fragment that draws the entities; with a path, also write a page there."""
        from diffusionner.drawing import html

        if path is not None:
            html.write_page(Path(path), [self])
        return html.fragment([self])

    def to_svg(self, path: str | Path | None = None) -> str:
        """Return an SVG image that draws the entities; with a path, also write it there."""
        from diffusionner.drawing import svg

        image = svg.picture(*self.characters(), self.labels)
        if path is not None:
            write_bytes(Path(path), image.encode())
        return image

    def _repr_html_(self) -> str:
        return self.to_html()


class Span(NamedTuple):
    """A labelled span of words in a corpus or prediction; `end` is exclusive."""

    start: int
    end: int
    label: str

    @property
    def fragments(self) -> Offsets:
        """The span as the only fragment of an entity."""
        return ((self.start, self.end),)


class Discontinuous(NamedTuple):
    """An entity of several fragments, which are spans of words in order that do not touch."""

    fragments: Offsets
    label: str

    @property
    def start(self) -> int:
        return self.fragments[0][0]

    @property
    def end(self) -> int:
        return self.fragments[-1][1]

    @property
    def gaps(self) -> Offsets:
        """The words between the fragments."""
        return gaps_between(self.fragments)


class Irregular(NamedTuple):
    """An annotation that does not align with token boundaries.

    `parts` are character offsets in the sentence's text, in order; there are several if the
    annotation is also discontinuous. Such annotations are kept and reported, but models predict
    whole words and ignore them.
    """

    parts: Offsets
    label: str


@dataclass(slots=True)
class Sentence:
    """Words with their entities; neighbouring sentences with the same `doc` are context.

    If the source has running text, `text` is the text of the whole document (one string shared by
    its sentences) and `offsets` are the characters of each word in it. `types` lists the labels
    that were annotated; the absence of other labels carries no information. `entities` are
    contiguous; the others are in `discontinuous`.
    """

    words: list[str]
    entities: list[Span] = field(default_factory=list)
    doc: str | None = None
    where: str = ""  # "file:line", for error messages
    text: str | None = None
    offsets: list[tuple[int, int]] | None = None
    irregular: list[Irregular] = field(default_factory=list)
    types: tuple[str, ...] | None = None  # None: all
    discontinuous: list[Discontinuous] = field(default_factory=list)

    @property
    def all_entities(self) -> list[Span | Discontinuous]:
        """Contiguous and then discontinuous entities."""
        return [*self.entities, *self.discontinuous]

    def check(self) -> None:
        """Raise DataError if the sentence is empty or an entity lies outside it."""
        place = self.where or "sentence"
        if not self.words:
            raise DataError(f"{place}: the sentence has no words; remove the line")
        for start, end, label in self.entities:
            if not 0 <= start < end <= len(self.words):
                raise DataError(
                    f"{place}: entity {label} [{start}, {end}) lies outside its sentence of "
                    f"{len(self.words)} words; offsets count words from 0, end exclusive"
                )
        for entity in self.discontinuous:
            check_fragments(entity, len(self.words), place)

    def characters(self) -> tuple[str, list[tuple[int, int]]]:
        """Return the text and the offsets of each word; without a text, join words by spaces."""
        if self.text is not None and self.offsets is not None:
            return self.text, self.offsets
        return join_words(self.words)


def split_at_gaps(start: int, end: int, gaps: Offsets) -> Offsets:
    """Return the fragments of a span: what lies between its gaps."""
    starts, ends = [start, *(gap[1] for gap in gaps)], [*(gap[0] for gap in gaps), end]
    return tuple(zip(starts, ends, strict=True))


def gaps_between(fragments: Offsets) -> Offsets:
    """Return what lies between fragments."""
    return tuple((one[1], other[0]) for one, other in pairwise(fragments))


def check_fragments(entity: Discontinuous, words: int, place: str) -> None:
    """Raise DataError unless the fragments lie in the sentence, in order, with gaps between."""
    fragments, label = entity
    shown = ", ".join(f"[{start}, {end})" for start, end in fragments)
    if len(fragments) < 2 or any(start >= end for start, end in fragments):
        problem = "has an empty fragment, or fewer than two"
    elif any(start >= end for start, end in entity.gaps):
        problem = "has fragments that overlap, touch or are not in order"
    elif entity.start < 0 or entity.end > words:
        problem = f"lies outside its sentence of {words} words"
    else:
        return
    raise DataError(
        f"{place}: entity {label} of the fragments {shown or 'none'} {problem}; give two or more "
        "from left to right; offsets count words from 0, end exclusive"
    )


def join_words(words: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Return the words joined by spaces, and the (start, end) characters of each."""
    starts = accumulate((len(word) + 1 for word in words), initial=0)
    offsets = [(start, start + len(word)) for start, word in zip(starts, words, strict=False)]
    return " ".join(words), offsets


def is_annotated(sentence: Sentence, label: str) -> bool:
    """Return True if entities with this label were annotated in the sentence."""
    return sentence.types is None or label in sentence.types


def collect_labels(sentences: Iterable[Sentence]) -> list[str]:
    """Return every label in use, sorted, so that the order does not depend on the file."""
    return sorted({entity.label for s in sentences for entity in s.all_entities})


def check_labels(sentences: Sequence[Sentence], labels: Sequence[str]) -> None:
    """Raise DataError for the first entity whose label is unknown."""
    known = set(labels)
    for sentence in sentences:
        for label in (entity.label for entity in sentence.all_entities):
            if label not in known:
                raise DataError(
                    f"{sentence.where or 'sentence'}: unknown label '{label}'; "
                    f"the model knows: {', '.join(labels[:MAX_LISTED])}"
                    + (f" and {len(labels) - MAX_LISTED:,} more" * (len(labels) > MAX_LISTED))
                )
