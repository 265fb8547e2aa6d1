"""`diffusionner data check`"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffusionner.cli.data import shared
from diffusionner.cli.options import say
from diffusionner.files import to_json, write_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from diffusionner.batching.subwords import SubwordTokenizer
    from diffusionner.data.checks import CheckedFile
    from diffusionner.data.findings import Findings
    from diffusionner.settings import EncoderSettings, Settings

_SHOWN = 3  # findings of each kind that are shown without --all
_ASSIGNMENT = re.compile(r"[a-z_]+(\.[a-z_]+)?=")


def check(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|KEY=VALUE",
            help="Corpora, and settings to override, e.g. inference.overlap=flat.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML config: its settings and, without FILE, its corpora."),
    ] = None,
    train: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Training corpus: labels that it lacks are errors, sentences that it shares are "
            "leakage. Not checked itself.",
        ),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Corpus whose sentences are leakage, not checked itself."
        ),
    ] = None,
    format: shared.Format = None,
    rare: Annotated[int, typer.Option(help="Note labels with fewer entities.", min=0)] = 5,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with status 1 if there are warnings.")
    ] = False,
    show_all: Annotated[bool, typer.Option("--all", help="Show every finding.")] = False,
    json_path: shared.Json = None,
) -> None:
    """Check corpora for problems, reported by file and line, and compute the F1 ceiling.

    Errors (training refuses the file): unreadable records, entities outside their sentence or
    without words, labels that the training corpus lacks. Warnings: duplicate or crossing entities,
    several labels on the same words, misaligned annotations, entities of more than four fragments,
    sentences and entities too long for the encoder, sentences in several of the files, scattered
    documents, labels that differ only in case. Notes: discontinuous entities, rare labels, entities
    that start or end with punctuation.

    The F1 ceiling is the score of a model with these settings that makes no avoidable error. It
    counts discontinuous entities as reachable unless decoder.discontinuous=false.

    Exit status: 0 if there are no errors, 1 if there are warnings and `--strict` is given, 2 if
    there are errors.

    Examples:

    * `diffusionner data check train.jsonl dev.jsonl test.jsonl --strict`

    * `diffusionner data check --config my.yaml inference.overlap=flat`
    """
    from rich.console import Console

    from diffusionner import formats
    from diffusionner.data.ceiling import WindowSplitter
    from diffusionner.data.checks import Checker
    from diffusionner.data.findings import Findings, Severity
    from diffusionner.errors import DataError
    from diffusionner.settings import Settings

    overrides = [a for a in arguments or () if _ASSIGNMENT.match(a) and not Path(a).exists()]
    files = [Path(a) for a in arguments or () if a not in overrides]
    settings = Settings.load(config, overrides) if config else Settings().override(overrides)
    training_file: Path | None = None
    if config and not files:
        data = settings.data
        files = [Path(path) for path in (data.train, data.dev, data.test) if path]
        training_file = Path(data.train) if data.train else None
        format = format or data.format
    if not files:
        raise DataError("give files to check, or --config with data.train, data.dev or data.test")
    if format is not None:
        formats.parse_format(format)
    # Loading a tokenizer takes seconds, so do it only if an encoder was chosen.
    chosen = config is not None or any(a.startswith("encoder") for a in overrides)
    encoder = settings.encoder
    splitter = WindowSplitter(encoder, load_local_tokenizer(encoder) if chosen else None)
    findings = Findings(None if show_all or json_path else _SHOWN)
    compare = len(files) + len(train or ()) + len(against or ()) > 1
    checker = Checker(settings, splitter, findings, compare, rare)
    for path in (*(train or ()), *(against or ())):
        checker.compare_with(path, format, train=path in (train or ()))
    checked = [checker.check(path, format, train=path == training_file) for path in files]
    checker.finish()

    console = Console()
    _show_findings(console, findings, None if show_all else _SHOWN)
    console.print(_ceiling_table(checked, settings))
    if splitter.tokenizer is None:
        why = "choose an encoder with --config or encoder.name= to count subwords"
        if chosen:
            why = f"the tokenizer of '{encoder.name}' is not on this machine"
        say(console, f"lengths are in words, so fewer may fit into a window: {why}")
    numbers = {severity: findings.count(severity) for severity in reversed(Severity)}
    console.print(", ".join(f"{n} {s}{'s' * (n != 1)}" for s, n in numbers.items()))
    if json_path is not None:
        kinds = findings.kinds()
        values = {
            "files": [file.to_dict() for file in checked],
            "window": {"size": splitter.size, "unit": splitter.unit},
            "counts": {kind: findings.counts[kind] for kind in kinds},
            "findings": [f.to_dict() for kind in kinds for f in findings.kept[kind]],
        }
        write_bytes(json_path, to_json(values))
    if numbers[Severity.ERROR]:
        raise typer.Exit(2)
    if strict and numbers[Severity.WARNING]:
        raise typer.Exit(1)


def load_local_tokenizer(settings: EncoderSettings) -> SubwordTokenizer | None:
    """Load the tokenizer of an encoder, or return None if it is not on this machine."""
    import torch
    from transformers import AutoConfig

    from diffusionner.errors import DiffusionNERError
    from diffusionner.model.encoder import position_limit
    from diffusionner.storage.encoders import build_encoder, encoder_location, load_tokenizer

    try:
        path = encoder_location(settings.name)
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):  # without weights
            limit = position_limit(build_encoder(config.to_dict()))
        return load_tokenizer(path, limit, True, settings.cased)
    except (DiffusionNERError, OSError, ValueError):
        return None


def _show_findings(console: Console, findings: Findings, shown: int | None) -> None:
    """Print the findings like a compiler, then a table of their numbers."""
    from rich.table import Column, Table

    from diffusionner.data.findings import KINDS

    table = Table("", "finding", Column("times", justify="right"))
    for kind in findings.kinds():
        count, kept = findings.counts[kind], findings.kept[kind][:shown]
        for finding in kept:
            say(console, str(finding))
        if count > len(kept):
            say(console, f"  ... {count - len(kept)} more ({kind}); --all shows them")
        severity, description = KINDS[kind]
        table.add_row(str(severity), f"{description} ({kind})", str(count))
    if findings.kinds():
        console.print(table)


def _ceiling_table(checked: Sequence[CheckedFile], settings: Settings) -> Table:
    """Return a column for each file: gold entities, unreachable ones by reason, F1 ceiling."""
    from diffusionner.data.ceiling import REASONS

    inference = settings.inference
    title = f"inference.overlap={inference.overlap}, inference.spans={inference.spans}"
    if settings.decoder.discontinuous is False:
        title += ", decoder.discontinuous=false"
    columns = shared.short_names([str(file.path) for file in checked])
    table = shared.column_table("unreachable entities", columns, title)
    ceilings = [file.ceiling for file in checked]
    table.add_row("gold entities", *(str(ceiling.gold) for ceiling in ceilings))
    for reason, description in REASONS.items():
        table.add_row("  " + description, *(str(ceiling.lost[reason]) for ceiling in ceilings))
    table.add_row("F1 ceiling", *("-" if c.f1 is None else f"{100 * c.f1:.2f}" for c in ceilings))
    return table
