"""Label Studio's JSON: tasks of a text and the regions labelled in it, by characters.

Read are an array (or JSON lines) of `{"data": {"text"}, "annotations": [{"result": [{"type":
"labels", "value": {"start", "end", "text", "labels": [...]}}]}]}` and the flat JSON-MIN export,
`{"text", "label": [{"start", "end", "text", "labels"}], "annotation_id"}`, in which the list is
called like the control tag. Each label of a region is an entity. Of several annotations of a task
the first that was not cancelled counts; a task whose annotations were all cancelled is skipped,
and one without any is a text without entities. Predictions, and results that are not regions of
text (choices, relations), are ignored.

`data` has the document's name under `doc`, a key of ours. The first shape is written, with one
annotation to a task.

The editor counted UTF-16 code units before it counted characters, and annotations of both kinds
may be in one project. A region whose `text` is not what its offsets point to is an error; if all
are of the first kind, the option offsets=utf16 reads them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex

from diffusionner.corpus import Sentence
from diffusionner.errors import DataError
from diffusionner.formats import records
from diffusionner.formats.base import Format, Holds, Sample, Source
from diffusionner.formats.offsets import UNITS, OffsetOptions, by_characters, counted
from diffusionner.formats.texts import TextDocument, to_documents, to_sentences

_TASK = (
    '{"data": {"text": "..."}, "annotations": [{"result": [{"type": "labels", '
    '"value": {"start": 0, "end": 3, "labels": ["..."]}}]}]}'
)
_REGION = '{"start": 0, "end": 3, "labels": ["..."]}'
_UNSEEN = regex.compile(r"\s|\\n")


@dataclass(frozen=True)
class LabelStudioOptions(OffsetOptions):
    """key: what the text is called in a task's data."""

    key: str = "text"


def recognises(sample: Sample) -> bool:
    """Tasks have their text in `data`; flat ones have an annotation's number, or regions."""
    if {"annotation_id", "lead_time"} <= sample.keys:
        return True
    items = [item for key in sample.keys for item in sample.members(key)]
    if any(_is_region(item) and "labels" in item for item in items):
        return True
    return any(
        isinstance(record.get("data"), dict) and not record.keys() & {"text", "tokens"}
        for record in sample.records
    )


def read(source: Source, options: LabelStudioOptions) -> Iterator[Sentence]:
    tasks = _first_of_each(source.records())
    return source.each(tasks, lambda task, at: _convert(task, at, options))


