"""`diffusionner evaluate`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from diffusionner.cli import options
from diffusionner.cli.data.shared import Format, Json
from diffusionner.cli.score import Html, HtmlSentences, Resamples, show_and_write
from diffusionner.storage.registry import DEFAULT


@options.with_inference
def evaluate(
    data: Annotated[Path, typer.Option("--data", help="Gold corpus, in any format.")],
    model: options.Model = DEFAULT,
    format: Format = None,
    *,
    inference: dict[str, Any],
    device: options.Device = None,
    threads: options.Threads = None,
    json_path: Json = None,
    html_path: Html = None,
    html_sentences: HtmlSentences = 2000,
    resamples: Resamples = 1000,
) -> None:
    """Score a model on a labelled corpus.

    Reports the same scores as `diffusionner score`: strict, overlap and boundary-only, by type,
    nesting depth and length, with 95% confidence intervals, error types and confused types.

    Example: `diffusionner evaluate --model runs/model --data test.jsonl --html scores.html`
    """
    from diffusionner import formats
    from diffusionner.evaluation import evaluate
    from diffusionner.evaluation.result import Evaluation

    sentences = formats.read(data, format)
    ner = options.load_model(model, device)
    with options.progress() as tell:
        report = evaluate(
            ner, sentences, progress=lambda *counts: tell("evaluating", *counts), **inference
        )
    evaluation = Evaluation.from_report(report, (str(data), model), resamples)
    settings = ner.settings.with_inference(inference).to_dict()["inference"]
    about = {"model": model, "inference": settings}
    show_and_write(evaluation, about, json_path, html_path, html_sentences)
