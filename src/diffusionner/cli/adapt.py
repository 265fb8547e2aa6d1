"""`diffusionner adapt`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffusionner.cli import options
from diffusionner.cli.data.shared import Format

if TYPE_CHECKING:
    from diffusionner.training.adaptation import Epoch


def adapt(
    output: Annotated[Path, typer.Argument(help="Folder to write.")],
    encoder: Annotated[str, typer.Option("--encoder", help="As the setting encoder.name.")],
    text: Annotated[
        list[Path], typer.Option("--text", help="Corpus, labelled or not; may be repeated.")
    ],
    format: Format = None,
    epochs: Annotated[int, typer.Option(help="Times the text is gone through.")] = 10,
    batch_size: Annotated[int, typer.Option(help="Blocks of 128 subwords per update.")] = 64,
    learning_rate: Annotated[float, typer.Option(help="Highest; it rises and falls.")] = 5e-4,
    masked: Annotated[float, typer.Option(help="Share of the subwords to guess.")] = 0.15,
    seed: Annotated[int, typer.Option(help="Seed of order, masks and dropout.")] = 0,
    device: options.Device = None,
) -> None:
    """Adapt an encoder to the language of your text, before training on labels.

    Masked subwords are guessed from the rest of the text, so no labels are needed: give all the
    text you have of the kind that is to be labelled, but none that you test on. What is written
    is an encoder for `encoder.name`.

    Example: `diffusionner adapt runs/encoder --encoder minilm --text train.jsonl --text more.jsonl`
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from diffusionner import formats
    from diffusionner.training import adaptation

    settings = adaptation.AdaptationSettings(epochs, batch_size, learning_rate, masked, seed)
    sentences = [sentence for path in text for sentence in formats.read(path, format)]
    errors = Console(stderr=True)
    with Progress(
        TextColumn("adapting"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} · loss {task.fields[loss]}"),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    ) as bar:
        task = bar.add_task("adapting", total=None, loss="-")

        def on_step(done: int, total: int, loss: float) -> None:
            bar.update(task, completed=done, total=total, loss=f"{loss:.3f}")

        def on_epoch(epoch: Epoch) -> None:
            errors.print(
                f"epoch {epoch.epoch}: loss {epoch.loss:.4f} · perplexity {epoch.perplexity:.2f} · "
                f"{epoch.seconds:.0f} s",
                highlight=False,
            )

        done = adaptation.adapt(output, encoder, sentences, settings, device, on_step, on_epoch)
    first, last = done[0], done[-1]
    before = f"{first.perplexity:.1f} after the first epoch, " if last is not first else ""
    Console().print(
        f"{output}: perplexity on held-out text: {before}{last.perplexity:.1f} at the end",
        highlight=False,
        markup=False,  # a path may hold brackets
        soft_wrap=True,
    )
