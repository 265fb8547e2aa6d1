"""`diffusionner annotate`"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from diffusionner.cli import options
from diffusionner.cli.options import say
from diffusionner.errors import SettingsError, nearest
from diffusionner.storage.registry import DEFAULT

if TYPE_CHECKING:
    from diffusionner.annotation.journal import Position
    from diffusionner.annotation.run import Engine, ModelSpec, Progress

MAX_REPORTED = 20  # bad records reported one by one
LOG_SECONDS = 60  # between lines of progress when there is no terminal


@options.with_inference
def annotate(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="IN",
            help="Files, folders, patterns; - is stdin.",
            default_factory=list,  # a single argument is taken for OUT
            show_default=False,
        ),
    ],
    target: Annotated[
        str, typer.Argument(metavar="OUT", help="OUT.jsonl, OUT.parquet, or - for stdout.")
    ],
    model: options.Model = DEFAULT,
    labels: options.Labels = None,
    format: Annotated[
        str | None,
        typer.Option(help="Input format: text, jsonl or parquet.  [default: detected]"),
    ] = None,
    whole_files: Annotated[
        bool, typer.Option("--whole-files", help="Read a text file as one text, not one per line.")
    ] = False,
    part_rows: Annotated[
        int, typer.Option(min=1, help="Records per Parquet file; a kill loses at most these.")
    ] = 10_000,
    engine: Annotated[str, typer.Option(help="local, or ray for a cluster.")] = "local",
    workers: Annotated[
        int | None, typer.Option(min=1, help="For engine ray.  [default: one per GPU, or per core]")
    ] = None,
    *,
    inference: dict[str, Any],
    device: options.Device = None,
    threads: options.Threads = None,
) -> None:
    """Annotate a corpus of any size.

    IN is text (one per line), JSON lines with `text` or `tokens`, or Parquet with such a column;
    text and JSON lines may be gzipped. Each record is written in its place with its fields plus
    `entities`: character offsets for text, word offsets for tokens, `end` exclusive; discontinuous
    ones also have `fragments`. Memory use does not grow with the corpus. Bad records are reported
    and skipped; the exit status is then 1.

    Until it is complete, OUT is called `OUT.partial`, with `OUT.journal` next to it. Repeat the
    same command to resume a run that was killed or ran out of disk space; no record is lost or
    duplicated.

    Examples:

    * `diffusionner annotate corpus.jsonl annotated.jsonl`

    * `diffusionner annotate "news/**/*.txt.gz" annotated.parquet --model runs/model`

    * `zcat corpus.txt.gz | diffusionner annotate - - | jq .entities`
    """
    from diffusionner.annotation.journal import partial_path
    from diffusionner.annotation.run import ModelSpec
    from diffusionner.annotation.run import annotate as run
    from diffusionner.annotation.sources import find_sources

    if not sources:
        raise SettingsError(
            f"OUT is missing; say where to write, for example: annotate {target} annotated.jsonl"
        )
    output = None if target == "-" else Path(target)
    exclude = [] if output is None else [partial_path(output), output]
    found = find_sources(sources, format, whole_files, exclude)
    spec = ModelSpec.load(model, inference, options.parse_labels(labels))
    console = Console(stderr=True)
    started = time.monotonic()

    def report(message: str) -> None:
        if found.skipped <= MAX_REPORTED:
            say(console, message)

    with _progress(console, found.size) as progress:
        annotator = _load_engine(engine, spec, device, workers, threads)
        try:
            done = run(found, output, spec, annotator, report, progress, part_rows)
        except KeyboardInterrupt:
            if output is not None:
                say(console, "stopped; repeat the command to resume")
            raise
    seconds = time.monotonic() - started
    say(console, f"{_counts(done)} -> {output or 'standard output'} in {_clock(seconds)}")
    if found.skipped:
        say(console, f"bad records skipped: {found.skipped:,}")
        raise typer.Exit(1)


def _load_engine(
    name: str, model: ModelSpec, device: str | None, workers: int | None, threads: int | None
) -> Engine:
    if name == "ray":
        from diffusionner.annotation.ray_engine import RayEngine

        return RayEngine(model, device, workers, threads)
    if name != "local":
        raise SettingsError(f"unknown engine '{name}'; {nearest(name, ('local', 'ray'))}")
    if workers is not None:
        raise SettingsError("--workers requires --engine ray; engine local uses all cores itself")
    from diffusionner.annotation.run import annotate_records

    return partial(annotate_records, options.load_model(model.folder, device), model.options)


@contextmanager
def _progress(console: Console, total: int | None) -> Iterator[Progress]:
    """Show records, rate and time left: as a bar on a terminal, else as a line per minute."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    meter = RateMeter(total)
    columns = (BarColumn(), TaskProgressColumn()) if total else ()
    text = TextColumn("{task.description}", markup=False)
    with Progress(
        text, *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("starting", total=total)
        last = time.monotonic()

        def update(position: Position, bytes_read: int) -> None:
            nonlocal last
            line = meter.line(position, bytes_read)
            bar.update(task, description=line, completed=bytes_read)
            if not console.is_terminal and time.monotonic() - last >= LOG_SECONDS:
                last = time.monotonic()
                say(console, line)

        yield update


class RateMeter:
    """Measures the rate of a run from the first records it has written itself."""

    def __init__(self, total: int | None) -> None:
        self.total = total
        self.first: tuple[float, int, int] | None = None  # time, records, bytes

    def line(self, position: Position, bytes_read: int) -> str:
        now = time.monotonic()
        if self.first is None:
            self.first = now, position.records, bytes_read
            return _counts(position)
        started, records, bytes_before = self.first
        seconds = max(now - started, 1e-9)
        line = f"{_counts(position)}, {(position.records - records) / seconds:,.0f} records/s"
        if self.total and bytes_read > bytes_before:
            left = (self.total - bytes_read) * seconds / (bytes_read - bytes_before)
            line += f", {_clock(left)} left"
        return line


def _counts(position: Position) -> str:
    return f"{position.records:,} records, {position.entities:,} entities"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
