"""Merging of corpora with different label sets into one.

Corpora annotate different things. A label that one of them does not annotate is not absent from its
text, so each sentence records the labels that it was annotated for (`types`), and training does not
treat unannotated entities as negatives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from diffusionner import formats
from diffusionner.corpus import Sentence, Span, collect_labels
from diffusionner.errors import DataError, nearest

_ARTICLES = frozenset(("the", "a", "an"))
_KEYS = {"file", "labels", "names", "first", "after", "format"}
ALL = "all"
_EXAMPLE = "sources: [{file: corpus.jsonl, labels: {person: PER, group: ORG}}]"


@dataclass(frozen=True)
class MergeSource:
    """One of the corpora to merge."""

    file: Path
    # Old label → new label, or several that documents take turns with; other labels are dropped.
    # None keeps all labels.
    labels: dict[str, tuple[str, ...]] | None
    names: bool = False  # keep only names, if the corpus also annotates phrases ("the old man")
    first: int | None = None  # maximum number of sentences
    after: int = 0  # number of sentences to skip
    format: str | None = None  # detected if not given

    @property
    def new_labels(self) -> set[str]:
        """Return all labels that the mapping leads to."""
        return {new for names in (self.labels or {}).values() for new in names}


def read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not YAML: {error}") from error


def read_recipe(path: Path, folder: Path | None = None) -> list[MergeSource]:
    """Read a YAML file with `sources`.

    Their files are relative to `folder` or, without one or if they start with a dot, to the recipe.
    """
    recipe = read_yaml(path)
    sources = recipe.get("sources") if isinstance(recipe, dict) else None
    if not isinstance(sources, list) or not sources:
        raise DataError(f"{path} has no list 'sources'; write {_EXAMPLE}")
    return [
        _read_source(source, f"{path}, source {number}", path.parent, folder)
        for number, source in enumerate(sources, start=1)
    ]


def _read_source(source: Any, place: str, own: Path, folder: Path | None) -> MergeSource:
    """own: the folder of the recipe."""
    if not isinstance(source, dict) or not {"file", "labels"} <= source.keys() <= _KEYS:
        raise DataError(
            f"{place}: expected 'file', 'labels' and optionally 'names', 'first', 'after', "
            f"'format'; write {_EXAMPLE}"
        )
    labels, names = source["labels"], source.get("names", False)
    fits = labels == ALL
    if isinstance(labels, dict):
        fits = bool(labels) and all(map(_named, labels.values()))
    if not fits or not isinstance(names, bool):
        raise DataError(
            f"{place}: 'labels' must map old labels to new ones, or be '{ALL}', and 'names' must "
            f"be true or false; write {_EXAMPLE}"
        )
    first, after = source.get("first"), source.get("after", 0)
    if not all(type(number) is int and number >= 0 for number in (after, first or 0)):
        raise DataError(f"{place}: 'first' and 'after' must be numbers of sentences")
    mapping = None
    if labels != ALL:
        mapping = {
            str(old): tuple(map(str, new)) if isinstance(new, list) else (str(new),)
            for old, new in labels.items()
        }
    format = source.get("format")
    file = str(source["file"])
    place_of_file = own if folder is None or file.startswith(".") else folder
    return MergeSource(
        place_of_file / file, mapping, names, first, after, None if format is None else str(format)
    )


def _named(new: Any) -> bool:
    """Return whether these are new labels: a name or a list of names."""
    return bool(new) and (not isinstance(new, list) or all(new))


def merge(
    sources: list[MergeSource], dropped: dict[Path, set[str]] | None = None
) -> Iterator[Sentence]:
    """Yield the sentences of all sources with the new labels.

    dropped: filled with the labels of each file that the recipe does not map.
    """
    all_labels = set().union(*(source.new_labels for source in sources))
    keeps_all = any(source.labels is None for source in sources)
    takes_turns = any(len(names) > 1 for s in sources for names in (s.labels or {}).values())
    for number, source in enumerate(sources):
        turn, before = -1, None
        own: list[str] = []  # all labels of the file
        for sentence in _selected(source, {} if dropped is None else dropped):
            if sentence.doc is None or sentence.doc != before:
                turn, before = turn + 1, sentence.doc
            labels = {old: new[turn % len(new)] for old, new in (source.labels or {}).items()}
            relabelled = sentence
            if source.labels is None:
                if sentence.types is None:
                    own = own or collect_labels(formats.iterate(source.file, source.format))
                    relabelled = replace(sentence, types=tuple(own))
            else:
                old = labels if sentence.types is None else labels.keys() & sentence.types
                annotated = {labels[label] for label in old}
                if not annotated:  # nothing that the recipe maps was looked for
                    continue
                is_complete = annotated == all_labels and not (takes_turns or keeps_all)
                types = None if is_complete else tuple(sorted(annotated))
                relabelled = relabel(sentence, labels, types)
            entities, discontinuous = relabelled.entities, relabelled.discontinuous
            if source.names:
                entities = [name for span in entities for name in _name(span, sentence.words)]
                discontinuous = [
                    e for e in discontinuous if _is_name(e.start, e.end, sentence.words)
                ]
            doc = None if sentence.doc is None else f"{number}/{sentence.doc}"
            yield replace(
                relabelled,
                entities=sorted(set(entities)),
                discontinuous=sorted(set(discontinuous)),
                doc=doc,
            )


def relabel(
    sentence: Sentence, labels: Mapping[str, str], types: tuple[str, ...] | None
) -> Sentence:
    """Rename labels and drop annotations whose label is not in the mapping."""
    entities = [e for e in sentence.entities if e.label in labels]
    discontinuous = [e for e in sentence.discontinuous if e.label in labels]
    irregular = [e for e in sentence.irregular if e.label in labels]
    return replace(
        sentence,
        entities=[e._replace(label=labels[e.label]) for e in entities],
        discontinuous=[e._replace(label=labels[e.label]) for e in discontinuous],
        irregular=[e._replace(label=labels[e.label]) for e in irregular],
        types=types,
    )


def _selected(source: MergeSource, dropped: dict[Path, set[str]]) -> Iterator[Sentence]:
    """Yield the selected sentences, then raise DataError if the file lacks a mapped label."""
    seen: set[str] = set()
    selected: set[str] = set()
    end = None if source.first is None else source.after + source.first
    # Read to the end: a label may occur only in sentences that are not selected.
    for number, sentence in enumerate(formats.iterate(source.file, source.format)):
        labels = {e.label for e in sentence.all_entities} | {e.label for e in sentence.irregular}
        labels.update(sentence.types or ())
        seen |= labels
        if source.after <= number and (end is None or number < end):
            selected |= labels
            yield sentence
    if source.labels is None:
        return
    dropped.setdefault(source.file, set()).update(selected - source.labels.keys())
    unknown = [label for label in source.labels if label not in seen]
    if unknown and seen:  # a corpus without entities has nothing to drop
        known, hint = ", ".join(sorted(seen)), nearest(unknown[0], sorted(seen))
        raise DataError(
            f"{source.file} has no label '{unknown[0]}', which the recipe maps; "
            + (hint if known in hint else f"{hint} It has: {known}")
        )


def _name(span: Span, words: list[str]) -> list[Span]:
    """Return the span without its article if it starts and ends like a name, else nothing."""
    start = span.start
    if words[start].lower() in _ARTICLES and span.end - start > 1:
        start += 1
    return [span._replace(start=start)] if _is_name(start, span.end, words) else []


def _is_name(start: int, end: int, words: list[str]) -> bool:
    """Return True if an entity starts and ends like a name."""

    def like_name(word: str) -> bool:
        return word[:1].isupper() or word[:1].isdigit()

    last = words[end - 1]
    return like_name(words[start]) and (like_name(last) or last == ".")
