"""From tables to the runs they need: settings resolved, equal runs merged."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from operator import itemgetter
from typing import Any

from diffusionner.errors import DataError
from diffusionner.settings import SECTIONS, Settings
from reproduce.corpora import CORPORA, ENCODERS, METHODS
from reproduce.sources import Sources, load_preset
from reproduce.tables import Point, RunRequest, Table, requested_runs

# Settings that do not identify a run: locations, the job's own fields, and what changes no result.
_IMMATERIAL = ("data", "method", "training.output", "training.checkpoint_minutes")


@dataclass
class Job:
    """A run, with everything that the chosen tables measure on it."""

    name: str
    corpus: str
    method: str
    seed: int
    shape: str | None
    encoder: dict[str, str]  # its name, and the encoder of the tables that it stands for
    changes: dict[str, Any]  # settings that a table changes from the preset's
    settings: dict[str, Any]  # resolved, without locations
    data: dict[str, dict[str, Any]]  # fingerprints
    overrides: list[str]  # for the command line
    points: dict[str, Point] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return run_key(vars(self))

    @property
    def id(self) -> str:
        """Name of the record and of the run's folder."""
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
    missing: list[str]  # messages about missing files


def plan(tables: Iterable[Table], seeds: int, sources: Sources, only: Sequence[str] = ()) -> Plan:
    """Return the runs of the tables; with `only`, those whose name matches one of the patterns.

    Runs are in the order of the patterns, so that matches of the first run first.
    """
    requests = list(requested_runs(tables, seeds))
    if only:
        ranked = [(_rank(request.name, only), request, points) for request, points in requests]
        ranked = sorted((one for one in ranked if one[0] is not None), key=itemgetter(0))
        requests = [(request, points) for _, request, points in ranked]
    corpora = list(dict.fromkeys(request.corpus for request, _ in requests))
    skipped = {name: files for name in corpora if (files := sources.missing_files(name))}
    jobs: dict[str, Job] = {}
    missing = [_missing_corpus(name, files) for name, files in skipped.items()]
    for request, points in requests:
        if request.corpus in skipped:
            continue
        try:
            job = resolve(request, sources)
        except DataError as error:  # a file that cannot be read
            skipped[request.corpus] = []
            missing.append(f"{CORPORA[request.corpus].title}: {error}")
            continue
        job = jobs.setdefault(job.key, job)
        job.points.update((one.name, one) for one in points)
    return Plan(list(jobs.values()), missing)


def resolve(request: RunRequest, sources: Sources) -> Job:
    stands_for = request.variant.encoder or CORPORA[request.corpus].encoder
    encoder = sources.places[stands_for]
    files = sources.settings(request.corpus)
    common, own = _overrides(request, sources)
    preset = load_preset(sources.preset(request.corpus), tuple(common))
    before, settings = flatten(_sections(preset)), _sections(preset.override(own))
    # Some settings are left out at their default.
    changes = {key: value for key, value in flatten(settings).items() if value != before.get(key)}
    name = request.shape or encoder.name
    settings["encoder"]["name"] = name
    keys = ("train", "dev", "dev_from_train", "format")
    return Job(
        name=request.name,
        corpus=request.corpus,
        method=request.method,
        seed=request.seed,
        shape=request.shape,
        encoder={"name": name, "stands_for": stands_for},
        changes=changes,
        settings=settings,
        data=sources.fingerprints(request.corpus),
        overrides=[
            *common,
            *own,
            *(f"data.{key}={json.dumps(getattr(files, key))}" for key in keys),
            "data.test=null",  # scored afterwards, and only for the tables that show it
            f"encoder.name={json.dumps(encoder.place)}",
        ],
    )


def _overrides(request: RunRequest, sources: Sources) -> tuple[list[str], list[str]]:
    """Return the changes to the preset that all variants of a run share, and the variant's own."""
    method = METHODS[request.method].overrides(None if request.shape else request.corpus)
    common = [f"method={request.method}", *method, *sources.overrides]
    own = [f"{key}={json.dumps(value)}" for key, value in request.variant.changes]
    return [*common, f"training.seed={request.seed}"], own


def identity(request: RunRequest, sources: Sources) -> str:
    """Return a key that is equal for equal runs with other names; needs no data files."""
    preset = sources.preset(request.corpus)
    if not preset.exists():
        return request.name
    common, own = _overrides(request, sources)
    settings = _sections(load_preset(preset, tuple(common)).override(own))
    parts = (request.corpus, request.method, request.shape, request.variant.encoder, settings)
    return json.dumps(parts)


def _sections(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the settings that identify a run."""
    values = settings.to_dict()
    for name in _IMMATERIAL:
        section, _, key = name.rpartition(".")
        del (values[section] if section else values)[key]
    return values


def flatten(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings in sections as `section.key`."""
    return {
        f"{section}.{key}": value
        for section, values in settings.items()
        for key, value in values.items()
    }


def run_key(run: Mapping[str, Any]) -> str:
    """Return a digest of what identifies a run, given the fields of its job or its record.

    Settings at their default are left out, so that adding a setting changes no key. A changed
    default changes the keys: the records must be renamed.
    """
    parts = [run["corpus"], run["method"], run["shape"], run["encoder"]["name"], run["data"]]
    text = json.dumps([*parts, non_default(flatten(run["settings"]))], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def recipe(encoder: dict[str, str], data: dict[str, Any], settings: dict[str, Any]) -> str:
    """Return a key that is equal for runs that differ only in the seed.

    Settings, as `section.key`, are left out at their default: records lack settings that were
    added later.
    """
    seedless = {key: v for key, v in non_default(settings).items() if key != "training.seed"}
    return json.dumps([encoder, data, seedless], sort_keys=True)


def non_default(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings, as `section.key`, that are not at their default."""
    defaults = {
        f"{section}.{f.name}": f.default
        for section, cls in SECTIONS.items()
        for f in dataclasses.fields(cls)
    }
    return {key: v for key, v in settings.items() if v != defaults.get(key, object())}


def check_encoders(jobs: Iterable[Job], sources: Sources) -> dict[str, str]:
    """Return the encoders that cannot be loaded, with the reason."""
    names = dict.fromkeys(job.encoder["stands_for"] for job in jobs if job.shape is None)
    return {name: problem for name in names if (problem := sources.encoder_problem(name))}


def missing_encoder(name: str, problem: str) -> str:
    hub = ENCODERS[name].hub
    return f"encoder {name}: {problem}; give --encoder FOLDER (published as {hub})"


def _rank(name: str, patterns: Sequence[str]) -> int | None:
    """Return the index of the first pattern that matches the name or its leading parts."""
    for rank, pattern in enumerate(patterns):
        if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}/*"):
            return rank
    return None


def _missing_corpus(name: str, files: list[str]) -> str:
    corpus = CORPORA[name]
    hint = "sold by the LDC: put your own copy there" if corpus.sold else "see --data"
    if files[0].endswith(f"{corpus.preset}.yaml"):
        hint = "its preset: see --configs"
    return f"{corpus.title}: no {files[0]} ({hint})"