def _first_of_each(tasks: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Without the flat records that are further annotations of the task before."""
    previous = None
    for where, task in tasks:
        number = task.get("id") if isinstance(task, dict) and "annotation_id" in task else None
        if number is None or number != previous:
            yield where, task
        previous = number


def _convert(task: Any, where: str, options: LabelStudioOptions) -> list[Sentence]:
    if isinstance(task, dict) and "data" not in task:
        data, regions = task, _flat_regions(task, options.key)
    else:
        data = records.member(task, "data", dict, where, _TASK)
        found = _regions(task, where)
        if found is None:
            return []
        regions = found
    if options.key not in data:
        keys = records.short(", ".join(map(repr, data))) or "none"
        raise DataError(
            f"{where}: no '{options.key}' among the keys of the data ({keys}); name the one that "
            "holds the text with the option key"
        )
    text = records.member(data, options.key, str, where, _TASK)
    spans = [span for region in regions for span in _spans(region, where)]
    _check_texts(regions, text, options.offsets, where)
    annotations = by_characters(text, spans, options.offsets, where)
    doc = records.document(data.get("doc"), "doc", where) if options.key != "doc" else None
    return to_sentences(TextDocument(text, annotations, doc, where), options)


def _is_region(value: Any) -> bool:
    return isinstance(value, dict) and {"start", "end"} <= value.keys()


def _flat_regions(task: dict[str, Any], key: str) -> list[Any]:
    """What stands in the lists of regions: other lists are choices and the like."""
    lists = [value for name, value in task.items() if name != key and isinstance(value, list)]
    return [item for items in lists if any(map(_is_region, items)) for item in items]


def _regions(task: dict[str, Any], where: str) -> list[Any] | None:
    """The values of a task's labels; None if all its annotations were cancelled."""
    old = "annotations" not in task and "completions" in task  # before version 1.0
    annotations = task.get("completions" if old else "annotations") or []
    if not isinstance(annotations, list):
        raise DataError(
            f"{where}: 'annotations' must be a list, not {records.name(annotations)}; write {_TASK}"
        )
    for annotation in annotations:
        results = records.member(annotation, "result", list, where, _TASK)
        if not annotation.get("was_cancelled"):
            return [value for result in results for value in _labels(result, where)]
    return [] if not annotations else None


def _labels(result: Any, where: str) -> Iterator[Any]:
    kind = records.member(result, "type", str, where, _TASK)
    if kind == "labels":
        yield records.member(result, "value", dict, where, _TASK)
    elif kind.endswith("labels"):
        raise DataError(
            f"{where}: a result of type '{kind}' is not on plain text; only those of type 'labels' "
            "can be read, so label the text with <Labels> and <Text>"
        )


def _spans(region: Any, where: str) -> Iterator[tuple[int, int, str]]:
    start, end = (records.member(region, key, object, where, _REGION) for key in ("start", "end"))
    start = records.integer(start, "'start' of a region", where)
    end = records.integer(end, "'end' of a region", where)
    labels = records.member(region, "labels", list, where, _REGION)
    if not labels:
        raise DataError(f"{where}: the region [{start}, {end}) has no label; give it one")
    for label in labels:
        yield start, end, records.label(label, where)


def _check_texts(regions: list[Any], text: str, unit: str, where: str) -> None:
    """Raise DataError if a region has a text that is not what its offsets point to."""
    offsets = counted(text, unit)
    for region in regions:
        expected = region.get("text")
        if not isinstance(expected, str):
            continue
        start, end = region["start"], region["end"]
        seen = _seen(text, offsets, start, end)
        if _visible(seen) == _visible(expected):
            continue
        problem = (
            f"{where}: the region [{start}, {end}) has the text {records.short(repr(expected))}, "
            f"but its offsets point to {records.short(repr(seen))}; "
        )
        (other,) = (name for name in UNITS if name != unit)
        seen = _seen(text, counted(text, other), start, end)
        if _visible(seen) == _visible(expected):
            name = "UTF-16 code units" if other == "utf16" else other
            raise DataError(
                f"{problem}they count {name}: read the file with the option offsets={other}"
            )
        raise DataError(problem + "label it anew, or correct its offsets")


def _seen(text: str, offsets: Sequence[int], start: int, end: int) -> str:
    """What stands at these offsets, as far as they are in the text."""
    return text[bisect_left(offsets, start) : bisect_left(offsets, end)]


def _visible(text: str) -> str:
    """Without white space, which the browser changes; the editor writes line breaks as \\n."""
    return _UNSEEN.sub("", text)


def write(sentences: Iterable[Sentence], path: Path, options: LabelStudioOptions) -> None:
    numbered = enumerate(to_documents(sentences), 1)
    records.write_array((_to_task(n, document, options) for n, document in numbered), path)


def _to_task(number: int, document: TextDocument, options: LabelStudioOptions) -> dict[str, Any]:
    text = document.text
    offsets = counted(text, options.offsets)
    result = []
    for region, (((start, end),), label) in enumerate(document.annotations, 1):
        value = {"start": offsets[start], "end": offsets[end], "text": text[start:end]}
        result.append(
            {
                "id": f"{number}-{region}",
                "type": "labels",
                "from_name": "label",
                "to_name": "text",
                "value": {**value, "labels": [label]},
            }
        )
    data = {options.key: text}
    if document.doc is not None and options.key != "doc":
        data["doc"] = document.doc
    return {"id": number, "data": data, "annotations": [{"result": result}]}


FORMAT = Format(
    name="labelstudio",
    summary="Label Studio's JSON and JSON-MIN: texts with labelled regions",
    recognises=recognises,
    read=read,
    write=write,
    options=LabelStudioOptions,
    holds=Holds(irregular="cut", text=True),
)
