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
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from diffusionner.annotation import journal
from diffusionner.annotation.records import entity_fields, parse_line
from diffusionner.cli import options
from diffusionner.cli.messages import say
from diffusionner.cli.show import show
from diffusionner.corpus import Entities
from diffusionner.drawing.html import write_page
from diffusionner.errors import DataError, WriteError
from diffusionner.files import check_writable, refuse_overwrite
from diffusionner.storage.registry import DEFAULT


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

    * `pdftotext paper.pdf - | diffusionner predict -`

    * `diffusionner predict --html found.html "Ada Lovelace met Charles Babbage in London."`
    """
    if bool(texts) == bool(input_path):
        raise DataError("give either texts or --input, for example: predict 'Some text.'")
    if input_path not in (None, "-") and not Path(str(input_path)).is_file():
        raise DataError(f"{input_path}: no such file; use --input - to read standard input")
    if output_path not in (None, "-"):
        target = Path(str(output_path))
        check_writable(target)
        if input_path not in (None, "-"):
            for written in (target, journal.partial(target)):
                refuse_overwrite(written, Path(str(input_path)))
    texts = [_standard_input() if text == "-" else text for text in texts or ()]
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
        output = stack.enter_context(Output(output_path, errors))
        for entities in ner.stream(reader.items(), **chosen):
            record = reader.finished.pop(0)
            output.write({**record, "entities": [entity_fields(entity) for entity in entities]})
            if html_path is not None:
                drawn.append(entities)
            bar.advance(task)
    _draw(html_path, drawn)
    if reader.bad:
        say(errors, f"{reader.bad} of {reader.lines} lines could not be used")
        raise typer.Exit(1)


def _standard_input() -> str:
    """All of it, as one text."""
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"standard input is not UTF-8 ({error.reason}); convert it") from error


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
                say(self.errors, f"{self.name}:{self.lines}: {error}{self._hint(error)}")
                continue
            self.finished.append(record)
            yield content, doc

    def _hint(self, error: ValueError) -> str:
        """What may have been meant, where the first bad line is that of a plain text."""
        plain = isinstance(error.__cause__, json.JSONDecodeError)
        if not plain or self.bad > 1 or self.name != "standard input":
            return ""
        return "; for plain text: diffusionner annotate - -"


class Output:
    """Records as lines of JSON. A file appears under its name only when it is whole."""

    def __init__(self, path: str | None, errors: Console) -> None:
        self.target = None if path in (None, "-") else Path(str(path))
        self.partial = None if self.target is None else journal.partial(self.target)
        self.errors = errors
        self.records = 0

    def __enter__(self) -> Output:
        self.file: IO[str] = sys.stdout
        if self.partial is not None:
            try:
                self.partial.parent.mkdir(parents=True, exist_ok=True)
                self.file = open(self.partial, "w", encoding="utf-8", newline="\n")
            except OSError as error:
                raise WriteError(
                    f"cannot write {self.target}: {error.strerror}; check the folder"
                ) from error
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if self.partial is None or self.target is None:
            return
        try:
            self.file.close()
            if failed is None:
                self.partial.replace(self.target)
        except OSError as error:
            raise self._stuck(error) from error
        if failed is KeyboardInterrupt:
            say(self.errors, f"stopped; {self.records} lines are done, in {self.partial}")

    def write(self, record: dict[str, Any]) -> None:
        try:
            self.file.write(json.dumps(record, ensure_ascii=False) + "\n")
            if self.partial is None:
                self.file.flush()  # whoever reads a pipe wants the line now
        except BrokenPipeError:
            raise
        except OSError as error:
            raise self._stuck(error) from error
        self.records += 1

    def _stuck(self, error: OSError) -> WriteError:
        place = self.partial or "standard output"
        return WriteError(f"cannot go on writing {place}: {error.strerror}; what is there is kept")
