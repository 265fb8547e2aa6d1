"""The YAML file of a card: what cannot be measured, and the corpora to measure on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffusionner import formats
from diffusionner.corpus import Sentence
from diffusionner.data import merging
from diffusionner.errors import DataError

TEXTS = ("description", "language", "license", "use", "limits", "training")
LISTS = ("tags", "datasets")
CORPUS_KEYS = {"file", "recipe", "labels", "last", "map"}
_EXAMPLE = "tests: {tweets: {file: tweets.jsonl, labels: {person: PER, group: ORG}}}"


@dataclass(frozen=True)
class Corpus:
    """A corpus to measure on."""

    name: str
    given: str  # file or recipe, as written in the YAML file
    path: Path
    is_recipe: bool = False  # for `diffusionner data merge`
    folder: Path | None = None  # of the recipe's files
    labels: dict[str, str] | None = None  # corpus label → model label; others are ignored
    last: int | None = None  # number of sentences to take from the end
    mapping: dict[str, str] | None = None  # model type → corpus label, as in `evaluate`

    def read(self) -> list[Sentence]:
        if self.is_recipe:
            sentences = list(merging.merge(merging.read_recipe(self.path, self.folder)))
        else:
            sentences = formats.read(self.path)
        if self.last is not None:
            sentences = sentences[-self.last :]
        if self.labels is None:
            return sentences
        types = tuple(sorted(set(self.labels.values())))
        return [merging.relabel(sentence, self.labels, types) for sentence in sentences]


@dataclass(frozen=True)
class About:
    texts: dict[str, str]
    lists: dict[str, list[str]]
    corpora: list[Corpus]  # dev first, if there is one; curves use the first


def read_about(path: Path, folder: Path | None = None) -> About:
    """Read the YAML file; wrong or missing keys raise DataError.

    Corpus files are relative to `folder`, by default that of the YAML file. Recipes and paths that
    start with a dot are always relative to the YAML file.
    """
    given = _read(path, {"tests"}, {"dev"})
    if not isinstance(given["tests"], dict) or "dev" in given["tests"]:
        raise DataError(f"{path}: 'tests' must name corpora, none of them dev; write {_EXAMPLE}")
    places = path.parent, path.parent if folder is None else folder
    corpora = {key: given[key] for key in ("dev",) if key in given} | given["tests"]
    if not corpora:
        raise DataError(f"{path}: nothing to measure on; give 'dev', or write {_EXAMPLE}")
    found = [_corpus(str(k), v, f"{path}, {k}", *places) for k, v in corpora.items()]
    return About(*_texts_and_lists(given), found)


def read_texts(path: Path) -> About:
    """Read the YAML file of a card that is always measured on the same corpora, so names none."""
    return About(*_texts_and_lists(_read(path, set(), set())), [])


def _read(path: Path, needed: set[str], optional: set[str]) -> dict[str, Any]:
    """Return the texts, the lists, and what else is needed."""
    given = merging.read_yaml(path)
    keys = {*TEXTS, *LISTS, *needed}
    if not isinstance(given, dict) or given.keys() - optional != keys:
        wrong = "all of them"
        if isinstance(given, dict):
            wrong = ", ".join(sorted(keys ^ (given.keys() - optional)))
        also = f", and optionally {', '.join(optional)}" if optional else ""
        raise DataError(
            f"{path} must have {', '.join(sorted(keys))}{also}; missing or unknown: {wrong}"
        )
    for key in TEXTS:
        if not isinstance(given[key], str):
            raise DataError(f"{path}: '{key}' must be text")
    for key in LISTS:
        if not isinstance(given[key], list):
            raise DataError(f"{path}: '{key}' must be a list")
    return given


def _texts_and_lists(given: dict[str, Any]) -> tuple[dict[str, str], dict[str, list[str]]]:
    texts = {key: given[key].strip() for key in TEXTS}
    return texts, {key: list(map(str, given[key])) for key in LISTS}


def _corpus(name: str, given: Any, place: str, here: Path, folder: Path) -> Corpus:
    if isinstance(given, str):
        given = {"file": given}
    one_source = isinstance(given, dict) and ("file" in given) != ("recipe" in given)
    if not one_source or not given.keys() <= CORPUS_KEYS:
        raise DataError(
            f"{place}: expected a file, or 'file' or 'recipe', and optionally 'labels', 'map' and "
            f"'last'; write {_EXAMPLE}"
        )
    labels, last = given.get("labels"), given.get("last")
    for key in ("labels", "map"):
        if key in given and (not isinstance(given[key], dict) or not given[key]):
            raise DataError(f"{place}: '{key}' must map each label; write {_EXAMPLE}")
    if last is not None and (not isinstance(last, int) or last < 1):
        raise DataError(f"{place}: 'last' must be a number of sentences")
    return Corpus(
        name,
        str(given.get("file", given.get("recipe"))),
        _place(str(given.get("file", given.get("recipe"))), "recipe" in given, here, folder),
        "recipe" in given,
        folder,
        _strings(labels),
        last,
        _strings(given.get("map")),
    )


def _place(path: str, is_recipe: bool, here: Path, folder: Path) -> Path:
    return (here if is_recipe or path.startswith(".") else folder) / path


def _strings(mapping: dict[Any, Any] | None) -> dict[str, str] | None:
    return None if mapping is None else {str(old): str(new) for old, new in mapping.items()}
