"""Spans that a caller gives to be refined, and what became of each of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from operator import index
from typing import Any, NamedTuple, TypeAlias

from diffusionner.corpus import Entities, Entity
from diffusionner.errors import DataError, SettingsError
from diffusionner.settings import Settings
from diffusionner.text import TextSentence

SpanLike: TypeAlias = Mapping[str, Any] | Sequence[Any]
LabelMap: TypeAlias = Mapping[str, str | None]
REFINE_STEPS = 3  # by default; after one step, few spans are where the next would leave them
MAX_SENTENCES = 10  # no entity has so many
FORMS = "(start, end), (start, end, label), an Entity, or a dict with start and end"


class GivenSpan(NamedTuple):
    """A span as it was given; offsets as in `Entity`."""

    start: int
    end: int
    label: str | None = None
    score: float | None = None


class Outcome(NamedTuple):
    """The outcome of a given span.

    `change` is "kept", "moved" (other boundaries), "retyped" (another label), "moved and retyped"
    or "dropped" (no entity, a score below the threshold, or overlap with a better entity). `entity`
    is the entity that the span became, None if it was dropped.
    """

    given: GivenSpan
    change: str
    entity: Entity | None

    def to_dict(self) -> dict[str, Any]:
        """Return what commands and the service write: a span without a label has none."""
        given = {name: value for name, value in self.given._asdict().items() if value is not None}
        entity = None if self.entity is None else self.entity.to_dict()
        return {"given": given, "change": self.change, "entity": entity}


class Refinement(NamedTuple):
    """Entities of a text, and what became of each given span, in the order they were given."""

    entities: Entities
    outcomes: list[Outcome]


@dataclass
class PlacedSpan:
    """The words of one sentence that a given span touches."""

    left: int
    right: int  # inclusive
    number: int  # of the given span
    reached: set[tuple[int, int]] = field(default_factory=set)  # where denoising moved it
    type_id: int | None = None  # of its label
    score: float = 1.0  # how much the label is believed


class GivenSpans:
    """The spans given for one text, placed in the words of its sentences.

    A span is extended to the words that it touches. One that lies in several sentences, which the
    model reads one by one, has a part in each. One that touches no word, or more sentences than
    MAX_SENTENCES, has none and is dropped.
    """

    def __init__(
        self,
        spans: Iterable[SpanLike],
        length: int,
        sentences: Sequence[TextSentence],
        labels: Sequence[str],
        label_map: LabelMap | None = None,
        place: str = "",
    ) -> None:
        """length: of the text, in the units of the offsets; place: where it is, for messages."""
        self.spans: list[GivenSpan] = []
        self.labels: list[str | None] = []  # those of the model
        for number, span in enumerate(spans):
            where = f"{place}span {number}"
            given = _read(span, where)
            if not 0 <= given.start < given.end <= length:
                raise DataError(
                    f"{where}: [{given.start}, {given.end}) is empty or outside the text, whose "
                    f"length is {length}; offsets count from 0, end exclusive"
                )
            self.spans.append(given)
            self.labels.append(_model_label(given.label, labels, label_map or {}, where))
        self.sentences = sentences
        self.placed: list[list[PlacedSpan]] = [[] for _ in sentences]
        starts, ends = [s.starts[0] for s in sentences], [s.ends[-1] for s in sentences]
        for number, (start, end, _, score) in enumerate(self.spans):
            label = self.labels[number]
            type_id = None if label is None else labels.index(label)
            belief = 1.0 if score is None else min(max(float(score), 0.0), 1.0)
            touched = range(bisect_right(ends, start), bisect_left(starts, end))
            for i in touched if len(touched) <= MAX_SENTENCES else ():
                left = bisect_right(sentences[i].ends, start)
                right = bisect_left(sentences[i].starts, end) - 1
                if left <= right:
                    self.placed[i].append(
                        PlacedSpan(left, right, number, {(left, right)}, type_id, belief)
                    )

    def refinement(self, entities: Entities, only: bool) -> Refinement:
        """Return the entities with what became of each span; only: leave out all other entities.

        Of the entities that a span may have become, it is the one that covers it best: one at the
        same boundaries, wherever it came from, or one that denoising moved it to. It is never a
        discontinuous one.
        """
        at = {(entity.start, entity.end): entity for entity in entities if not entity.gaps}
        found: list[list[Entity]] = [[] for _ in self.spans]
        for sentence, placed in zip(self.sentences, self.placed, strict=True):
            for span in placed:
                for left, right in span.reached:
                    entity = at.get((sentence.starts[left], sentence.ends[right]))
                    if entity is not None and _overlap(self.spans[span.number], entity) > 0:
                        found[span.number].append(entity)
        outcomes = list(map(_outcome, self.spans, self.labels, found))
        if only:
            kept = {id(outcome.entity) for outcome in outcomes}
            entities[:] = [entity for entity in entities if id(entity) in kept]
        return Refinement(entities, outcomes)


def refinement_settings(settings: Settings, options: Mapping[str, Any], only: bool) -> Settings:
    """Return a model's settings with the inference settings of a refinement."""
    settings.require_denoising("refine")
    if options.get("steps") is None:
        steps = min(REFINE_STEPS, settings.diffusion.timesteps)
        options = {**options, "steps": max(settings.inference.steps, steps)}
    settings = settings.with_inference(options)
    if settings.inference.start != "candidates" and not only:
        raise SettingsError(
            "given spans can be denoised together with candidates, but not with noise; pass "
            "only=True, or start='candidates' if the model has an initializer"
        )
    return settings


