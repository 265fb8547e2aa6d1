"""`diffusionner score`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffusionner.cli.data.shared import Json
from diffusionner.cli.options import say

if TYPE_CHECKING:
    from diffusionner.evaluation.result import Evaluation

Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Also write a page that shows all errors."),
]
HtmlSentences = Annotated[
    int, typer.Option(min=0, help="Maximum number of sentences on the page, errors first.")
]
Resamples = Annotated[
    int, typer.Option(min=1, help="Bootstrap resamples for intervals and p-values.")
]


def score(
    gold: Annotated[Path, typer.Argument(metavar="GOLD", help="Gold corpus.")],
    predicted: Annotated[
        Path, typer.Argument(metavar="PRED", help="The same corpus with predicted entities.")
    ],
    other: Annotated[
        Path | None, typer.Option(help="Second prediction to compare the first with.")
    ] = None,
    gold_format: Annotated[str | None, typer.Option(help="Format of GOLD.")] = None,
    pred_format: Annotated[str | None, typer.Option(help="Format of PRED.")] = None,
    other_format: Annotated[str | None, typer.Option(help="Format of the second one.")] = None,
    json_path: Json = None,
    html_path: Html = None,
    html_sentences: HtmlSentences = 2000,
    resamples: Resamples = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the resampling.")] = 0,
) -> None:
    """Score the output of any NER system against a gold corpus.

    Reports strict, overlap and boundary-only precision, recall and F1 with 95% confidence
    intervals, scores by type, nesting depth and length, error types and confused types. Both files
    may have any readable format (detected if not given, see `data formats`). They must contain the
    same words or, if they are tokenized differently, the same texts.

    Examples:

    * `diffusionner score test.jsonl predicted.conll --html scores.html`

    * `diffusionner score test.jsonl ours.jsonl --other theirs.jsonl --json scores.json`
    """
    from diffusionner import formats
    from diffusionner.evaluation.alignment import align
    from diffusionner.evaluation.result import Evaluation
    from diffusionner.evaluation.scorer import score_pairs

    names = (str(gold), str(predicted))
    sentences = formats.read(gold, gold_format)
    pairs, by_characters = align(sentences, formats.read(predicted, pred_format), names)
    report = score_pairs(pairs)
    if other is not None:
        second = formats.read(other, other_format)
        pairs, _ = align(sentences, second, (str(gold), str(other)))
        report = report.compare_with(score_pairs(pairs), str(other), resamples, seed)
    evaluation = Evaluation.from_report(report, names, resamples, seed, by_characters)
    show_and_write(evaluation, {}, json_path, html_path, html_sentences)


def show_and_write(
    evaluation: Evaluation,
    about: dict[str, Any],
    json_path: Path | None,
    html_path: Path | None,
    html_sentences: int,
) -> None:
    """Write the requested files and print the scores; `about` precedes them in the JSON file."""
    from rich.console import Console

    from diffusionner.evaluation.page import render
    from diffusionner.files import bytes_writer, to_json, write_all_or_none

    writers = {}
    if json_path is not None:
        writers[json_path] = bytes_writer(to_json({**about, **evaluation.to_dict()}))
    if html_path is not None:
        page = render(evaluation, html_sentences)
        writers[html_path] = bytes_writer(page.encode("utf-8", "replace"))
    if writers:
        write_all_or_none(writers)
    console = Console()
    say(console, evaluation.to_text(console.width))
