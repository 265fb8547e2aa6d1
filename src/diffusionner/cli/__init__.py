"""The command line: one module per command, each a thin layer over the library."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
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
        """Report Ctrl-C, which typer would ignore silently."""
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
GROUPS: dict[str, tuple[Callable[..., None], ...]] = {
    "Use a model": (predict.predict, annotate.annotate, serve.serve, models.models),
    "Train a model": (train.train, calibrate.calibrate, export.export, settings.settings),
    "Evaluate": (evaluate.evaluate, score.score),
}
for group, commands in GROUPS.items():
    for command in commands:
        app.command(command.__name__, rich_help_panel=group)(command)
app.add_typer(data.app, name="data", rich_help_panel="Prepare data")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _callback(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_print_version, is_eager=True
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
        _fail(str(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        install = _install_command(package)
        if install is None:
            raise
        _fail(
            f"this command needs the package '{package}', which is not installed; in a clone, "
            f"install it with: {install}"
        )
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's; torch may not be installed
            raise
        reason = str(error).splitlines()[0].split(". GPU")[0]
        _fail(
            f"out of GPU memory ({reason}); lower inference.batch_size (when training, lower "
            "training.batch_size or raise training.accumulation with it), or run fewer programs "
            "on the GPU"
        )


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)
    sys.exit(2)


def _install_command(package: str) -> str | None:
    """Return the command that installs a dependency of this package, with its extra if it has one.

    Required dependencies can be missing too: exported models run without most of them.
    """
    wanted = package.replace("_", "-").lower()
    try:
        requirements = requires("diffusionner") or []
    except PackageNotFoundError:  # run from source
        return None
    for requirement in requirements:
        if requirement.startswith("diffusionner["):  # an extra that combines others
            continue
        name = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == .(\w+)", requirement)
        if name and name[0].lower() == wanted:
            return f"pip install '.[{extra[1]}]'" if extra else "pip install ."
    return None
