"""`diffusionner data check`"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffusionner.cli.data import shared
from diffusionner.cli.messages import say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from diffusionner.data.checks import CheckedFile
    from diffusionner.data.findings import Findings
    from diffusionner.settings import Settings

_PLACES = 3  # of each kind that are shown without --all
_ASSIGNMENT = re.compile(r"[a-z_]+(\.[a-z_]+)?=")


def check(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|KEY=VALUE",
            help="Corpora, then settings to change, e.g. inference.overlap=flat.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file of an experiment: its settings and, without FILE, its corpora.",
            show_default=False,
        ),
    ] = None,
    train: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Training corpus: labels that it does not have are errors, sentences that it "
            "has are leakage. Itself not checked.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Corpus whose sentences are leakage. Itself not checked.",
            show_default=False,
        ),
    ] = None,
    format: shared.Format = None,
    rare: Annotated[int, typer.Option(help="Note labels with fewer entities.", min=0)] = 5,
    strict: Annotated[
        bool, typer.Option("--strict", help="Status 1 if there are warnings.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Show every place.")] = False,
    json_path: shared.Json = None,
) -> None:
    """Find what is wrong with corpora, each by file and line, and the best F1 there can be.

    Errors (training refuses the file): what cannot be read, entities outside their sentence or
    empty, labels that the training corpus lacks. Warnings: entities that stand twice, cross, or
    share their words; annotations in parts or cut through a word; sentences and entities too long
    for the encoder; sentences that stand in several of the files; scattered documents; labels that
    differ by case. Notes: rare labels, entities that begin or end with punctuation.

    The F1 ceiling is what a model with these settings has if it finds all that it can.

    Exit status: 0 if there are no errors, 1 if there are warnings and `--strict`, 2 if there are
    errors.

    Examples:

    * `diffusionner data check train.jsonl dev.jsonl test.jsonl --strict`

    * `diffusionner data check --config my.yaml inference.overlap=flat`
    """
    from rich.console import Console

    from diffusionner import formats
    from diffusionner.data.ceiling import Room, find_tokenizer
    from diffusionner.data.checks import Checker
    from diffusionner.data.findings import Findings, Severity
    from diffusionner.errors import DataError
    from diffusionner.settings import Settings

    overrides = [a for a in arguments or () if _ASSIGNMENT.match(a) and not Path(a).exists()]
    files = [Path(a) for a in arguments or () if a not in overrides]
    settings = Settings.load(config, overrides) if config else Settings().override(overrides)
    learned: Path | None = None  # the file that is trained on, if it is checked
    if config and not files:
        data = settings.data
        files = [Path(path) for path in (data.train, data.dev, data.test) if path]
        learned = Path(data.train) if data.train else None
        format = format or data.format
    if not files:
        raise DataError("give files to check, or --config with data.train, data.dev or data.test")
    if format is not None:
        formats.parse(format)
    # Without a choice of an encoder there is no need to look for it, which takes seconds.
    chosen = config is not None or any(a.startswith("encoder") for a in overrides)
    room = Room(settings.encoder, find_tokenizer(settings.encoder.name) if chosen else None)
    findings = Findings(None if every or json_path else _PLACES)
    several = len(files) + len(train or ()) + len(against or ()) > 1
    checker = Checker(settings, room, findings, several, rare)
    for path in train or ():
        checker.compare_with(path, format, train=True)
    for path in against or ():
        checker.compare_with(path, format, train=False)
    checked = [checker.check(path, format, train=path == learned) for path in files]
    checker.finish()

    console = Console()
    show_findings(console, findings, None if every else _PLACES)
    console.print(reach_table(checked, settings))
    if room.tokenizer is None:
        say(console, _by_words(settings, chosen))
    numbers = {severity: findings.count(severity) for severity in reversed(Severity)}
    console.print(", ".join(f"{n} {s}{'s' * (n != 1)}" for s, n in numbers.items()))
    if json_path is not None:
        shared.write_json(
            json_path,
            {
                "files": [file.to_dict() for file in checked],
                "window": {"size": room.size, "unit": room.unit},
                "counts": {kind: findings.counts[kind] for kind in findings.kinds()},
                "findings": [f.to_dict() for kind in findings.kinds() for f in findings.kept[kind]],
            },
        )
    if numbers[Severity.ERROR]:
        raise typer.Exit(2)
    if strict and numbers[Severity.WARNING]:
        raise typer.Exit(1)


def show_findings(console: Console, findings: Findings, most: int | None) -> None:
    """The places of each kind, as compilers show them, then how many there are of each."""
    from rich.table import Column, Table

    from diffusionner.data.findings import KINDS

    table = Table("", "what", Column("times", justify="right"))
    for kind in findings.kinds():
        count = findings.counts[kind]
        shown = findings.kept[kind][:most]
        for finding in shown:
            say(console, str(finding))
        if count > len(shown):
            more = f"  ... {count - len(shown)} more ({kind}); --all shows them"
            console.print(more, highlight=False, markup=False)
        severity, heading = KINDS[kind]
        table.add_row(str(severity), f"{heading} ({kind})", str(count))
    if findings.kinds():
        console.print(table)


def reach_table(checked: Sequence[CheckedFile], settings: Settings) -> Table:
    """A column a file: gold entities, those out of reach by the reason, and the F1 ceiling."""
    from rich.table import Table
    from rich.text import Text

    from diffusionner.data.ceiling import REASONS

    names = shared.short_names([str(file.path) for file in checked])
    inference = settings.inference
    title = f"inference.overlap={inference.overlap}, inference.spans={inference.spans}"
    table = Table("never found", title=title)
    for file in checked:
        table.add_column(Text(names[str(file.path)]), justify="right")
    table.add_row("gold entities", *(str(file.reach.gold) for file in checked))
    for reason, heading in REASONS.items():
        table.add_row("  " + heading, *(str(file.reach.lost[reason]) for file in checked))
    ceilings = [file.reach.ceiling for file in checked]
    table.add_row("F1 ceiling", *("-" if c is None else f"{100 * c:.2f}" for c in ceilings))
    return table


def _by_words(settings: Settings, chosen: bool) -> str:
    why = "name an encoder with --config or encoder.name= to count subwords"
    if chosen:
        why = f"the tokenizer of '{settings.encoder.name}' is not on this machine"
    return f"lengths are in words, so windows may hold less than it seems: {why}"
