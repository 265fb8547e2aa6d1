"""The command line of `python -m reproduce`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from diffusionner import cli
from diffusionner.cli.options import say
from diffusionner.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import Console

    from reproduce.plan import Plan
    from reproduce.runner import Outcome
    from reproduce.sources import Sources
    from reproduce.store import RunStore
    from reproduce.tables import Table


class Commands(cli.Commands):
    """Commands of which `run` is the default: `nested` is short for `run nested`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="reproduce",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    add_completion=False,
)


def main() -> None:
    cli.run(app)


@app.callback()
def _describe() -> None:
    """Reproduce the paper's tables and figures, with rival methods for comparison.

    `python -m reproduce TABLE...` is short for `python -m reproduce run TABLE...`. `train`,
    `evaluate`, `predict` and `data` are those of `diffusionner`; here they also know the rivals
    (`method=crf`, `biaffine`, `queries`, `autoregressive`) and the formats of ACE, OntoNotes, GENIA
    and other research code.
    """


Tables = Annotated[
    list[str] | None, typer.Argument(metavar="[TABLE]...", help="Names of tables.  [default: all]")
]
Output = Annotated[Path, typer.Option(help="Folder for tables, figures and the records of runs.")]
Seeds = Annotated[int, typer.Option(min=1, help="Runs of each kind, with seeds from 0 on.")]
Data = Annotated[Path, typer.Option(help="Folder with one folder for each corpus.")]
Configs = Annotated[Path, typer.Option(help="Folder of the presets.")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Setting to override in all runs.", show_default=False
    ),
]
RESULTS = Path("reproduce/results")
DATA = Path("data")
CONFIGS = Path("configs")


@app.command()
def run(
    names: Annotated[
        list[str], typer.Argument(metavar="TABLE...", help="Tables to fill in, or `all`.")
    ],
    data: Data = DATA,
    encoder: Annotated[
        list[str] | None,
        typer.Option(
            help="Encoder by folder or name, or a folder of encoders; may be repeated. "
            "[default: the presets' encoders, by name]",
            show_default=False,
        ),
    ] = None,
    seeds: Seeds = 2,
    budget: Annotated[
        float | None, typer.Option(min=0, help="Minutes; runs that would take longer do not start.")
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, help="Number of runs at the same time.")] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Only runs CORPUS/METHOD/VARIANT/SEED that match, such as `genia/*/*/0` or "
            "`*/crf`; may be repeated, matches of the first pattern run first.",
            show_default=False,
        ),
    ] = None,
    changes: Changes = None,
    configs: Configs = CONFIGS,
    work: Annotated[Path, typer.Option(help="Folder for runs and weights.")] = Path("runs/paper"),
    output: Output = RESULTS,
) -> None:
    """Fill in tables and figures: execute the missing runs, then write them.

    Writes Markdown, CSV, PNG and SVG, with the paper's own numbers for comparison. Every run is
    kept as a small record in OUTPUT/records and never repeated. Interrupted runs are resumed.

    Examples:

    * `python -m reproduce nested flat --data data --encoder encoders --seeds 2 --parallel 4`

    * `python -m reproduce ablations --only 'genia/*/*/0' --budget 60`
    """  # fmt: skip
    from rich.console import Console

    from reproduce import tables
    from reproduce.plan import plan
    from reproduce.sources import Sources
    from reproduce.store import RunStore

    console = Console()
    chosen = tables.find(names)
    sources = Sources(data, configs, tuple(encoder or ()), work, tuple(changes or ()))
    planned = plan(chosen, seeds, sources, tuple(only or ()))
    outcome = _run(planned, RunStore(work, output), sources, parallel, budget, console)
    # Other tables may show the same runs: all are written, so that all agree with the records.
    _render(tables.find(()), output, console, redraw=False)
    _report(outcome, console)
    if outcome.interrupted:
        raise typer.Exit(130)
    if outcome.failed:
        raise typer.Exit(1)


def _run(
    planned: Plan,
    store: RunStore,
    sources: Sources,
    parallel: int,
    budget: float | None,
    console: Console,
) -> Outcome:
    from reproduce.plan import check_encoders, missing_encoder
    from reproduce.runner import Runner
    from reproduce.view import LiveView

    untrained = [job for job in planned.jobs if not store.is_trained(job)]
    problems = check_encoders(untrained, sources)
    missing = [*planned.missing, *(missing_encoder(*one) for one in problems.items())]
    if missing:
        say(console, "skipped because files are missing:")
        for line in missing:
            say(console, f"  {line}")
    jobs = [
        job
        for job in planned.jobs
        if store.is_trained(job) or job.encoder["stands_for"] not in problems or job.shape
    ]
    if not jobs:
        raise SettingsError("these tables have no run left; give --data, --encoder or --only")
    seconds = None if budget is None else 60 * budget

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)  # ends as cleanly as Ctrl-C
    try:
        with LiveView(console) as view:
            return Runner(jobs, store, sources, view, parallel, seconds).run()
    finally:
        signal.signal(signal.SIGTERM, before)


def _report(outcome: Outcome, console: Console) -> None:
    total = outcome.done + len(outcome.failed) + len(outcome.left)
    say(console, f"{outcome.done} of {total} runs are complete")
    for name, why in outcome.failed.items():
        say(console, f"failed: {name}: {why}")
    for name, why in outcome.left.items():
        say(console, f"left to do: {name} ({why})")


