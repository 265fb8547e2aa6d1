"""Options shared by several commands."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from diffusionner.inference.pipeline import DiffusionNER

ProgressCallback = Callable[[str, int, int], None]  # task, amount done, total amount

MODEL_HELP = "Installed model (see `models`), model folder, or name on the Hugging Face hub."
Model = Annotated[str, typer.Option("--model", help=MODEL_HELP)]
Steps = Annotated[int | None, typer.Option(help="Denoising steps γ.  [default: the model's]")]
Spans = Annotated[
    str | None, typer.Option(help="Noisy spans K_eval, or auto.  [default: the model's]")
]
Start = Annotated[
    str | None, typer.Option(help="Start from noise or candidates.  [default: the model's]")
]
Average = Annotated[
    bool | None,
    typer.Option(
        "--average-steps/--last-step", help="Use all steps or the last.  [default: the model's]"
    ),
]
Threshold = Annotated[
    float | None, typer.Option(help="Minimum score, 0 to 1.  [default: the model's, per type]")
]
Phi = Annotated[
    float | None,
    typer.Option(help="Minimum sum of the three probabilities, as in the paper."),
]
Overlap = Annotated[str | None, typer.Option(help="nested, flat or all.  [default: the model's]")]
Seed = Annotated[int | None, typer.Option(help="Seed of the noise.  [default: the model's]")]
BatchSize = Annotated[
    str | None, typer.Option(help="Sentences per batch, or auto.  [default: the model's]")
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1 ...  [default: a GPU if available]")
]
INFERENCE = "steps spans start average_steps threshold phi overlap seed batch_size".split()


def load_model(model: str | Path, device: str | None) -> DiffusionNER:
    from diffusionner.inference.pipeline import DiffusionNER

    ner = DiffusionNER.from_pretrained(model, device)
    gc.freeze()  # keeps the garbage collector from scanning the model again and again
    return ner


def inference_options(*values: object) -> dict[str, Any]:
    """Return the options, given in the order of INFERENCE; None keeps the model's setting."""
    return dict(zip(INFERENCE, values, strict=True))


@contextmanager
def progress() -> Iterator[ProgressCallback]:
    """Show a progress bar on a terminal; yield a function to update it."""
    from rich.console import Console
    from rich.progress import Progress

    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def update(description: str, done: int, total: int) -> None:
            bar.update(task, description=description, completed=done, total=total)

        yield update
