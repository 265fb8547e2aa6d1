"""`diffusionner predict`"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from diffusionner.annotation.records import entity_fields, parse_line
from diffusionner.cli import options
from diffusionner.cli.show import show
from diffusionner.drawing import Entities
from diffusionner.drawing.html import write_page
from diffusionner.errors import DataError, WriteError
from diffusionner.registry import DEFAULT


def predict(
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts.")] = None,
    input_path: Annotated[
        str | None, typer.Option("--input", help="JSONL to read; - is standard input.")
    ] = None,
    output_path: Annotated[
        str | None, typer.Option("--output", help="JSONL to write; - is standard output.")
    ] = None,
    html_path: Annotated[
        Path | None, typer.Option("--html", help="Write a page with the entities drawn.")
    ] = None,
    model: options.Model = DEFAULT,
    steps: options.Steps = None,
    spans: options.Spans = None,
    start: options.Start = None,
    average: options.Average = None,
    threshold: options.Threshold = None,
    phi: options.Phi = None,
    overlap: options.Overlap = None,
    seed: options.Seed = None,
    batch_size: options.BatchSize = None,
    device: options.Device = None,
) -> None:
    """Find the entities of texts.

    Texts on the command line are shown with their entities underneath. With `--input`, each line
    is `{"text": ...}` or `{"tokens": [...]}`, and comes back as the same object plus `entities`:
    character offsets for text, word offsets for tokens, `end` exclusive. Lines next to each other
    that share a `doc` are each other's context. A line that cannot be used is reported by its
    number and left out; the exit status is then 1.

    Examples:

    * `diffusionner predict "Ada Lovelace met Charles Babbage in London."`

    * `diffusionner predict --model runs/model "IL-2 activates human T cells."`

    * `diffusionner predict --model runs/model --input in.jsonl --output out.jsonl`

    * `diffusionner predict --html found.html "Ada Lovelace met Charles Babbage in London."`
    """
    if bool(texts) == bool(input_path):
        raise DataError("give either texts or --input, for example: predict 'Some text.'")
    if input_path not in (None, "-") and not Path(str(input_path)).is_file():
        raise DataError(f"{input_path}: no such file; use --input - to read standard input")
    ner = options.load_model(model, device)
    chosen = options.inference_options(
        steps, spans, start, average, threshold, phi, overlap, seed, batch_size
    )
    drawn: list[Entities] = []
    if texts and output_path is None:
        console = Console()
        for text, entities in zip(texts, ner.pipe(texts, **chosen), strict=True):
            show(console, text, entities, ner.labels)
            drawn.append(entities)
        _draw(html_path, drawn)
        return

    errors = Console(stderr=True)
    with ExitStack() as stack:
        if texts:
            lines = (json.dumps({"text": text}).encode() for text in texts)
            reader = Reader(lines, "text", errors)
        elif input_path == "-":
            reader = Reader(iter(sys.stdin.buffer), "standard input", errors)
        else:
            file = stack.enter_context(open(str(input_path), "rb"))
            reader = Reader(iter(file), str(input_path), errors)
        bar = stack.enter_context(
            Progress(
                TextColumn("lines"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=errors,
                transient=True,
                disable=not errors.is_terminal,
            )
        )
        task = bar.add_task("lines", total=None)
        write = _writer(output_path, stack)
        for entities in ner.stream(reader.items(), **chosen):
            record = reader.finished.pop(0)
            write({**record, "entities": [entity_fields(entity) for entity in entities]})
            if html_path is not None:
                drawn.append(entities)
            bar.advance(task)
    _draw(html_path, drawn)
    if reader.bad:
        errors.print(f"{reader.bad} of {reader.lines} lines could not be used", highlight=False)
        raise typer.Exit(1)


def _draw(path: Path | None, drawn: list[Entities]) -> None:
    if path is not None:
        write_page(path, drawn)


class Reader:
    """Input lines one by one; bad ones are reported and skipped."""

    def __init__(self, lines: Iterator[bytes], name: str, errors: Console) -> None:
        self.source = lines
        self.name = name
        self.errors = errors
        self.lines = 0
        self.bad = 0
        self.finished: list[dict[str, Any]] = []  # records given out, oldest first

    def items(self) -> Iterator[tuple[str | list[str], str | None]]:
        for line in self.source:
            self.lines += 1
            if not line.strip():
                continue
            try:
                record, content, doc = parse_line(line)
            except ValueError as error:
                self.bad += 1
                place = f"{self.name}:{self.lines}"
                self.errors.print(f"{escape(place)}: {escape(str(error))}", highlight=False)
                continue
            self.finished.append(record)
            yield content, doc


def _writer(path: str | None, stack: ExitStack) -> Any:
    """A function that writes one record. A file appears under its name only when it is whole."""
    partial: Path | None = None
    file: IO[str]
    if path in (None, "-"):
        file = sys.stdout
    else:
        target = Path(str(path))
        partial = target.with_name(target.name + ".partial")
        try:
            file = open(partial, "w", encoding="utf-8", newline="\n")  # noqa: SIM115
        except OSError as error:
            raise WriteError(
                f"cannot write {target}: {error.strerror}; check the folder"
            ) from error

        def close(failed: Any, *_: Any) -> None:
            try:
                file.close()
                if failed is None:
                    partial.replace(target)
            except OSError as error:
                raise _stuck(partial, error) from error

        stack.push(close)

    def write(record: dict[str, Any]) -> None:
        try:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            if partial is None:
                file.flush()  # whoever reads a pipe wants the line now
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _stuck(partial, error) from error

    return write


def _stuck(partial: Path | None, error: OSError) -> WriteError:
    place = partial or "standard output"
    return WriteError(f"cannot go on writing {place}: {error.strerror}; what is there is kept")
