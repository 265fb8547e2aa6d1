"""The corpora of a training run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from diffusionner import formats
from diffusionner.corpus import Sentence, check_labels, collect_labels
from diffusionner.data.fingerprint import fingerprint
from diffusionner.errors import DataError, SettingsError
from diffusionner.inference.open_labels import asked_labels
from diffusionner.label_set import LabelSet
from diffusionner.settings import DataSettings, Settings


@dataclass
class RunData:
    train: list[Sentence]
    dev: list[Sentence]
    test: list[Sentence]
    labels: list[str]

    def irregular(self) -> int:
        """Return the number of training annotations that do not align with words."""
        return sum(len(sentence.irregular) for sentence in self.train)

    def discontinuous(self, more_than: int = 1) -> int:
        """Return the number of training entities with more than this many fragments."""
        return sum(len(e.fragments) > more_than for s in self.train for e in s.discontinuous)

    def fingerprint(self, settings: Settings) -> str:
        """Return a hash of the settings, train and dev, by which a run is recognised."""
        values = {name: value for name, value in settings.to_dict().items() if name != "data"}
        values["training"].pop("output")
        start = json.dumps([values, self.labels, len(self.train)], sort_keys=True)
        state = hashlib.blake2b(start.encode(), digest_size=8)
        for sentence in self.train + self.dev:
            state.update(repr((sentence.words, sentence.entities, sentence.doc)).encode())
            if sentence.discontinuous:
                state.update(repr(sentence.discontinuous).encode())
            if sentence.types is not None:
                state.update(repr(sentence.types).encode())
        return state.hexdigest()


def load_data(
    run: Settings,
    train: Sequence[Sentence] | None = None,
    dev: Sequence[Sentence] | None = None,
) -> RunData:
    """Read and check the corpora of a run; train and dev are read from files unless given."""
    settings = run.data
    train = list(read_corpus(settings, "train") if train is None else train)
    source = settings.train or "the training data"
    held_out = 0 if dev is not None or settings.dev is not None else settings.dev_from_train
    if dev is None:
        dev = read_corpus(settings, "dev") if settings.dev is not None else []
    if held_out >= len(train):
        raise SettingsError(
            f"data.dev_from_train={held_out} leaves nothing to train on: {source} has "
            f"{len(train)} sentences"
        )
    labels = collect_labels(train)  # those of the sentences held out included
    if held_out:
        train, dev = train[:-held_out], train[-held_out:]
    dev = list(dev)
    test = read_corpus(settings, "test") if settings.test else []
    if dev and test and fingerprint(dev) == fingerprint(test):
        raise SettingsError(
            f"epoch and threshold would be chosen on the test corpus: {settings.test} contains the "
            "same sentences as dev; change data.dev or data.dev_from_train, or leave out data.test"
        )
    if not labels:
        raise DataError(f"{source} has no entities, so there is nothing to learn")
    if run.reads_labels:  # those of dev and test may be others than in training
        for part in (train, dev, test):
            _name_types(part)
            _check_types(part)
        labels = asked_labels([*train, *dev, *test])
    check_labels(dev, labels)
    check_labels(test, labels)
    return RunData(train, dev, test, labels)


def _name_types(sentences: list[Sentence]) -> None:
    """Name the types of sentences that were annotated for all types: those of their likes."""
    untyped = [sentence for sentence in sentences if sentence.types is None]
    labels = tuple(collect_labels(untyped))
    for number, sentence in enumerate(sentences):
        if sentence.types is None:
            sentences[number] = replace(sentence, types=labels)


def _check_types(sentences: Sequence[Sentence]) -> None:
    """Raise DataError for types that cannot be read as labels."""
    for sentence in {s.types: s for s in reversed(sentences) if s.types}.values():
        try:
            LabelSet.of(sentence.types or ())
        except SettingsError as error:
            raise DataError(f"{sentence.where or 'sentence'}: {error}") from error


def read_corpus(settings: DataSettings, name: Literal["train", "dev", "test"]) -> list[Sentence]:
    path = getattr(settings, name)
    if path is None:
        raise SettingsError(f"data.{name} is not set; set it in the config or as data.{name}=FILE")
    return formats.read(path, settings.format)
