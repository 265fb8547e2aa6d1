"""From one format to another, a sentence at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from diffusionner import formats
from diffusionner.corpus import Sentence
from diffusionner.formats.fitting import fit


@dataclass
class Conversion:
    """What was written, and what the format had no room for."""

    format: str
    sentences: int = 0
    entities: int = 0
    lost_entities: int = 0  # overlap others in a way that the format cannot hold
    lost_irregular: int = 0  # are in parts or cut through a word
    lost_text: bool = False  # the characters between words
    lost_docs: bool = False  # the names of documents


def convert(
    sentences: Iterable[Sentence], target: Path, format: str | None = None, lossy: bool = False
) -> Conversion:
    """Write the sentences as `formats.write` does, and count them."""
    chosen, _ = formats.choose_output(target, format)
    done = Conversion(chosen.name)

    def passing() -> Iterator[Sentence]:
        for sentence in sentences:
            fitting = fit(sentence, chosen, lossy) if lossy else sentence
            done.sentences += 1
            done.entities += len(fitting.entities) + len(fitting.irregular)
            done.lost_entities += len(sentence.entities) - len(fitting.entities)
            done.lost_irregular += len(sentence.irregular) - len(fitting.irregular)
            done.lost_text |= sentence.text is not None and not chosen.holds.text
            done.lost_docs |= sentence.doc is not None and not chosen.holds.docs
            yield fitting

    formats.write(target, passing(), format, lossy)
    return done
