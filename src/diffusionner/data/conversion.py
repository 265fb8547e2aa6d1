"""Streaming conversion between corpus formats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from diffusionner import formats
from diffusionner.corpus import Sentence
from diffusionner.formats.compatibility import make_compatible


@dataclass
class Conversion:
    """Counts of what was written and of what the format could not represent."""

    format: str
    sentences: int = 0
    entities: int = 0
    lost_entities: int = 0  # overlap others in a way that the format cannot represent
    lost_discontinuous: int = 0
    lost_irregular: int = 0  # not aligned with token boundaries
    lost_text: bool = False  # characters between words


def convert(
    sentences: Iterable[Sentence], target: Path, format: str | None = None, lossy: bool = False
) -> Conversion:
    """Write sentences as `formats.write` does, and count them."""
    chosen, _ = formats.resolve_output_format(target, format)
    result = Conversion(chosen.name)

    def counted() -> Iterator[Sentence]:
        for sentence in sentences:
            fitted = make_compatible(sentence, chosen, lossy) if lossy else sentence
            result.sentences += 1
            result.entities += len(fitted.all_entities) + len(fitted.irregular)
            result.lost_entities += len(sentence.entities) - len(fitted.entities)
            result.lost_discontinuous += len(sentence.discontinuous) - len(fitted.discontinuous)
            result.lost_irregular += len(sentence.irregular) - len(fitted.irregular)
            result.lost_text |= sentence.text is not None and not chosen.capabilities.text
            yield fitted

    formats.write(target, counted(), format, lossy)
    return result
