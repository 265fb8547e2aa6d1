"""Label Studio's JSON: tasks with a text and its labelled regions, by characters.

Reads an array (or JSON lines) of `{"data": {"text"}, "annotations": [{"result": [{"type": "labels",
"value": {"start", "end", "text", "labels": [...]}}]}]}` and the flat JSON-MIN export, `{"text",
"label": [{"start", "end", "text", "labels"}], "annotation_id"}`, in which the list is named after
the control tag. Each label of a region is an entity. If a task has several annotations, the first
one that was not cancelled is used; a task whose annotations were all cancelled is skipped, and one
without annotations has no entities. Predictions, and results that are not regions of text (choices,
relations), are ignored. Writes the first shape, with one annotation per task; `data` has the
document's name under `doc`, a key of ours.

The editor used to count UTF-16 code units before it counted characters, and a project may contain
annotations of both kinds. A region whose `text` differs from the text at its offsets is an error;
if all regions count UTF-16 code units, the option offsets=utf16 reads them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex

from diffusionner.corpus import Sentence
from diffusionner.errors import DataError
from diffusionner.formats import json_fields as fields
from diffusionner.formats.documents import TextDocument, to_documents, to_sentences
from diffusionner.formats.format import Capabilities, Format
from diffusionner.formats.json_files import read_values, write_array
from diffusionner.formats.offset_units import UNITS, OffsetOptions, offsets_in, to_annotations
from diffusionner.formats.source import Sample, Source, shorten

_TASK = (
    '{"data": {"text": "..."}, "annotations": [{"result": [{"type": "labels", '
    '"value": {"start": 0, "end": 3, "labels": ["..."]}}]}]}'
)
_REGION = '{"start": 0, "end": 3, "labels": ["..."]}'
_INVISIBLE = regex.compile(r"\s|\\n")


@dataclass(frozen=True)
class LabelStudioOptions(OffsetOptions):
    """key: name of the text in a task's data."""

    key: str = "text"


def recognises(sample: Sample) -> bool:
    """Check for a text inside `data`; in flat tasks, for an annotation's number or regions."""
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
    tasks = _first_annotations(read_values(source))
    return source.convert_each(tasks, lambda task, where: _convert(task, where, options))


def _first_annotations(tasks: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Skip flat records that are further annotations of the previous task."""
    previous = None
    for where, task in tasks:
        number = task.get("id") if isinstance(task, dict) and "annotation_id" in task else None
        if number is None or number != previous:
            yield where, task
        previous = number


def _convert(task: Any, where: str, options: LabelStudioOptions) -> list[Sentence]:
    regions: list[Any] | None
    if isinstance(task, dict) and "data" not in task:
        data, regions = task, _flat_regions(task, options.key)
    else:
        data = fields.get(task, "data", dict, where, _TASK)
        regions = _regions(task, where)
        if regions is None:
            return []
    if options.key not in data:
        keys = shorten(", ".join(map(repr, data))) or "none"
        raise DataError(
            f"{where}: no '{options.key}' among the keys of the data ({keys}); name the key of "
            "the text with the option key"
        )
    text = fields.get(data, options.key, str, where, _TASK)
    spans = [span for region in regions for span in _spans(region, where)]
    _check_texts(regions, text, options.offsets, where)
    annotations = to_annotations(text, spans, options.offsets, where)
    doc = fields.document(data, where) if options.key != "doc" else None
    return to_sentences(TextDocument(text, annotations, doc, where), options)


def _is_region(value: Any) -> bool:
    return isinstance(value, dict) and {"start", "end"} <= value.keys()


def _flat_regions(task: dict[str, Any], key: str) -> list[Any]:
    """Return the items of the lists of regions; other lists are choices and the like."""
    lists = [value for name, value in task.items() if name != key and isinstance(value, list)]
    return [item for items in lists if any(map(_is_region, items)) for item in items]


def _regions(task: dict[str, Any], where: str) -> list[Any] | None:
    """Return the regions of a task; None if all its annotations were cancelled."""
    old = "annotations" not in task and "completions" in task  # before version 1.0
    annotations = task.get("completions" if old else "annotations") or []
    if not isinstance(annotations, list):
        raise DataError(
            f"{where}: 'annotations' must be a list, not {fields.describe(annotations)}; "
            f"write {_TASK}"
        )
    for annotation in annotations:
        results = fields.get(annotation, "result", list, where, _TASK)
        if not annotation.get("was_cancelled"):
            return [region for result in results for region in _labelled(result, where)]
    return [] if not annotations else None


def _labelled(result: Any, where: str) -> Iterator[Any]:
    kind = fields.get(result, "type", str, where, _TASK)
    if kind == "labels":
        yield fields.get(result, "value", dict, where, _TASK)
    elif kind.endswith("labels"):
        raise DataError(
            f"{where}: a result of type '{kind}' is not on plain text; only type 'labels' can be "
            "read, so label the text with <Labels> and <Text>"
        )


def _spans(region: Any, where: str) -> Iterator[tuple[int, int, str]]:
    labels = fields.get(region, "labels", list, where, _REGION)
    if not labels:
        start, end = region.get("start"), region.get("end")
        raise DataError(f"{where}: the region [{start}, {end}) has no label; add one")
    for label in labels:
        yield fields.span({**region, "label": label}, where, _REGION)


def _check_texts(regions: list[Any], text: str, unit: str, where: str) -> None:
    """Raise DataError if a region's `text` differs from the text at its offsets."""
    for region in regions:
        expected = region.get("text")
        if not isinstance(expected, str):
            continue
        start, end = region["start"], region["end"]
        found = _text_at(text, unit, start, end)
        if _visible(found) == _visible(expected):
            continue
        problem = (
            f"{where}: the region [{start}, {end}) has the text {shorten(repr(expected))}, but "
            f"its offsets point to {shorten(repr(found))}; "
        )
        (other,) = (name for name in UNITS if name != unit)
        if _visible(_text_at(text, other, start, end)) == _visible(expected):
            raise DataError(
                f"{problem}they count {UNITS[other]}: read the file with the option offsets={other}"
            )
        raise DataError(f"{problem}label it again, or correct its offsets")


def _text_at(text: str, unit: str, start: int, end: int) -> str:
    offsets = offsets_in(unit, text)
    return text[bisect_left(offsets, start) : bisect_left(offsets, end)]


def _visible(text: str) -> str:
    """Remove white space, which the browser changes; the editor writes line breaks as \\n."""
    return _INVISIBLE.sub("", text)


def write(sentences: Iterable[Sentence], path: Path, options: LabelStudioOptions) -> None:
    numbered = enumerate(to_documents(sentences), 1)
    write_array((_to_task(n, document, options) for n, document in numbered), path)


def _to_task(number: int, document: TextDocument, options: LabelStudioOptions) -> dict[str, Any]:
    text = document.text
    offsets = offsets_in(options.offsets, text)
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
    doc = document.doc if options.key != "doc" else None
    data = fields.with_document({options.key: text}, doc)
    return {"id": number, "data": data, "annotations": [{"result": result}]}


FORMAT = Format(
    name="labelstudio",
    summary="Label Studio's JSON and JSON-MIN: texts with labelled regions",
    recognises=recognises,
    read=read,
    write=write,
    options=LabelStudioOptions,
    capabilities=Capabilities(irregular="contiguous", text=True),
)
