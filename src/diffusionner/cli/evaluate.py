"""`diffusionner evaluate`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from diffusionner.cli import options
from diffusionner.cli.data.shared import Format, Json
from diffusionner.cli.score import Html, HtmlSentences, Resamples, show_and_write
from diffusionner.errors import SettingsError
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
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Compare with another setting, such as steps=0."),
    ] = None,
    calibrate_on: Annotated[
        Path | None,
        typer.Option(help="Dev corpus to fit scores and thresholds on first, for each setting."),
    ] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="TYPE=LABEL",
            help="Label of the corpus for a type of the model; may be repeated. Entities of types "
            "that are not named are left out.",
        ),
    ] = None,
) -> None:
    """Score a model on a labelled corpus.

    Reports the same scores as `diffusionner score`: strict, overlap and boundary-only, by type,
    nesting depth and length, with 95% confidence intervals, error types and confused types.

    With --compare, a paired test compares the model with itself under another setting. Both use the
    scores and thresholds stored with the model, or those fitted on the corpus of --calibrate-on.

    Examples:

    * `diffusionner evaluate --model runs/model --data test.jsonl --html scores.html`

    * `diffusionner evaluate --model bio --data test.jsonl --compare steps=0`

    * `diffusionner evaluate --data test.jsonl --map person=PER --map facility=LOC`
    """
    from diffusionner import formats
    from diffusionner.evaluation import evaluate
    from diffusionner.evaluation.result import Evaluation

    others = None if compare is None else _parse(compare)
    types = None if mapping is None else dict(_pair(one, "--map person=PER") for one in mapping)
    sentences = formats.read(data, format)
    ner = options.load_model(model, device)
    with options.progress() as tell:
        report = evaluate(
            ner,
            sentences,
            compare=others,
            calibrate_on=calibrate_on,
            mapping=types,
            resamples=resamples,
            progress=lambda *counts: tell("evaluating", *counts),
            **inference,
        )
    evaluation = Evaluation.from_report(report, (str(data), model), resamples)
    settings = ner.settings.with_inference(inference).to_dict()["inference"]
    about = {"model": model, "inference": settings}
    show_and_write(evaluation, about, json_path, html_path, html_sentences)


def _parse(assignments: list[str]) -> dict[str, Any]:
    """Parse settings; they check names and values themselves."""
    pairs = (_pair(one, "--compare steps=0") for one in assignments)
    return {name: {"true": True, "false": False}.get(value, value) for name, value in pairs}


def _pair(assignment: str, example: str) -> tuple[str, str]:
    name, equals, value = assignment.partition("=")
    if not equals:
        raise SettingsError(f"'{assignment}' is not NAME=VALUE; write for example {example}")
    return name, value
