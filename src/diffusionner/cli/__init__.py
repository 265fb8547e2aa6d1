"""The command line: one file a command, each a thin layer over the library."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, requires
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from diffusionner import __version__
from diffusionner.cli import (
    annotate,
    calibrate,
    data,
    evaluate,
    export,
    models,
    predict,
    score,
    serve,
    settings,
    train,
)
from diffusionner.errors import DiffusionNERError


class Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """Left to itself, typer ends without a word at Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            Console(stderr=True).print("interrupted")
            raise typer.Exit(130) from None


app = typer.Typer(
    name="diffusionner",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("score")(score.score)
app.command("predict")(predict.predict)
app.command("annotate")(annotate.annotate)
app.command("serve")(serve.serve)
app.command("calibrate")(calibrate.calibrate)
app.command("export")(export.export)
app.command("models")(models.models)
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
    """Run the command line."""
    run(app)


def run(commands: typer.Typer) -> None:
    """Run a command line; errors that a user can fix become one message and exit status 2."""
    try:
        commands()
    except DiffusionNERError as error:
        _refuse(str(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        install = _how_to_install(package)
        if install is None:
            raise
        _refuse(
            f"this command needs the package '{package}', which is not installed; install it, "
            f"in a clone, with: {install}"
        )
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which may not be installed
            raise
        reason = str(error).splitlines()[0].split(". GPU")[0]
        _refuse(
            f"the memory of the GPU is full ({reason}); lower inference.batch_size (in training "
            "training.batch_size, or raise training.accumulation with it), or let fewer programs "
            "use it at a time"
        )


def _refuse(message: str) -> NoReturn:
    Console(stderr=True).print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)
    sys.exit(2)


def _how_to_install(package: str) -> str | None:
    """What brings a package that this one requires, always or for one of its extras.

    The former can be missing too: exported models run without most of them.
    """
    wanted = package.replace("_", "-").lower()
    try:
        requirements = requires("diffusionner") or []
    except PackageNotFoundError:  # run from its source
        return None
    for requirement in requirements:
        if requirement.startswith("diffusionner["):  # an extra made of others
            continue
        name = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == .(\w+)", requirement)
        if name and name[0].lower() == wanted:
            return f"pip install '.[{extra[1]}]'" if extra else "pip install ."
    return None
