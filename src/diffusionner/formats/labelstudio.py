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
from diffusionner.formats.documents import TextDocument, to_documents, to_sentences
from diffusionner.formats.format import Capabilities, Format
from diffusionner.formats.json_files import write_array
from diffusionner.formats.json_records import Record, convert_records, with_document
from diffusionner.formats.offset_units import UNITS, OffsetOptions, offsets_in, to_annotations
from diffusionner.formats.source import Sample, Source, check_label, shorten

_TASK = (
    '{"data": {"text": "..."}, "annotations": [{"result": [{"type": "labels", '
    '"value": {"start": 0, "end": 3, "labels": ["..."]}}]}]}'
)
_DATA = f"{_TASK}, or name the key of the text with the option key"
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
    previous = None

    def convert(task: Record) -> list[Sentence]:
        """Skip flat tasks that are further annotations of the previous task."""
        nonlocal previous
        number = task.fields.get("id") if "annotation_id" in task.fields else None
        repeated = number is not None and number == previous
        previous = number
        return [] if repeated else _sentences(task, options)

    return convert_records(source, _TASK, convert)


def _sentences(task: Record, options: LabelStudioOptions) -> list[Sentence]:
    flat = "data" not in task.fields
    data = Record(task.fields if flat else task.get("data", dict), task.where, _DATA)
    regions = _flat_regions(task, options.key) if flat else _regions(task)
    if regions is None:
        return []
    text = data.get(options.key, str)
    spans = [span for region in regions for span in _spans(region)]
    for region in regions:
        _check_text(region, text, options.offsets)
    annotations = to_annotations(text, spans, options.offsets, task.where)
    doc = data.document() if options.key != "doc" else None
    return to_sentences(TextDocument(text, annotations, doc, task.where), options)


def _is_region(value: Any) -> bool:
    return isinstance(value, dict) and {"start", "end"} <= value.keys()


def _flat_regions(task: Record, key: str) -> list[Record]:
    """Return the items of the lists of regions; other lists are choices and the like."""
    return [
        region
        for name, value in task.fields.items()
        if name != key and isinstance(value, list) and any(map(_is_region, value))
        for region in task.objects(name)
    ]


def _regions(task: Record) -> list[Record] | None:
    """Return the regions of a task; None if all its annotations were cancelled."""
    old = "annotations" not in task.fields and "completions" in task.fields  # before version 1.0
    key = "completions" if old else "annotations"
    annotations = task.objects(key) if task.has(key) and task.fields[key] else []
    for annotation in annotations:
        results = annotation.objects("result")
        if not annotation.fields.get("was_cancelled"):
            return [region for result in results for region in _labelled(result)]
    return None if annotations else []


def _labelled(result: Record) -> Iterator[Record]:
    kind, value = result.get("type", str), result.fields.get("value")
    if kind == "labels":
        yield Record(result.get("value", dict), result.where, _TASK)
    elif kind.endswith("labels") or (isinstance(value, dict) and "labels" in value):
        raise result.error(
            f"a result of type '{kind}' is not on plain text; only type 'labels' can be read, so "
            "label the text with <Labels> and <Text>"
        )


def _spans(region: Record) -> list[tuple[int, int, str]]:
    start, end, labels = region.integer("start"), region.integer("end"), region.get("labels", list)
    if not labels:
        raise region.error(f"the region [{start}, {end}) has no label; add one")
    return [(start, end, check_label(label, region.where)) for label in labels]


def _check_text(region: Record, text: str, unit: str) -> None:
    """Raise DataError if a region's `text` differs from the text at its offsets."""
    expected, start, end = region.fields.get("text"), region.get("start"), region.get("end")
    if not isinstance(expected, str):
        return
    found = _text_at(text, unit, start, end)
    if _visible(found) == _visible(expected):
        return
    remedy = "label it again, or correct its offsets"
    (other,) = (name for name in UNITS if name != unit)
    if _visible(_text_at(text, other, start, end)) == _visible(expected):
        remedy = f"they count {UNITS[other]}: read the file with the option offsets={other}"
    raise region.error(
        f"the region [{start}, {end}) has the text {shorten(repr(expected))}, but its offsets "
        f"point to {shorten(repr(found))}; {remedy}"
    )


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
    data = with_document({options.key: text}, doc)
    return {"id": number, "data": data, "annotations": [{"result": result}]}


FORMAT = Format(
    name="labelstudio",
    summary="Label Studio's JSON and JSON-MIN: texts with labelled regions",
    recognises=recognises,
    read=read,
    write=write,
    options=LabelStudioOptions,
    capabilities=Capabilities(irregular=True, text=True),
)
