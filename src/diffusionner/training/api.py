"""Training in one call: `diffusionner.train`, `DiffusionNER.fine_tune` and `diffusionner train`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from diffusionner.corpus import Sentence
from diffusionner.errors import CheckpointError, SettingsError, nearest
from diffusionner.inference.pipeline import DiffusionNER
from diffusionner.settings import SECTIONS, Settings, TrainingSettings
from diffusionner.storage import registry
from diffusionner.storage.config import is_model, read_config
from diffusionner.training.data import RunData, load_data, read_corpus
from diffusionner.training.plan import (
    PASSAGE_WORDS,
    evaluation_interval,
    has_documents,
    has_overlaps,
    held_out_sentences,
    training_plan,
)
from diffusionner.training.replay import Replay
from diffusionner.training.trainer import Outcome, Trainer

Corpus = str | Path | Sequence[Sentence]
_TRAINING = [f.name for f in fields(TrainingSettings)]


def train(
    data: Corpus,
    *,
    dev: Corpus | None = None,
    start: str | Path | DiffusionNER = registry.DEFAULT,
    output: str | Path = "runs/model",
    format: str | None = None,
    resume: bool = False,
    keep_open: bool = False,
    **settings: Any,
) -> DiffusionNER:
    """Train a model and return it; the best epoch on dev is kept.

    data, dev: corpus files in any format, or lists of `Sentence`. Without `dev`, a tenth of the
    training sentences is held out from the end.
    start: an installed model such as "en", a model folder or a loaded model, all of which is reused
    except for the types if the labels differ; or a pretrained encoder, by its folder or Hugging
    Face name.
    output: folder for the model, its log and the training state.
    format: format of the files; detected if not given.
    resume: continue the run in `output` where it stopped.
    keep_open: of a model with open labels, train one that can still be asked for any labels, not
    one with the labels of the data. It is trained on other types, too, with passages that come with
    the model, and says how well it finds types that it was not trained on before and after.
    settings: training settings by name, such as `epochs=20`, and those of other sections as
    mappings, such as `inference={"overlap": "flat"}`.

    Epochs, batch size and learning rates follow from the number of sentences and the device, and
    are printed before training starts:

        ner = train("train.jsonl", dev="dev.jsonl", start="en", output="runs/mine")
        ner = train(sentences, start="intfloat/e5-small", output="runs/new", epochs=20, seed=1)
    """
    assignments = [f"training.output={json.dumps(str(output))}", *_assignments(settings)]
    for name, corpus in (("train", data), ("dev", dev), ("format", format)):
        if isinstance(corpus, str | Path):
            assignments.append(f"data.{name}={json.dumps(str(corpus))}")
    given, held_out = (None if isinstance(c, str | Path) else c for c in (data, dev))
    run = prepare(start, assignments, given, held_out, keep_open)
    run.train(resume)
    return DiffusionNER.from_pretrained(Path(output))


@dataclass
class Run:
    """A training run whose settings are complete."""

    settings: Settings
    data: RunData
    choices: list[str]  # automatic choices, one line each
    replay: Replay | None = None  # passages that keep labels open

    def train(self, resume: bool = False) -> Outcome:
        trainer = Trainer(self.settings, resume, self.data)
        for line in self.choices:
            trainer.reporter.say(line)
        if self.replay is None:
            return trainer.run()
        outcome = trainer.run()
        if trainer.accelerator.is_main_process:
            print(self.replay.hand_on(Path(self.settings.training.output)))
        return outcome


def prepare(
    start: str | Path | DiffusionNER,
    assignments: Sequence[str],
    train: Sequence[Sentence] | None = None,
    dev: Sequence[Sentence] | None = None,
    keep_open: bool = False,
) -> Run:
    """Choose the settings of a run from its data, its starting model and the device.

    assignments: `section.key=value`, which take precedence.
    train, dev: the corpora; if not given, they are read from `data.train` and `data.dev`.
    keep_open: as in `train`.
    """
    base, origin, labels = _starting_settings(start)
    replay = None
    found_before = bool(base.decoder.discontinuous)
    if keep_open:
        replay = Replay.of(base)
    else:  # as the data has discontinuous entities
        base = replace(base, decoder=replace(base.decoder, discontinuous=None))
    reads_labels = base.reads_labels
    if reads_labels and not keep_open:
        base = replace(base, decoder=replace(base.decoder, types="vectors"))
    given = {assignment.partition("=")[0].strip() for assignment in assignments}
    settings = base.override(assignments)
    if train is None:
        train = read_corpus(settings.data, "train")
    if dev is None and settings.data.dev is None and "data.dev_from_train" not in given:
        held_out = held_out_sentences(len(train))
        base = replace(base, data=replace(base.data, dev_from_train=held_out))
        settings = base.override(assignments)
    data = load_data(settings, train, dev)
    if replay is not None:
        origin += "; labels stay open"
        data = replay.mix_into(data)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plan, reason = training_plan(len(data.train), device)
    if documents := has_documents(data.train):
        base = replace(base, encoder=replace(base.encoder, passage_words=PASSAGE_WORDS))
    decoder = settings.decoder
    typed = settings.denoises and decoder.initializer == "types" and not decoder.joins_labels
    if typed and data.dev and documents:
        base = replace(base, decoder=replace(base.decoder, beliefs=True))
    training = replace(base.training, tune_steps=True, **plan)
    nested = has_overlaps([*data.train, *data.dev])
    inference = replace(base.inference, overlap="nested" if nested else "flat")
    settings = replace(base, training=training, inference=inference).override(assignments)
    if "training.evaluate_every" not in given:
        interval = evaluation_interval(settings.training.epochs)
        settings = replace(settings, training=replace(settings.training, evaluate_every=interval))
    if found_before and not data.discontinuous() and settings.decoder.discontinuous is None:
        origin += "; the data has no discontinuous entities, so none will be found any more"
    if labels is not None and labels != data.labels and not reads_labels:
        origin += "; its types differ from those of the data, which are learned anew"
    return Run(settings, data, _describe(data, settings, nested, origin, reason), replay)


def _starting_settings(start: str | Path | DiffusionNER) -> tuple[Settings, str, list[str] | None]:
    """Return the settings to begin with, a line about their origin, and the labels of a model."""
    if isinstance(start, DiffusionNER):
        if start.folder is None:
            raise CheckpointError(
                "fine-tuning starts from a model folder, and this model was not loaded from one; "
                "call save_pretrained and load the model from there"
            )
        start = start.folder
    location = registry.resolve(start)
    if location in registry.PROVIDED:
        registry.find_model(location)  # raises an error that says how to install it
    if not is_model(Path(location)):
        settings = Settings()
        name = str(start)
        return (
            replace(settings, encoder=replace(settings.encoder, name=name)),
            f"the pretrained encoder {name}; everything else is learned from scratch",
            None,
        )
    config = read_config(Path(location))
    own = Settings.from_dict(config["settings"], str(location))
    return (
        replace(
            own,
            data=Settings().data,
            training=Settings().training,
            encoder=replace(own.encoder, name=str(start)),
            inference=replace(own.inference, threshold=None, phi=None),
        ),
        f"the model {start}, whose architecture and inference settings are inherited",
        config["labels"],
    )


def _assignments(settings: Mapping[str, Any]) -> list[str]:
    """Return keyword settings as `section.key=value`."""
    assignments = []
    for name, value in settings.items():
        if name in _TRAINING:
            assignments.append(f"training.{name}={json.dumps(value, default=str)}")
        elif name in SECTIONS and isinstance(value, Mapping):
            assignments += [f"{name}.{k}={json.dumps(v, default=str)}" for k, v in value.items()]
        elif name in ("method", "options"):
            assignments.append(f"{name}={json.dumps(value, default=str)}")
        else:
            raise SettingsError(
                f"unknown setting '{name}'; {nearest(name, [*_TRAINING, *SECTIONS])} Training "
                "settings are given by name, others by section: inference={'overlap': 'flat'}"
            )
    return assignments


def _describe(
    data: RunData, settings: Settings, nested: bool, origin: str, reason: str
) -> list[str]:
    dev = f"{len(data.dev):,} dev sentences"
    if not data.dev:
        dev = "no dev sentences: the last epoch is kept"
    elif settings.data.dev_from_train:
        dev += " held out from the end of the training data"
    entities = "some entities overlap" if nested else "no two entities overlap"
    training = settings.training
    documents = "; documents are denoised: decoder.beliefs=true" * settings.decoder.beliefs
    if data.discontinuous() and settings.decoder.discontinuous is not False:
        entities += ", some are discontinuous"
    return [
        f"data: {len(data.train):,} training sentences, {len(data.labels)} types, {dev}; "
        f"{entities}: inference.overlap={settings.inference.overlap}{documents}",
        f"start: {origin}",
        f"training: epochs={training.epochs} batch_size={training.batch_size} "
        f"encoder_learning_rate={training.encoder_learning_rate:g} "
        f"learning_rate={training.learning_rate:g} evaluate_every={training.evaluate_every} "
        f"({reason})",
    ]
