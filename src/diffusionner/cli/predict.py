"""`diffusionner predict`"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from diffusionner.annotation.journal import partial_path
from diffusionner.annotation.record import Record
from diffusionner.annotation.sources import Sources
from diffusionner.annotation.writers import StdoutWriter
from diffusionner.cli import options
from diffusionner.cli.options import say
from diffusionner.cli.show import show
from diffusionner.corpus import Entities
from diffusionner.drawing.html import write_page
from diffusionner.errors import DataError, SettingsError, WriteError
from diffusionner.files import check_writable, refuse_overwrite
from diffusionner.formats.source import decode
from diffusionner.storage.registry import DEFAULT


@options.with_inference
def predict(
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Texts; - is standard input.")
    ] = None,
    input_path: Annotated[
        str | None, typer.Option("--input", help="JSONL to read; - is standard input.")
    ] = None,
    output_path: Annotated[
        str | None, typer.Option("--output", help="JSONL to write; - is standard output.")
    ] = None,
    html_path: Annotated[
        Path | None, typer.Option("--html", help="Write a page that draws the entities.")
    ] = None,
    refine: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Refine the spans in this field of each input line."),
    ] = None,
    only: Annotated[
        bool, typer.Option("--only", help="With --refine: only entities that the spans became.")
    ] = False,
    label_map: Annotated[
        list[str] | None,
        typer.Option(
            metavar="THEIRS=OURS",
            help="With --refine: translate a label of the spans; THEIRS= drops it. Repeatable.",
        ),
    ] = None,
    model: options.Model = DEFAULT,
    labels: options.Labels = None,
    *,
    inference: dict[str, Any],
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse text that cannot be read completely.")
    ] = False,
    device: options.Device = None,
    threads: options.Threads = None,
) -> None:
    """Predict the entities in texts.

    Texts on the command line are printed with their entities underneath. With `--input`, each line
    is `{"text": ...}` or `{"tokens": [...]}` and is written back with `entities` added: character
    offsets for text, word offsets for tokens, `end` exclusive; discontinuous ones also have
    `fragments`. Neighbouring lines with the same `doc` are context for each other. Bad lines are
    reported and skipped; the exit status is then 1.

    With `--refine FIELD`, each line has spans in that field (`{"start", "end", "label"?}` or
    `[start, end, label?]`). They are denoised together with the model's own candidates, or with
    `--only` alone, and `outcomes` says what became of each: kept, moved, retyped or dropped.

    Examples:

    * `diffusionner predict "Ada Lovelace met Charles Babbage in London."`

    * `diffusionner predict --model runs/model "IL-2 activates human T cells."`

    * `diffusionner predict --model runs/model --input in.jsonl --output out.jsonl`

    * `diffusionner predict --model open --labels "dish, spice" "Biryani needs saffron."`

    * `diffusionner predict --input in.jsonl --refine entities --only --label-map PERSON=person`

    * `pdftotext paper.pdf - | diffusionner predict -`

    * `diffusionner predict --html found.html "Ada Lovelace met Charles Babbage in London."`
    """
    from diffusionner.annotation.run import annotate_records, check_spans, refine_records
    from diffusionner.inference.coverage import check_read

    if bool(texts) == bool(input_path):
        raise DataError("give either texts or --input, for example: predict 'Some text.'")
    source = None if input_path in (None, "-") else Path(str(input_path))
    target = None if output_path in (None, "-") else Path(str(output_path))
    if source is not None and not source.is_file():
        raise DataError(f"{source}: no such file; use --input - to read standard input")
    if target is not None:
        check_writable(target)
        if source is not None:
            refuse_overwrite(target, source)
            refuse_overwrite(partial_path(target), source)
    texts = [_read_stdin() if text == "-" else text for text in texts or ()]
    if refine is None and (only or label_map):
        raise SettingsError("--only and --label-map belong to --refine FIELD; add it")
    if refine is not None and texts:
        raise SettingsError("--refine reads spans from the lines of --input; leave out the texts")
    mapping, asked = _parse_label_map(label_map or ()), options.parse_labels(labels)
    ner = options.load_model(model, device)
    if asked is not None:
        ner = ner.for_labels(asked)
    errors = Console(stderr=True)
    sources = Sources([source], "jsonl")
    drawn: list[Entities] = []

    def report(message: str) -> None:
        first_is_plain = sources.skipped == 1 and ": not valid JSON (" in message
        hint = "; for plain text: diffusionner annotate - -" if first_is_plain else ""
        say(errors, message if source else message + hint)

    def has_spans(record: Record) -> bool:
        assert refine is not None
        try:
            check_spans(record, refine, ner.labels, mapping)
        except DataError as error:
            sources.skipped += 1
            report(str(error))
            return False
        return True

    def results() -> Iterator[tuple[Record, Entities]]:
        given = (Record({"text": t}, t, None, f"text {n}") for n, t in enumerate(texts, 1))
        records = given if texts else sources.records(report)
        predicted: Iterator[tuple[Record, Entities]]
        if refine is None:
            predicted = annotate_records(ner, inference, records)
        else:
            usable = filter(has_spans, records)
            predicted = refine_records(ner, inference, usable, refine, only, mapping)
        for record, entities in predicted:
            try:
                if strict:
                    check_read(entities, record.place)
            except DataError as error:
                if texts:
                    raise
                sources.skipped += 1
                report(str(error))
                continue
            if html_path is not None:
                drawn.append(entities)
            yield record, entities

    if texts and output_path is None:
        console = Console()
        for record, entities in results():
            show(console, str(record.content), entities, ner.labels)
    else:
        hidden = not errors.is_terminal
        lines = track(results(), "lines", console=errors, transient=True, disable=hidden)
        _write(lines, target, errors)
    if html_path is not None:
        write_page(html_path, drawn)
    if sources.skipped:
        say(errors, f"bad records skipped: {sources.skipped:,}")
        raise typer.Exit(1)


def _parse_label_map(pairs: Iterable[str]) -> dict[str, str | None]:
    mapping = {}
    for pair in pairs:
        theirs, equals, ours = pair.partition("=")
        if not theirs or not equals:
            raise SettingsError(
                f"--label-map {pair}: expected THEIRS=OURS, for example PERSON=person"
            )
        mapping[theirs] = ours or None
    return mapping


def _read_stdin() -> str:
    return decode(sys.stdin.buffer.read(), "standard input", True).rstrip("\r\n")


def _write(
    results: Iterable[tuple[Record, Entities]], target: Path | None, errors: Console
) -> None:
    """Write records as JSON lines; a file gets its final name when it is complete."""
    if target is None:
        stdout = StdoutWriter()
        for result in results:
            stdout.write([result])
        return
    partial = partial_path(target)
    written = 0
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            for record, entities in results:
                file.write(record.to_json_line(entities))
                written += 1
        partial.replace(target)
    except OSError as error:
        raise WriteError(
            f"{partial} cannot be written: {error.strerror}; check the folder and the free disk "
            "space"
        ) from error
    except KeyboardInterrupt:
        say(errors, f"stopped; {written} lines are done, in {partial}")
        raise
