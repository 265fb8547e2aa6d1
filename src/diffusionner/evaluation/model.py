"""Evaluation of a model on a labelled corpus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diffusionner import formats
from diffusionner.corpus import Sentence, check_labels
from diffusionner.evaluation.report import PredictionScores, Report
from diffusionner.evaluation.scorer import score_sentences
from diffusionner.inference.calibration import outcomes
from diffusionner.inference.decoding import to_spans
from diffusionner.inference.pipeline import DiffusionNER


def evaluate(
    model: DiffusionNER | str | Path,
    data: str | Path | Sequence[Sentence],
    *,
    format: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    **inference_options: Any,
) -> Report:
    """Score a model on a labelled corpus.

    model: a loaded model, the name of an installed one, or a model folder.
    data: a corpus file in any format, or its sentences.
    format: the format of the file, detected if not given.
    progress: called with the number of finished windows and their total.
    inference_options: inference settings such as `steps`, `spans` or `threshold`.

    Print the report to see precision, recall and F1 overall and for each type. The same numbers are
    its attributes: `report.micro.f1`, `report.per_type["PER"].recall`, `report.to_dict()`.
    """
    sentences = formats.read(data, format) if isinstance(data, str | Path) else data
    ner = model if isinstance(model, DiffusionNER) else DiffusionNER.from_pretrained(model)
    check_labels(sentences, ner.labels)
    decoded = ner.decode_sentences(sentences, progress, **inference_options)
    report = score_sentences(sentences, [to_spans(entities, ner.labels) for entities in decoded])
    sums, correct, _ = outcomes(sentences, decoded, ner.labels)
    rule = ner.score_rule(ner.settings.with_inference(inference_options).inference)
    return replace(report, prediction_scores=PredictionScores(rule.scores(sums), correct))
