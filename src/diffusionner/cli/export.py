"""`diffusionner export`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffusionner.cli import options
from diffusionner.storage.registry import DEFAULT


def export(
    output: Annotated[Path, typer.Argument(help="Output folder.")],
    dev: Annotated[Path, typer.Option("--dev", help="Corpus to compare F1 on.")],
    model: options.Model = DEFAULT,
    precision: Annotated[str, typer.Option(help="float32 or int8.")] = "float32",
    format: Annotated[str | None, typer.Option(help="Format of the corpus.")] = None,
    threads: options.Threads = None,
) -> None:
    """Export a model to ONNX Runtime, which runs it on a CPU without torch.

    The graphs are compared with the model on `--dev`: if F1 changes by more than 0.1 points (int8:
    0.5), nothing is written. The folder is used like any model's.

    Example: `diffusionner export runs/small --model runs/model --dev dev.jsonl --precision int8`
    """
    from rich.console import Console

    from diffusionner import formats
    from diffusionner.corpus import check_labels
    from diffusionner.export import export as write

    sentences = formats.read(dev, format)
    ner = options.load_model(model, "cpu", "torch")
    check_labels(sentences, ner.labels_of(sentences))
    errors = Console(stderr=True)
    with errors.status("exporting") as status:
        done = write(ner, output, sentences, precision, status.update)
    Console().print(
        f"{output}: {done.size / 1e6:.1f} MB; F1 on {dev}: {done.before:.2f} before, "
        f"{done.after:.2f} after",
        highlight=False,
    )
