"""`diffusionner evaluate`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffusionner.cli import options
from diffusionner.cli.score import Format, Html, HtmlSentences, Json, Resamples, write
from diffusionner.storage.registry import DEFAULT


def evaluate(
    data: Annotated[Path, typer.Option("--data", help="Gold corpus, in any format.")],
    model: options.Model = DEFAULT,
    format: Format = None,
    steps: options.Steps = None,
    spans: options.Spans = None,
    start: options.Start = None,
    average: options.Average = None,
    threshold: options.Threshold = None,
    phi: options.Phi = None,
    overlap: options.Overlap = None,
    seed: options.Seed = None,
    batch_size: options.BatchSize = None,
    device: options.Device = None,
    json_path: Json = None,
    html_path: Html = None,
    html_sentences: HtmlSentences = 2000,
    resamples: Resamples = 1000,
) -> None:
    """Score a model on a corpus.

    The scores are those of `diffusionner score`: strict, overlap-based and boundary-only, by type,
    nesting depth and length, with 95% intervals, kinds of errors and confused types.

    Example: `diffusionner evaluate --model runs/model --data test.jsonl --html scores.html`
    """
    from rich.console import Console
    from rich.progress import Progress

    from diffusionner import formats
    from diffusionner.evaluation.model import measure
    from diffusionner.evaluation.result import Resampling

    sentences = formats.read(data, format)
    ner = options.load_model(model, device)
    chosen = options.inference_options(
        steps, spans, start, average, threshold, phi, overlap, seed, batch_size
    )
    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("evaluating", total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        names = (str(data), model)
        measured = measure(ner, sentences, names, Resampling(resamples), advance, **chosen)
    error = measured.calibration_error
    settings = ner.settings.with_inference(chosen).to_dict()["inference"]
    about = {"model": model, "inference": settings, "calibration_error": round(error, 4)}
    write(measured.evaluation, about, json_path, html_path, html_sentences)
    console = Console()
    measured.evaluation.show(console)
    console.print(
        f"expected calibration error {error:.3f}: scores of the entities found, against the share "
        "of them that is right",
        highlight=False,
        soft_wrap=True,
    )
