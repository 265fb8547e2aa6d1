"""Several corpora as one, their labels made the same.

Corpora look for different things. What one of them does not mark is not absent from its text, so
each sentence says which labels were looked for (`types`), and training knows what nobody marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from diffusionner import formats
from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError, nearest

ARTICLES = frozenset(("the", "a", "an"))
KEYS = ("file", "labels", "names", "first", "after")
_EXAMPLE = "sources: [{file: corpus.jsonl, labels: {person: PER, group: ORG}}]"


@dataclass(frozen=True)
class Part:
    """One of the corpora."""

    file: Path
    labels: dict[str, str]  # its own → those of the result; others are left out
    names: bool = False  # keep names only, of a corpus that also marks "the old man"
    first: int | None = None  # take no more than its first sentences
    after: int = 0  # or what comes after so many


def read_yaml(path: Path) -> Any:
    """What a YAML file holds."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not YAML: {error}") from error


def read_recipe(path: Path, folder: Path | None = None) -> list[Part]:
    """A YAML file with `sources`; their files count from the folder, or from its own."""
    given = read_yaml(path)
    sources = given.get("sources") if isinstance(given, dict) else None
    if not isinstance(sources, list) or not sources:
        raise DataError(f"{path} has no list 'sources'; write {_EXAMPLE}")
    folder = path.parent if folder is None else folder
    return [
        _part(source, f"{path}, source {number}", folder)
        for number, source in enumerate(sources, start=1)
    ]


def _part(source: Any, place: str, folder: Path) -> Part:
    if not isinstance(source, dict) or not {"file", "labels"} <= source.keys() <= set(KEYS):
        raise DataError(
            f"{place}: expected 'file', 'labels' and perhaps 'names', 'first', 'after'; "
            f"write {_EXAMPLE}"
        )
    labels, names = source["labels"], source.get("names", False)
    if not isinstance(labels, dict) or not labels or not isinstance(names, bool):
        raise DataError(
            f"{place}: 'labels' must say what each label becomes, 'names' true or false; "
            f"write {_EXAMPLE}"
        )
    first, after = source.get("first"), source.get("after", 0)
    if not all(type(one) is int and one >= 0 for one in (after, first or 0)):
        raise DataError(f"{place}: 'first' and 'after' are numbers of sentences")
    mapped = {str(old): str(new) for old, new in labels.items()}
    return Part(folder / str(source["file"]), mapped, names, first, after)


def merge(
    parts: list[Part], left_out: Callable[[Part, set[str]], None] = lambda part, labels: None
) -> Iterator[Sentence]:
    """The sentences of all parts, documents kept apart.

    left_out is called with each part and those of its labels that the recipe does not name.
    """
    everything = {new for part in parts for new in part.labels.values()}
    for number, part in enumerate(parts):
        annotated_types = set(part.labels.values())
        types = None if annotated_types == everything else tuple(sorted(annotated_types))
        for sentence in _taken(part, left_out):
            entities = [
                span._replace(label=part.labels[span.label])
                for span in sentence.entities
                if span.label in part.labels
            ]
            if part.names:
                entities = [name for span in entities for name in _name(span, sentence.words)]
            yield replace(
                sentence,
                entities=sorted(set(entities)),
                doc=None if sentence.doc is None else f"{number}/{sentence.doc}",
                types=types,
                irregular=[
                    one._replace(label=part.labels[one.label])
                    for one in sentence.irregular
                    if one.label in part.labels
                ],
            )


def _taken(part: Part, left_out: Callable[[Part, set[str]], None]) -> Iterator[Sentence]:
    """The sentences of a part; DataError at its end if it lacks a label that the recipe names."""
    taken: set[str] = set()
    passed: set[str] = set()
    stop = None if part.first is None else part.after + part.first
    sentences = _noting(formats.iterate(part.file), passed)
    yield from _noting(islice(sentences, part.after, stop), taken)
    left_out(part, taken - part.labels.keys())
    if part.labels.keys() <= passed:
        return
    for _ in sentences:  # a label may be only in what is not taken
        pass
    unknown = [label for label in part.labels if label not in passed]
    if unknown and passed:  # of a corpus without any entity nothing can be dropped
        known, hint = ", ".join(sorted(passed)), nearest(unknown[0], sorted(passed))
        raise DataError(
            f"{part.file} has no label '{unknown[0]}', which the recipe names; "
            + (hint if known in hint else f"{hint} It has: {known}")
        )


def _noting(sentences: Iterable[Sentence], labels: set[str]) -> Iterator[Sentence]:
    """The sentences as they pass, and their labels: those marked and those looked for."""
    for sentence in sentences:
        labels.update(span.label for span in sentence.entities)
        labels.update(one.label for one in sentence.irregular)
        labels.update(sentence.types or ())
        yield sentence


def _name(span: Span, words: list[str]) -> list[Span]:
    """The span without its article if it is a name: begins and ends with a capital or a number."""
    start = span.start
    if words[start].lower() in ARTICLES and span.end - start > 1:
        start += 1
    first, last = words[start], words[span.end - 1]
    begins = first[:1].isupper() or first[:1].isdigit()
    ends = last[:1].isupper() or last[:1].isdigit() or last == "."
    return [span._replace(start=start)] if begins and ends else []
