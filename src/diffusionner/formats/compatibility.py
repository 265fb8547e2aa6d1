"""What of a sentence a format can hold."""

from __future__ import annotations

from dataclasses import replace

from diffusionner.corpus import Irregular, Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats.base import Format, Holds, any_word
from diffusionner.formats.texts import word_parts


def fit(sentence: Sentence, format: Format, lossy: bool) -> Sentence:
    """The sentence as the format can hold it; DataError if that is not all of it, unless lossy.

    Lossy leaves out irregular annotations and, of entities that cannot stand together, the inner or
    shorter ones. What is between words and documents' names are no annotations: they just go.
    """
    sentence.check()
    holds = format.holds
    if sentence.types is not None and not holds.types:
        if not lossy:
            raise _cannot(sentence, format, "only some labels were looked for (its 'types')")
        sentence = replace(sentence, types=None)
    entities = sentence.entities
    irregular = sentence.irregular
    lost = next((a for a in irregular if not _holds_irregular(sentence, a, holds)), None)
    if lost is not None:
        if not lossy:
            (start, end), label = lost.parts[0], lost.label
            what = f"entity {label} at characters {start}-{end} is in parts or cuts a word"
            raise _cannot(sentence, format, what)
        irregular = [a for a in irregular if _holds_irregular(sentence, a, holds)]
    if len(entities) > 1 and not (holds.nested and holds.crossing and holds.same_span):
        kept: list[Span] = []
        for span in sorted(dict.fromkeys(entities), key=lambda e: (e.start - e.end, e.start)):
            clash = next((k for k in kept if not _stands(span, k, format)), None)
            if clash is None:
                kept.append(span)
            elif not lossy:
                raise _cannot(
                    sentence, format,
                    f"entities {clash.label} [{clash.start}, {clash.end}) and {span.label} "
                    f"[{span.start}, {span.end}) overlap",
                )  # fmt: skip
        if len(kept) < len(entities):
            entities = [span for span in entities if span in kept]
    bad: str | None
    if holds.word is not any_word:
        bad = next((word for word in sentence.words if not holds.word(word)), None)
        if bad is not None:
            raise _cannot(sentence, format, f"there is a word {bad!r}", "")
    if holds.label is not any_word:
        labels = [span.label for span in entities] + [a.label for a in irregular]
        bad = next((label for label in labels if not holds.label(label)), None)
        if bad is not None:
            raise _cannot(sentence, format, f"there is a label {bad!r}", "")
    if entities is sentence.entities and irregular is sentence.irregular:
        return sentence
    return replace(sentence, entities=entities, irregular=irregular)


def _holds_irregular(sentence: Sentence, annotation: Irregular, holds: Holds) -> bool:
    if holds.irregular == "cut":
        return len(annotation.parts) == 1
    if holds.irregular == "parts":
        return word_parts(sentence, annotation) is not None
    return holds.irregular


def _stands(one: Span, other: Span, format: Format) -> bool:
    """Whether two entities of a sentence can both be written."""
    if one.end <= other.start or other.end <= one.start:
        return True
    if one[:2] == other[:2]:
        return format.holds.same_span
    inside = one.start >= other.start and one.end <= other.end
    around = one.start <= other.start and one.end >= other.end
    return format.holds.nested if inside or around else format.holds.crossing


def _cannot(
    sentence: Sentence, format: Format, what: str, otherwise: str = ", or leave it out with --lossy"
) -> DataError:
    return DataError(
        f"{sentence.where or 'sentence'}: {what}, which format {format.name} cannot hold; "
        f"write jsonl, which holds everything{otherwise}"
    )
