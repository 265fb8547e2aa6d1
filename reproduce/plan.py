"""From tables to the runs they need: settings resolved, equal runs taken together."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from operator import itemgetter
from typing import Any

from diffusionner.errors import DataError
from diffusionner.settings import SECTIONS, Settings
from reproduce.corpora import CORPORA, ENCODERS, METHODS
from reproduce.sources import Sources, load_preset
from reproduce.tables import Point, Table, Wanted, wanted

# Places, what a job says by itself, and what changes nothing about the result.
_IMMATERIAL = ("data", "method", "training.output", "training.checkpoint_minutes")


@dataclass
class Job:
    """A run and all that the chosen tables want measured of it."""

    name: str
    corpus: str
    method: str
    seed: int
    shape: str | None
    encoder: dict[str, str]  # its name, and for which of ours it stands
    changes: dict[str, Any]  # what a table has changed of the preset
    settings: dict[str, Any]  # resolved, without places
    data: dict[str, dict[str, Any]]  # fingerprints
    overrides: list[str]  # as the commands are told
    points: dict[str, Point] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Settings that are at their default do not count: a new one changes no run."""
        parts = [self.corpus, self.method, self.shape, self.encoder["name"], self.data]
        text = json.dumps([*parts, unusual(flat(self.settings))], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    @property
    def recipe(self) -> str:
        """Equal for runs that differ by nothing but the seed."""
        return recipe(self.encoder, self.data, flat(self.settings))

    @property
    def id(self) -> str:
        """Names the record and the folder of the run."""
        kind = self.shape or f"s{self.seed}"
        return f"{self.corpus}-{self.method}-{kind}-{self.key}"

    @property
    def epochs(self) -> int:
        training = self.settings["training"]
        return int(training["frozen_epochs"] + training["epochs"])

    @property
    def updates(self) -> int:
        per_epoch = -(-self.data["train"]["sentences"] // self.settings["training"]["batch_size"])
        return int(per_epoch * self.epochs)


@dataclass
class Plan:
    jobs: list[Job]
    missing: list[str]  # what is not there, and what is left out for it


def plan(tables: Iterable[Table], seeds: int, sources: Sources, only: Sequence[str] = ()) -> Plan:
    """The runs of the tables; `only`: patterns, one of which a run's name must match.

    They come in the order of the patterns, so that the first is done first.
    """
    chosen = list(wanted(tables, seeds))
    if only:
        placed = [(_place(want.name, only), want, points) for want, points in chosen]
        placed = sorted((one for one in placed if one[0] is not None), key=itemgetter(0))
        chosen = [(want, points) for _, want, points in placed]
    corpora = list(dict.fromkeys(want.corpus for want, _ in chosen))
    gone = {name: files for name in corpora if (files := sources.missing_files(name))}
    jobs: dict[str, Job] = {}
    missing = [_missing_corpus(name, files) for name, files in gone.items()]
    for want, points in chosen:
        if want.corpus in gone:
            continue
        try:
            job = resolve(want, sources)
        except DataError as error:  # a file that cannot be read
            gone[want.corpus] = []
            missing.append(f"{CORPORA[want.corpus].title}: {error}")
            continue
        job = jobs.setdefault(job.key, job)
        job.points.update((one.name, one) for one in points)
    return Plan(list(jobs.values()), missing)


def resolve(want: Wanted, sources: Sources) -> Job:
    corpus = CORPORA[want.corpus]
    asked = want.variant.encoder or corpus.encoder
    place = sources.places[asked]
    files = sources.settings(want.corpus)
    base, told = _overrides(want, sources)
    plain = load_preset(sources.preset(want.corpus), tuple(base))
    before, settings = flat(_sections(plain)), _sections(plain.override(told))
    changes = {key: value for key, value in flat(settings).items() if value != before[key]}
    settings["encoder"]["name"] = want.shape or place.name
    names = ("train", "dev", "dev_from_train", "format")
    places = [f"data.{name}={json.dumps(getattr(files, name))}" for name in names]
    return Job(
        name=want.name,
        corpus=want.corpus,
        method=want.method,
        seed=want.seed,
        shape=want.shape,
        encoder={"name": want.shape or place.name, "stands_for": asked},
        changes=changes,
        settings=settings,
        data=sources.fingerprints(want.corpus),
        # Test is scored afterwards, and only for the tables that show it.
        overrides=[
            *base,
            *told,
            *places,
            "data.test=null",
            f"encoder.name={json.dumps(place.place)}",
        ],
    )


def _overrides(want: Wanted, sources: Sources) -> tuple[list[str], list[str]]:
    """Of the preset: what all variants of a run have, and what this one changes."""
    own = METHODS[want.method].overrides(None if want.shape else want.corpus)
    base = [f"method={want.method}", *own, *sources.overrides]
    told = [f"{key}={json.dumps(value)}" for key, value in want.variant.changes]
    return [*base, f"training.seed={want.seed}"], told


def identity(want: Wanted, sources: Sources) -> str:
    """Equal for what is the same run by other names; by its name where there is no preset."""
    preset = sources.preset(want.corpus)
    if not preset.exists():
        return want.name
    base, told = _overrides(want, sources)
    settings = _sections(load_preset(preset, tuple(base)).override(told))
    return json.dumps([want.corpus, want.method, want.shape, want.variant.encoder, settings])


def _sections(settings: Settings) -> dict[str, dict[str, Any]]:
    """What a run is known by."""
    values = settings.to_dict()
    for name in _IMMATERIAL:
        section, _, key = name.rpartition(".")
        del (values[section] if section else values)[key]
    return values


def flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in sections as `section.key`."""
    return {
        f"{section}.{key}": value
        for section, values in settings.items()
        for key, value in values.items()
    }


def recipe(encoder: dict[str, str], data: dict[str, Any], settings: dict[str, Any]) -> str:
    """All that a run is known by, but for its seed; settings as `section.key`.

    Those at their default do not count: a record knows none of a setting that came later.
    """
    seedless = {key: v for key, v in unusual(settings).items() if key != "training.seed"}
    return json.dumps([encoder, data, seedless], sort_keys=True)


def check_encoders(jobs: Iterable[Job], sources: Sources) -> dict[str, str]:
    """The encoders that cannot be had, with the reason."""
    names = dict.fromkeys(job.encoder["stands_for"] for job in jobs if job.shape is None)
    return {name: problem for name in names if (problem := sources.encoder_problem(name))}


def missing_encoder(name: str, problem: str) -> str:
    hub = ENCODERS[name].hub
    return f"encoder {name}: {problem}; give --encoder FOLDER (published as {hub})"


def _place(name: str, patterns: Sequence[str]) -> int | None:
    """Which pattern takes it; one may be of the whole name, or of some parts from the left."""
    for place, pattern in enumerate(patterns):
        if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}/*"):
            return place
    return None


def _missing_corpus(name: str, files: list[str]) -> str:
    corpus = CORPORA[name]
    where = "sold by the LDC: put your own copy there" if corpus.sold else "see --data"
    if files[0].endswith(f"{corpus.preset}.yaml"):
        where = "its preset: see --configs"
    return f"{corpus.title}: no {files[0]} ({where})"


def unusual(settings: dict[str, Any]) -> dict[str, Any]:
    """Those, as `section.key`, that are not at their default."""
    defaults = {
        f"{section}.{f.name}": f.default
        for section, cls in SECTIONS.items()
        for f in dataclasses.fields(cls)
    }
    return {key: v for key, v in settings.items() if v != defaults.get(key, object())}
