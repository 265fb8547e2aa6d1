"""Passages with other types that a model with open labels is trained on beside new data.

Without them it would learn that the labels of the new data are all there is.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from diffusionner import formats
from diffusionner.corpus import Sentence
from diffusionner.errors import SettingsError
from diffusionner.evaluation import evaluate
from diffusionner.files import write_bytes
from diffusionner.inference.open_labels import asked_labels
from diffusionner.settings import Settings
from diffusionner.storage.config import REPLAY_FILE
from diffusionner.storage.encoders import encoder_location
from diffusionner.training.data import RunData

MAX_DOCUMENTS = 500  # that a model keeps
HELD_OUT = 0.2  # share of the documents that measure what was forgotten


def keep_passages(folder: Path, dev: Sequence[Sentence]) -> None:
    """Save the first documents of dev with a model, for its fine-tuning."""
    kept = set(list(dict.fromkeys(sentence.doc for sentence in dev))[:MAX_DOCUMENTS])
    with TemporaryDirectory() as scratch:
        plain = Path(scratch) / "replay.jsonl"
        formats.write(plain, (sentence for sentence in dev if sentence.doc in kept), "jsonl")
        write_bytes(folder / REPLAY_FILE, gzip.compress(plain.read_bytes(), mtime=0))


@dataclass
class Replay:
    """Passages to train on and others to measure with."""

    model: Path  # that training starts from
    train: list[Sentence]
    held_out: list[Sentence]

    @classmethod
    def of(cls, settings: Settings) -> Replay:
        """Read the passages that come with the model that training starts from."""
        folder = Path(encoder_location(settings.encoder.name))
        if not settings.reads_labels:
            raise SettingsError(
                f"keep_open needs a model with open labels to start from, and the labels of "
                f"'{settings.encoder.name}' are fixed; start from `open`"
            )
        file = folder / REPLAY_FILE
        if not file.exists():
            raise SettingsError(
                f"keep_open trains on passages that come with a model, and {folder} has no "
                f"{REPLAY_FILE}; copy that of the model it was trained from, or leave keep_open out"
            )
        documents: dict[str | None, list[Sentence]] = {}
        for sentence in formats.read(file):
            documents.setdefault(sentence.doc, []).append(sentence)
        order = sorted(documents, key=str)
        random.Random(0).shuffle(order)
        cut = round(HELD_OUT * len(order))
        held_out, train = (
            [sentence for doc in part for sentence in documents[doc]]
            for part in (order[:cut], order[cut:])
        )
        return cls(folder, train, held_out)

    def mix_into(self, data: RunData) -> RunData:
        """Return the data with about as many sentences of passages as it has itself."""
        docs: dict[str | None, int] = {}
        for sentence in self.train:
            docs[sentence.doc] = docs.get(sentence.doc, 0) + 1
        wanted, taken = len(data.train), set()
        for doc, count in docs.items():
            if wanted <= 0:
                break
            taken.add(doc)
            wanted -= count
        more = [
            replace(sentence, doc=f"replay/{sentence.doc}")
            for sentence in self.train
            if sentence.doc in taken
        ]
        train = [*data.train, *more]
        labels = asked_labels([*train, *data.dev, *data.test])
        return replace(data, train=train, labels=labels)

    def hand_on(self, trained: Path) -> str:
        """Give the new model the passages, too.

        Return a line about how well both models find types that they were not trained on.
        """
        write_bytes(trained / REPLAY_FILE, (self.model / REPLAY_FILE).read_bytes())
        before, after = (100 * self._f1(model) for model in (self.model, trained))
        passages = len({sentence.doc for sentence in self.held_out})
        return (
            f"zero-shot F1 on {passages} passages with other types: {before:.2f} before, "
            f"{after:.2f} after"
        )

    def _f1(self, model: Path) -> float:
        sentences: Sequence[Sentence] = self.held_out
        return evaluate(model, sentences).micro.f1
