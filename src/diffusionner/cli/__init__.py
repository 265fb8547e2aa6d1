"""The command line: one file a command, each a thin layer over the library."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from diffusionner import __version__
from diffusionner.cli import (
    adapt,
    annotate,
    bench,
    calibrate,
    card,
    data,
    evaluate,
    export,
    models,
    paper,
    predict,
    score,
    serve,
    settings,
    train,
)
from diffusionner.errors import DiffusionNERError

app = typer.Typer(
    name="diffusionner",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
)
app.command("train")(train.train)
app.command("adapt")(adapt.adapt)
app.command("evaluate")(evaluate.evaluate)
app.command("score")(score.score)
app.command("predict")(predict.predict)
app.command("annotate")(annotate.annotate)
app.command("serve")(serve.serve)
app.command("calibrate")(calibrate.calibrate)
app.command("export")(export.export)
app.command("bench")(bench.bench)
app.command("paper")(paper.paper)
app.command("models")(models.models)
app.command("card")(card.card)
app.add_typer(data.app, name="data")
app.command("settings")(settings.settings)


def _tell_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _before(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_tell_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Named entity recognition by boundary denoising: nested and flat, offline."""


def main() -> None:
    """Entry point: our own errors become one readable message and exit status 2."""
    try:
        app()
    except DiffusionNERError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted")
        sys.exit(130)
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which may not be installed
            raise
        reason = str(error).splitlines()[0].split(". GPU")[0]
        Console(stderr=True).print(
            f"[bold red]error:[/] the memory of the GPU is full ({escape(reason)}); lower "
            "inference.batch_size (in training training.batch_size, or raise training.accumulation "
            "with it), or let fewer programs use it at a time",
            soft_wrap=True,
        )
        sys.exit(2)
