"""The corpora of a run, read, checked and encoded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from diffusionner import formats
from diffusionner.corpus import Sentence, check_labels, collect_labels
from diffusionner.errors import DataError, SettingsError
from diffusionner.settings import DataSettings


@dataclass
class RunData:
    train: list[Sentence]
    dev: list[Sentence]
    test: list[Sentence]
    labels: list[str]

    def digest(self) -> str:
        """Changes when any sentence to train or choose on does: a state must not resume then."""
        state = hashlib.blake2b(str(len(self.train)).encode(), digest_size=8)
        for sentence in self.train + self.dev:
            state.update(repr((sentence.words, sentence.entities, sentence.doc)).encode())
        return state.hexdigest()


def load_data(settings: DataSettings) -> RunData:
    if settings.train is None:
        raise SettingsError("data.train is not set; give it in the config or as data.train=FILE")
    train = formats.read(settings.train)
    if settings.dev is not None:
        dev = formats.read(settings.dev)
    else:
        held = settings.dev_from_train
        if held >= len(train):
            raise SettingsError(
                f"data.dev_from_train={held} leaves nothing to train on: {settings.train} has "
                f"{len(train)} sentences"
            )
        train, dev = train[: len(train) - held], train[len(train) - held :]
    test = formats.read(settings.test) if settings.test else []
    labels = collect_labels(train)
    if not labels:
        raise DataError(f"{settings.train} has no entities, so there is nothing to learn")
    check_labels(dev, labels)
    check_labels(test, labels)
    return RunData(train, dev, test, labels)
