"""Options that several commands share, each a view of one setting."""

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

MODEL_HELP = "Shipped model (see `models`), folder of a trained one, or name on the hub."
Model = Annotated[str, typer.Option("--model", help=MODEL_HELP)]
Steps = Annotated[int | None, typer.Option(help="Denoising steps γ.  [default: the model's]")]
Spans = Annotated[
    str | None, typer.Option(help="Noisy spans K_eval, or auto.  [default: the model's]")
]
Start = Annotated[
    str | None, typer.Option(help="Denoise noise or candidates.  [default: the model's]")
]
Average = Annotated[
    bool | None,
    typer.Option(
        "--average-steps/--last-step", help="Which steps count.  [default: as the model says]"
    ),
]
Threshold = Annotated[
    float | None, typer.Option(help="Least score, 0 to 1.  [default: the model's, by type]")
]
Phi = Annotated[
    float | None, typer.Option(help="Least sum of the three probabilities instead, as the paper.")
]
Overlap = Annotated[str | None, typer.Option(help="nested, flat or all.  [default: the model's]")]
Seed = Annotated[int | None, typer.Option(help="Seed of the noise.  [default: the model's]")]
BatchSize = Annotated[
    str | None, typer.Option(help="Sentences per batch, or auto.  [default: the model's]")
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1 ...  [default: a GPU if there is one]")
]


def load_model(model: str | Path, device: str | None) -> DiffusionNER:
    from diffusionner.inference.pipeline import DiffusionNER

    ner = DiffusionNER.from_pretrained(model, device)
    gc.freeze()  # what is loaded stays: the collector of cycles need not go through it again
    return ner


def inference_options(
    steps: int | None,
    spans: str | None,
    start: str | None,
    average: bool | None,
    threshold: float | None,
    phi: float | None,
    overlap: str | None,
    seed: int | None,
    batch_size: str | None,
) -> dict[str, Any]:
    """The options as inference settings; what was not given stays as the model has it."""
    return {
        "steps": steps,
        "spans": spans,
        "start": start,
        "average_steps": average,
        "threshold": threshold,
        "phi": phi,
        "overlap": overlap,
        "seed": seed,
        "batch_size": batch_size,
    }


@contextmanager
def progress() -> Iterator[ProgressCallback]:
    """A bar on the terminal for what takes long; yields what is to be called with its state."""
    from rich.console import Console
    from rich.progress import Progress

    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def tell(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield tell
