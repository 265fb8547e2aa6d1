"""Options that several commands share, each a view of one setting."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffusionner.errors import CheckpointError

if TYPE_CHECKING:
    from diffusionner.inference.pipeline import DiffusionNER

Model = Annotated[
    Path | None, typer.Option("--model", help="Folder of a trained model.", show_default=False)
]
Steps = Annotated[int | None, typer.Option(help="Denoising steps γ.  [default: the model's]")]
Spans = Annotated[
    str | None, typer.Option(help="Noisy spans K_eval, or auto.  [default: the model's]")
]
Start = Annotated[
    str | None, typer.Option(help="Denoise noise or candidates.  [default: the model's]")
]
Threshold = Annotated[
    float | None, typer.Option(help="Least score, 0 to 1.  [default: the model's, by type]")
]
Phi = Annotated[
    float | None, typer.Option(help="Least sum of the three probabilities instead, as the paper.")
]
Overlap = Annotated[str | None, typer.Option(help="nested, flat or all.  [default: the model's]")]
Seed = Annotated[int | None, typer.Option(help="Seed of the noise.  [default: the model's]")]
BatchSize = Annotated[int | None, typer.Option(help="Sentences per batch.")]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1 ...  [default: a GPU if there is one]")
]


def load_model(model: Path | None, device: str | None) -> DiffusionNER:
    from diffusionner.inference.pipeline import DiffusionNER

    if model is None:
        raise CheckpointError(
            "no model given: train one (`diffusionner train configs/litbank-minilm.yaml`) and pass "
            "its folder with --model"
        )
    ner = DiffusionNER.from_pretrained(model, device)
    gc.freeze()  # what is loaded stays: the collector of cycles need not go through it again
    return ner


def inference_options(
    steps: int | None,
    spans: str | None,
    start: str | None,
    threshold: float | None,
    phi: float | None,
    overlap: str | None,
    seed: int | None,
    batch_size: int | None,
) -> dict[str, Any]:
    """The options as inference settings; what was not given stays as the model has it."""
    return {
        "steps": steps,
        "spans": spans,
        "start": start,
        "threshold": threshold,
        "phi": phi,
        "overlap": overlap,
        "seed": seed,
        "batch_size": batch_size,
    }
