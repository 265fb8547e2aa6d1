"""Check that a format can represent a sentence, or remove what it cannot."""

from __future__ import annotations

from dataclasses import replace

from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats.format import Format
from diffusionner.formats.source import check_label

_RENAME = ", or rename it"


def make_compatible(sentence: Sentence, format: Format, lossy: bool) -> Sentence:
    """Return the sentence as the format can represent it.

    Annotations that cannot be represented are removed if `lossy`, else they raise DataError. Of
    two crossing entities the shorter is removed. Text between words is not an annotation: formats
    without it drop it silently.
    """
    sentence.check()
    capabilities = format.capabilities
    types, entities = sentence.types, sentence.entities
    discontinuous, irregular = sentence.discontinuous, sentence.irregular
    if types is not None and not capabilities.types:
        if not lossy:
            raise _unsupported(sentence, format, "only some labels were annotated (its 'types')")
        types = None
    if discontinuous and not capabilities.discontinuous:
        if not lossy:
            fragments, label = discontinuous[0]
            places = ", ".join(f"[{start}, {end})" for start, end in fragments)
            raise _unsupported(sentence, format, f"entity {label} {places} is discontinuous")
        discontinuous = []
    kept = [
        a
        for a in irregular
        if capabilities.irregular and (capabilities.discontinuous or len(a.parts) == 1)
    ]
    if len(kept) < len(irregular):
        if not lossy:
            parts, label = next(a for a in irregular if a not in kept)
            places = " and ".join(f"{start}-{end}" for start, end in parts)
            what = f"entity {label} at characters {places} does not align with token boundaries"
            raise _unsupported(sentence, format, what)
        irregular = kept
    if len(entities) > 1 and not capabilities.crossing:
        entities = _without_crossing(sentence, format, lossy)
    doc = sentence.doc or None  # "" is read as no name
    if doc is not None and not capabilities.doc(doc):
        raise _unsupported(sentence, format, f"there is a document named {doc!r}", _RENAME)
    for word in sentence.words:
        if not capabilities.word(word):
            raise _unsupported(sentence, format, f"there is a word {word!r}", "")
    labels = [*(e.label for e in entities), *(e.label for e in discontinuous)]
    for label in [*labels, *(a.label for a in irregular)]:
        check_label(label, sentence.where or "sentence")
        if not capabilities.label(label):
            raise _unsupported(sentence, format, f"there is a label {label!r}", _RENAME)
    return replace(
        sentence,
        doc=doc,
        types=types,
        entities=entities,
        discontinuous=discontinuous,
        irregular=irregular,
    )


def _without_crossing(sentence: Sentence, format: Format, lossy: bool) -> list[Span]:
    kept: list[Span] = []
    for span in sorted(sentence.entities, key=lambda e: (e.start - e.end, e.start)):
        crossed = next((other for other in kept if _cross(span, other)), None)
        if crossed is None:
            kept.append(span)
        elif not lossy:
            raise _unsupported(
                sentence, format,
                f"entities {crossed.label} [{crossed.start}, {crossed.end}) and {span.label} "
                f"[{span.start}, {span.end}) cross",
            )  # fmt: skip
    return [span for span in sentence.entities if span in kept]


def _cross(one: Span, other: Span) -> bool:
    first, second = sorted((one, other))
    return first.start < second.start < first.end < second.end


def _unsupported(
    sentence: Sentence, format: Format, what: str, remedy: str = ", or remove it with --lossy"
) -> DataError:
    return DataError(
        f"{sentence.where or 'sentence'}: {what}, which format {format.name} cannot represent; "
        f"write jsonl, which represents everything{remedy}"
    )
