"""The corpora of a run, read, checked and encoded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from diffusionner import formats
from diffusionner.corpus import Sentence, check_labels, collect_labels
from diffusionner.data.fingerprint import fingerprint
from diffusionner.errors import DataError, SettingsError
from diffusionner.settings import DataSettings


@dataclass
class RunData:
    train: list[Sentence]
    dev: list[Sentence]
    test: list[Sentence]
    labels: list[str]

    def irregular(self) -> int:
        """Annotations to train on that are no run of whole words, so cannot be learned."""
        return sum(len(sentence.irregular) for sentence in self.train)

    def digest(self) -> str:
        """Changes when any sentence to train or choose on does: a state must not resume then."""
        state = hashlib.blake2b(str(len(self.train)).encode(), digest_size=8)
        for sentence in self.train + self.dev:
            state.update(repr((sentence.words, sentence.entities, sentence.doc)).encode())
            if sentence.types is not None:
                state.update(repr(sentence.types).encode())
        return state.hexdigest()


def load_data(settings: DataSettings) -> RunData:
    if settings.train is None:
        raise SettingsError("data.train is not set; give it in the config or as data.train=FILE")
    train = formats.read(settings.train, settings.format)
    if settings.dev is not None:
        dev = formats.read(settings.dev, settings.format)
    else:
        held = settings.dev_from_train
        if held >= len(train):
            raise SettingsError(
                f"data.dev_from_train={held} leaves nothing to train on: {settings.train} has "
                f"{len(train)} sentences"
            )
        train, dev = train[: len(train) - held], train[len(train) - held :]
    test = formats.read(settings.test, settings.format) if settings.test else []
    if dev and test and fingerprint(dev) == fingerprint(test):
        raise SettingsError(
            f"epoch and threshold would be chosen on the test corpus: {settings.test} holds the "
            "same sentences as dev; give another data.dev or data.dev_from_train, or leave "
            "out data.test"
        )
    labels = collect_labels(train)
    if not labels:
        raise DataError(f"{settings.train} has no entities, so there is nothing to learn")
    check_labels(dev, labels)
    check_labels(test, labels)
    return RunData(train, dev, test, labels)