def _outcome(given: GivenSpan, label: str | None, found: list[Entity]) -> Outcome:
    if not found:
        return Outcome(given, "dropped", None)
    entity = max(found, key=lambda e: (_overlap(given, e), -e.start))
    moved = entity[:2] != given[:2]
    retyped = label is not None and entity.label != label
    changes = [name for name, is_so in (("moved", moved), ("retyped", retyped)) if is_so]
    return Outcome(given, " and ".join(changes) or "kept", entity)


def _overlap(given: GivenSpan, entity: Entity) -> float:
    """Return the share of common characters (or words): intersection over union."""
    common = min(given.end, entity.end) - max(given.start, entity.start)
    return common / (max(given.end, entity.end) - min(given.start, entity.start))


def _read(span: SpanLike, where: str) -> GivenSpan:
    """Read a span in any of the accepted forms."""
    if span.get("fragments") if isinstance(span, Mapping) else getattr(span, "gaps", ()):
        raise DataError(
            f"{where}: it is discontinuous, and only contiguous spans can be refined; leave it out"
        )
    if isinstance(span, Entity):
        span = span[:4]
    elif isinstance(span, Mapping):
        span = [span.get(name) for name in GivenSpan._fields]
    if isinstance(span, str) or not isinstance(span, Sequence) or not 2 <= len(span) <= 4:
        raise DataError(f"{where}: expected {FORMS}, not {str(span)[:80]!r}")
    start, end, label, score = (*span, None, None)[:4]
    try:
        bounds = index(start), index(end)
    except TypeError:
        shown = f"{start!r:.40}, {end!r:.40}"
        raise DataError(f"{where}: start and end must be whole numbers, not {shown}") from None
    if not isinstance(label, str | None):
        raise DataError(f"{where}: the label must be a string or None, not {label!r:.80}")
    if score is not None and not _is_number(score):
        raise DataError(f"{where}: the score must be a finite number or None, not {score!r:.80}")
    return GivenSpan(*bounds, label, score)


def _is_number(value: object) -> bool:
    """Return whether a value is a finite number."""
    try:
        return not isinstance(value, str | bytes | bool) and isfinite(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def _model_label(
    label: str | None, labels: Sequence[str], label_map: LabelMap, where: str
) -> str | None:
    label = label_map.get(label, label) if label is not None else None
    if label is not None and label not in labels:
        raise DataError(
            f"{where}: unknown label '{label[:80]}'; the model knows: {', '.join(labels)}. "
            "Translate it with label_map, or map it to None to drop the label but not the span"
        )
    return label