@app.command("fit-beliefs")
def fit_beliefs(
    corpora: Annotated[list[str], typer.Argument(metavar="CORPUS...", help="Corpora to fit on.")],
    encoder: Annotated[str, typer.Option(help="Encoder by folder or name.")],
    data: Data = DATA,
    documents: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Training documents to use, from the first on. [default: all]",
            show_default=False,
        ),
    ] = None,
    seeds: Seeds = 1,
    fits: Annotated[
        int, typer.Option(min=1, help="Belief networks for each run, with seeds from 0 on.")
    ] = 3,
    parallel: Annotated[int, typer.Option(min=1, help="Number of runs at the same time.")] = 1,
    split: Annotated[Literal["dev", "test"], typer.Option(help="Split to measure on.")] = "dev",
    changes: Changes = None,
    configs: Configs = CONFIGS,
    work: Annotated[Path, typer.Option(help="Folder for runs and candidates.")] = Path(
        "runs/beliefs"
    ),
    write: Annotated[
        Path | None,
        typer.Option(help="Write a network fitted on all these corpora.", show_default=False),
    ] = None,
) -> None:
    """Fit the network that denoises beliefs over documents, and measure it.

    On each corpus three networks are trained: on all training documents, and on each half. A half
    reads the documents that it has not seen, and belief networks are fitted on these candidates:
    on those of this corpus, or of the other corpora given. They are measured on candidates of the
    first network. Differences are from the initializer alone. Intervals and p resample documents,
    with the counts of all networks added up; the variation between training runs is not in them.
    Scores and thresholds are fitted on dev, those for one half of dev on the other. Finished runs
    are kept in WORK.

    Example:

    * `python -m reproduce fit-beliefs genia litbank --data data --encoder encoders/e5-small`
    """
    from diffusionner.files import check_writable
    from diffusionner.storage.beliefs import write_beliefs
    from reproduce.belief_transfer import fit_and_measure
    from reproduce.sources import Sources

    if write is not None:
        check_writable(write)
    sources = Sources(data, configs, (encoder,), work, tuple(changes or ()))
    lines, network = fit_and_measure(
        corpora, sources, encoder, documents, seeds, fits, parallel, split
    )
    print(*lines, sep="\n")
    if write is not None:
        about = {"corpora": ", ".join(corpora), "encoder": Path(encoder).name, "seeds": str(seeds)}
        about |= {"documents": str(documents or "all"), "settings": ", ".join(changes or ())}
        write_beliefs(write, network.weights(), about)
        print(f"{write}: fitted on {', '.join(corpora)}")


@app.command()
def render(
    names: Tables = None,
    output: Output = RESULTS,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; compare the files with the records.")
    ] = False,
) -> None:
    """Write tables and figures from the records alone."""
    from rich.console import Console

    from reproduce import tables
    from reproduce.render import disagreements

    console = Console()
    chosen = tables.find(names or ())
    if not check:
        _render(chosen, output, console, redraw=True)
        return
    if problems := disagreements(output, chosen):
        for line in problems:
            say(console, line)
        say(console, "run `python -m reproduce render` to write them again")
        raise typer.Exit(1)
    say(console, "all files agree with the records")


def _render(chosen: list[Table], output: Path, console: Console, redraw: bool) -> None:
    from reproduce import render
    from reproduce.records import FOLDER

    written = {name: paths for name, paths in render.write(chosen, output, redraw).items() if paths}
    for name, paths in written.items():
        say(console, f"{name}: {', '.join(path.name for path in paths)} in {output}")
    if not written:
        say(console, f"there are no records in {output / FOLDER} for these tables")


@app.command("list")
def list_tables(
    names: Tables = None,
    seeds: Seeds = 2,
    data: Data = DATA,
    configs: Configs = CONFIGS,
    output: Output = RESULTS,
) -> None:
    """List the tables and how many of their runs are complete.

    Counts come from the records. Corpora that must be bought count only if their files are found
    in DATA or a record has them.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    from reproduce import plan, tables
    from reproduce.corpora import CORPORA
    from reproduce.records import Records
    from reproduce.sources import Sources

    sources = Sources(data, configs, (), Path())
    records = Records.load(output)
    known = {name for name, c in CORPORA.items() if not c.sold or not sources.missing_files(name)}
    known |= {record.corpus for record in records.all}
    shown = RichTable(box=box.SIMPLE)
    for title in ("table", "", "runs", "complete", "measurements", "complete"):
        shown.add_column(title, justify="left" if title in ("table", "") else "right")
    for table in tables.find(names or ()):
        requests = [one for one in tables.requested_runs([table], seeds) if one[0].corpus in known]
        # Several rows of a table may need the same run, under other names or with other points.
        identities = {request: plan.identity(request, sources) for request, _ in requests}
        points = {(identities[request], point) for request, points in requests for point in points}
        runs = {identities[request]: records.of(request) for request, _ in requests}
        measured = [one for key, one in points if any(record.has(one) for record in runs[key])]
        counts = (len(runs), sum(map(bool, runs.values())), len(points), len(measured))
        shown.add_row(table.name, table.title, *map(str, counts))
    Console().print(shown)


app.add_typer(cli.data.app, name="data")
app.command("train")(cli.train.train)
app.command("evaluate")(cli.evaluate.evaluate)
app.command("predict")(cli.predict.predict)
