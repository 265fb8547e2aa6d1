"""`diffusionner score`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from diffusionner.evaluation.result import Evaluation

_FORMAT = "NAME or NAME:OPTION=VALUE,...  [default: found out from the file]"

Format = Annotated[str | None, typer.Option(help=f"Format of the gold: {_FORMAT}")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the scores to this file.")]
Html = Annotated[
    Path | None,
    typer.Option("--html", help="Also write a page to compare gold and predictions on."),
]
HtmlSentences = Annotated[
    int, typer.Option(min=0, help="Most sentences on the page, those with errors first.")
]
Resamples = Annotated[
    int, typer.Option(min=1, help="Times the sentences are drawn anew for intervals and p.")
]


def score(
    gold: Annotated[Path, typer.Argument(metavar="GOLD", help="Gold corpus.")],
    predicted: Annotated[Path, typer.Argument(metavar="PRED", help="The same with predictions.")],
    other: Annotated[
        Path | None, typer.Option(help="A second prediction to test the first against.")
    ] = None,
    gold_format: Format = None,
    pred_format: Annotated[str | None, typer.Option(help="The same for the prediction.")] = None,
    other_format: Annotated[str | None, typer.Option(help="The same for the second.")] = None,
    json_path: Json = None,
    html_path: Html = None,
    html_sentences: HtmlSentences = 2000,
    resamples: Resamples = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the resampling.")] = 0,
) -> None:
    """Score any system's output against a gold corpus.

    Strict, overlap-based and boundary-only precision, recall and F1, with 95% intervals; by type,
    nesting depth and length; kinds of errors and confused types. Both files may be of any format
    that can be read. They must hold the same words or, where these are split differently, the same
    texts.

    Examples:

    * `diffusionner score test.jsonl predicted.conll --html scores.html`

    * `diffusionner score test.jsonl ours.jsonl --other theirs.jsonl --json scores.json`
    """
    from rich.console import Console

    from diffusionner import formats
    from diffusionner.evaluation.result import Resampling, against, evaluate_sentences

    evaluation = evaluate_sentences(
        formats.read(gold, gold_format),
        formats.read(predicted, pred_format),
        (str(gold), str(predicted)),
        Resampling(resamples, seed),
    )
    if other is not None:
        evaluation = against(evaluation, formats.read(other, other_format), str(other))
    write(evaluation, {}, json_path, html_path, html_sentences)
    evaluation.show(Console())


def write(
    evaluation: Evaluation,
    about: dict[str, Any],
    json_path: Path | None,
    html_path: Path | None,
    html_sentences: int,
) -> None:
    """Write the files that were asked for; `about` goes into the JSON before the scores."""
    from diffusionner.evaluation.page import render
    from diffusionner.files import bytes_writer, write_all_or_none

    writers = {}
    if json_path is not None:
        text = json.dumps({**about, **evaluation.to_dict()}, indent=1, ensure_ascii=False) + "\n"
        # A file's name need not be valid Unicode; JSON can say even that.
        writers[json_path] = bytes_writer(text.encode("utf-8", "backslashreplace"))
    if html_path is not None:
        page = render(evaluation, html_sentences)
        writers[html_path] = bytes_writer(page.encode("utf-8", "replace"))
    if writers:
        write_all_or_none(writers)
