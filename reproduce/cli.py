"""`diffusionner paper`"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffusionner.cli.messages import say
from diffusionner.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import Console

    from reproduce.collect import Shelf
    from reproduce.plan import Plan
    from reproduce.runner import Outcome
    from reproduce.sources import Sources
    from reproduce.tables import Table


def paper(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE...",
            help="Tables to fill in, or all; `list` shows them, `render [TABLE...]` only writes.",
        ),
    ],
    data: Annotated[Path, typer.Option(help="Folder with one folder for each corpus.")] = Path(
        "data"
    ),
    encoder: Annotated[
        list[str] | None,
        typer.Option(
            help="Encoder by folder or name, or a folder of encoders; may be repeated. "
            "[default: the presets', by name]",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each kind.")] = 2,
    budget: Annotated[
        float | None,
        typer.Option(min=0, help="Minutes: what does not fit any more is not started."),
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, help="Runs side by side.")] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Only runs CORPUS/METHOD/VARIANT/SEED that match, such as `genia/*/*/0` or "
            "`*/crf`; may be repeated, the first is run first.",
            show_default=False,
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting that all runs get.", show_default=False
        ),
    ] = None,
    configs: Annotated[Path, typer.Option(help="Folder of the presets.")] = Path("configs"),
    work: Annotated[Path, typer.Option(help="Folder for runs and weights.")] = Path("runs/paper"),
    output: Annotated[
        Path, typer.Option(help="Folder for tables, figures and the records of runs.")
    ] = Path("docs/paper"),
    check: Annotated[
        bool, typer.Option("--check", help="With `render`: write nothing, compare what is there.")
    ] = False,
) -> None:
    """Fill in the paper's tables and figures.

    Runs what is missing and writes Markdown, CSV, PNG and SVG beside the paper's own numbers. Every
    run is kept as a small record in OUTPUT/records and never run again; one that was stopped goes
    on from where it was. `list` shows the tables and how much of them is there, `render` writes
    them from the records alone.

    Examples:

    * `diffusionner paper nested flat --data data --encoder encoders --seeds 2 --parallel 4`

    * `diffusionner paper ablations --only 'genia/*/*/0' --budget 60`

    * `diffusionner paper render`
    """
    from rich.console import Console

    from reproduce import render, tables
    from reproduce.collect import Shelf
    from reproduce.sources import Sources

    console = Console()
    command = what[0] if what[0] in ("list", "render") else None
    chosen = tables.find(what[1:] if command else what)
    if check and command != "render":
        raise SettingsError("--check goes with `diffusionner paper render`")
    if command == "render":
        if check:
            _compare(render.disagreements(output, chosen), console)
        else:
            _render(chosen, output, console, redraw=True)
        return
    sources = Sources(data, configs, tuple(encoder or ()), work, tuple(changes or ()))
    if command == "list":
        _list(chosen, seeds, sources, output, console)
        return
    from reproduce.plan import plan

    found = plan(chosen, seeds, sources, tuple(only or ()))
    outcome = _run(found, Shelf(work, output), sources, parallel, budget, console)
    # Other tables may show the same runs: all are written, so that all agree with the records.
    _render(tables.find(()), output, console, redraw=False)
    _report(outcome, console)
    if outcome.interrupted:
        raise typer.Exit(130)
    if outcome.failed:
        raise typer.Exit(1)


def _run(
    found: Plan,
    shelf: Shelf,
    sources: Sources,
    parallel: int,
    budget: float | None,
    console: Console,
) -> Outcome:
    from reproduce.plan import check_encoders, missing_encoder
    from reproduce.runner import Runner
    from reproduce.view import LiveView

    untrained = [job for job in found.jobs if not shelf.is_trained(job)]
    problems = check_encoders(untrained, sources)
    missing = [*found.missing, *(missing_encoder(*one) for one in problems.items())]
    if missing:
        say(console, "left out, for it is not there:")
        for line in missing:
            say(console, f"  {line}")
    jobs = [
        job
        for job in found.jobs
        if shelf.is_trained(job) or job.encoder["stands_for"] not in problems or job.shape
    ]
    if not jobs:
        raise SettingsError("no run is left of these tables; give --data, --encoder or --only")
    seconds = None if budget is None else 60 * budget

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)  # ends as cleanly as Ctrl-C
    try:
        with LiveView(console) as view:
            return Runner(jobs, shelf, sources, view, parallel, seconds).run()
    finally:
        signal.signal(signal.SIGTERM, before)


def _render(chosen: list[Table], output: Path, console: Console, redraw: bool) -> None:
    from reproduce import render
    from reproduce.records import FOLDER

    files = render.write(chosen, output, redraw)
    written = {name: paths for name, paths in files.items() if paths}
    for name, paths in written.items():
        say(console, f"{name}: {', '.join(path.name for path in paths)} in {output}")
    if not written:
        say(console, f"there are no records in {output / FOLDER} for these tables")


def _compare(found: list[str], console: Console) -> None:
    for line in found:
        say(console, line)
    if found:
        say(console, "run `diffusionner paper render` to write them anew")
        raise typer.Exit(1)
    say(console, "all files agree with the records")


def _report(outcome: Outcome, console: Console) -> None:
    total = outcome.done + len(outcome.failed) + len(outcome.left)
    say(console, f"{outcome.done} of {total} runs are there")
    for name, why in outcome.failed.items():
        say(console, f"failed: {name}: {why}")
    for name, why in outcome.left.items():
        say(console, f"left to do: {name} ({why})")


def _list(
    chosen: list[Table], seeds: int, sources: Sources, output: Path, console: Console
) -> None:
    """From the records alone; corpora that are sold only count where they are."""
    from rich import box
    from rich.table import Table as RichTable

    from reproduce import plan, tables
    from reproduce.corpora import CORPORA
    from reproduce.records import Records

    records = Records.load(output)
    there = {name for name, c in CORPORA.items() if not c.sold or not sources.missing_files(name)}
    there |= {record.corpus for record in records.all}
    shown = RichTable(box=box.SIMPLE)
    for title in ("table", "", "runs", "there", "measured of them", "there"):
        shown.add_column(title, justify="left" if title in ("table", "") else "right")
    for table in chosen:
        wanted = [one for one in tables.wanted([table], seeds) if one[0].corpus in there]
        # Several rows of a table may want the same run, by other names or with other points.
        named = {want: plan.identity(want, sources) for want, _ in wanted}
        points = {(named[want], point) for want, points in wanted for point in points}
        runs = {named[want]: want for want, _ in wanted}
        own = {
            name: [
                record
                for record in records.select(want.corpus, want.method, want.variant, want.shape)
                if record.seed == want.seed
            ]
            for name, want in runs.items()
        }
        measured = [
            one.name for name, one in points if any(record.has(one) for record in own[name])
        ]
        counts = (len(runs), sum(map(bool, own.values())), len(points), len(measured))
        shown.add_row(table.name, table.title, *map(str, counts))
    console.print(shown)
