"""`diffusionner annotate`"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from diffusionner.cli import options
from diffusionner.cli.messages import say
from diffusionner.errors import SettingsError, nearest
from diffusionner.storage.registry import DEFAULT

if TYPE_CHECKING:
    from diffusionner.annotation.journal import Point
    from diffusionner.annotation.run import Engine, Model, Progress

ENGINES = ("local", "ray")
SHOWN = 20  # bad records that are reported one by one
EVERY = 60  # seconds between two lines of progress where there is no terminal


def _check_output(context: typer.Context, target: str) -> str:
    """One argument alone becomes OUT, the last; but who gives one means IN."""
    if not context.params.get("sources"):
        raise SettingsError(
            f"OUT is missing; say where to write, for example: annotate {target} annotated.jsonl"
        )
    return target


def annotate(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="IN",
            help="Files, folders, patterns; - is stdin.",
            default_factory=list,  # none: then _check_output says what is missing
            show_default=False,
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="OUT.jsonl, OUT.parquet, or - for stdout.",
            callback=_check_output,
        ),
    ],
    model: options.Model = DEFAULT,
    format: Annotated[
        str | None,
        typer.Option(help="Of IN: text, jsonl or parquet.  [default: as its name or content says]"),
    ] = None,
    whole_files: Annotated[
        bool, typer.Option("--whole-files", help="A text file is one text, not one per line.")
    ] = False,
    part_rows: Annotated[
        int, typer.Option(min=1, help="Records of each Parquet file; a kill costs at most these.")
    ] = 10_000,
    engine: Annotated[str, typer.Option(help="local, or ray for a cluster.")] = "local",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Of engine ray.  [default: one per GPU, or per core]")
    ] = None,
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
    """Find the entities of a corpus of any size.

    IN is text (one per line), JSON lines with `text` or `tokens`, or Parquet with such a column,
    also compressed with gzip. Each record comes out in its place with all it had and `entities`:
    character offsets for text, word offsets for tokens, `end` exclusive. Memory does not grow with
    the corpus. Records that cannot be used are reported and left out; the exit status is then 1.

    Until it is whole, OUT is called `OUT.partial`, with `OUT.journal` beside it. A run that was
    killed, or that the disk had no room for, goes on when the same command is given again; no
    record is lost or doubled.

    Examples:

    * `diffusionner annotate corpus.jsonl annotated.jsonl`

    * `diffusionner annotate "news/**/*.txt.gz" annotated.parquet --model runs/model`

    * `zcat corpus.txt.gz | diffusionner annotate - - | jq .entities`
    """
    from diffusionner.annotation import journal, run
    from diffusionner.annotation.sources import find

    if engine not in ENGINES:
        raise SettingsError(f"unknown engine '{engine}'; {nearest(engine, ENGINES)}")
    chosen = options.inference_options(
        steps, spans, start, average, threshold, phi, overlap, seed, batch_size
    )
    path = None if target == "-" else Path(target)
    own = [] if path is None else [journal.partial(path), path]
    found = find(sources, format, whole_files, without=own)
    described = run.Model.find(model, chosen)
    console = Console(stderr=True)
    began = time.monotonic()

    def report(message: str) -> None:
        if found.bad <= SHOWN:
            say(console, message)

    with _progress(console, found.size) as tell:
        annotator = _engine(engine, described, device, workers)
        try:
            done = run.annotate(found, path, described, annotator, report, tell, part_rows)
        except KeyboardInterrupt:
            if path is not None:
                say(console, "stopped; the same command goes on from here")
            raise
    seconds = time.monotonic() - began
    say(console, f"{_counted(done)} -> {path or 'standard output'} in {_time(seconds)}")
    if found.bad:
        say(console, f"{found.bad:,} records could not be used")
        raise typer.Exit(1)


def _engine(name: str, model: Model, device: str | None, workers: int | None) -> Engine:
    if name == "ray":
        from diffusionner.annotation.ray_engine import RayEngine

        return RayEngine(model, device, workers)
    if workers is not None:
        raise SettingsError("--workers is for --engine ray; engine local uses the cores by itself")
    from diffusionner.annotation.local import LocalEngine

    return LocalEngine(options.load_model(model.folder, device), model.options)


@contextmanager
def _progress(console: Console, total: int | None) -> Iterator[Progress]:
    """A bar on a terminal, a line a minute elsewhere: records, their rate, the time left."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    watch = Watch(total)
    columns = (BarColumn(), TaskProgressColumn()) if total else ()
    text = TextColumn("{task.description}", markup=False)
    with Progress(
        text, *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("starting", total=total)
        last = time.monotonic()

        def tell(safe: Point, read: int) -> None:
            nonlocal last
            line = watch.line(safe, read)
            bar.update(task, description=line, completed=read)
            if not console.is_terminal and time.monotonic() - last >= EVERY:
                last = time.monotonic()
                say(console, line)

        yield tell


class Watch:
    """How fast a run is, from the first records it has written itself."""

    def __init__(self, total: int | None) -> None:
        self.total = total
        self.first: tuple[float, int, int] | None = None  # time, records, bytes

    def line(self, safe: Point, read: int) -> str:
        now = time.monotonic()
        if self.first is None:
            self.first = now, safe.records, read
            return _counted(safe)
        began, records, bytes_before = self.first
        seconds = max(now - began, 1e-9)
        line = f"{_counted(safe)}, {(safe.records - records) / seconds:,.0f} records/s"
        if self.total and read > bytes_before:
            left = (self.total - read) * seconds / (read - bytes_before)
            line += f", {_time(left)} left"
        return line


def _counted(point: Point) -> str:
    return f"{point.records:,} records, {point.entities:,} entities"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
