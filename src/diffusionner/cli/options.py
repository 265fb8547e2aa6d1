"""Options shared by several commands."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, Signature, signature
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffusionner.errors import DataError
from diffusionner.threads import configure_threads

if TYPE_CHECKING:
    from rich.console import Console

    from diffusionner.inference.pipeline import DiffusionNER

# Task, amount done, total amount if known.
ProgressCallback = Callable[[str, int, int | None], None]

MAX_THREADS = 256  # the tokenizer starts as many as it is told, at 8 MB of stack each

MODEL_HELP = "Installed model (see `models`), model folder, or name on the Hugging Face hub."
Model = Annotated[str, typer.Option("--model", help=MODEL_HELP)]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1 ...  [default: a GPU if available]")
]


Labels = Annotated[
    str | None,
    typer.Option(
        "--labels",
        help="Types to look for, separated by commas, or a JSON file with a list of them or an "
        "object of types and descriptions.  [default: the model's]",
    ),
]


def parse_labels(given: str | None) -> list[str] | dict[str, str] | None:
    """Return the labels of the option `--labels`."""
    if given is None:
        return None
    if not given.endswith(".json"):
        return [label.strip() for label in given.split(",")]
    try:
        labels = json.loads(Path(given).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"--labels {given} cannot be read as JSON: {error}") from error
    strings = [*labels, *labels.values()] if isinstance(labels, dict) else labels
    if not isinstance(strings, list) or not all(isinstance(one, str) for one in strings):
        raise DataError(
            f"--labels {given}: expected a list of types, or an object of types and descriptions"
        )
    return labels


def _use_threads(threads: int | None) -> int | None:
    configure_threads(threads)
    return threads


# Takes effect when it is parsed, before torch is imported; commands need not read it.
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_THREADS,
        callback=_use_threads,
        help="CPU threads per process.  [default: one per core]",
    ),
]


def _option(name: str, type_: Any, help: str, *flags: str) -> Parameter:
    option = typer.Option(None, *flags, help=help)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=option, annotation=type_ | None)


_INFERENCE = [
    _option("steps", int, "Denoising steps γ; 0: the initializer alone.  [default: the model's]"),
    _option("spans", str, "Noisy spans K_eval, or auto.  [default: the model's]"),
    _option("start", str, "Start from noise or candidates.  [default: the model's]"),
    _option(
        "average_steps",
        bool,
        "Use all steps or the last.  [default: the model's]",
        "--average-steps/--last-step",
    ),
    _option("threshold", float, "Minimum score, 0 to 1.  [default: the model's, per type]"),
    _option("phi", float, "Minimum sum of the three probabilities, as in the paper."),
    _option("overlap", str, "nested, flat or all.  [default: the model's]"),
    _option("seed", int, "Seed of the noise.  [default: the model's]"),
    _option("batch_size", str, "Sentences per batch, or auto.  [default: the model's]"),
]


def with_inference(command: Callable[..., None]) -> Callable[..., None]:
    """Add the inference options to a command, which gets them as the dictionary `inference`."""

    @wraps(command)
    def run(**arguments: Any) -> None:
        inference = {option.name: arguments.pop(option.name) for option in _INFERENCE}
        command(**arguments, inference=inference)

    own = signature(command, eval_str=True).parameters.values()
    each = [_INFERENCE if parameter.name == "inference" else [parameter] for parameter in own]
    run.__signature__ = Signature([*chain.from_iterable(each)])  # type: ignore[attr-defined]
    return run


def load_model(model: str | Path, device: str | None, backend: str | None = None) -> DiffusionNER:
    from diffusionner.inference.pipeline import DiffusionNER

    ner = DiffusionNER.from_pretrained(model, device, backend)
    gc.freeze()  # keeps the garbage collector from scanning the model again and again
    return ner


@contextmanager
def progress() -> Iterator[ProgressCallback]:
    """Show a progress bar on a terminal; yield a function to update it."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def update(description: str, done: int, total: int | None) -> None:
            bar.update(task, description=escape(description), completed=done, total=total)

        yield update


def say(console: Console, line: str) -> None:
    """Print a line without highlighting, markup or line breaks."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)
