"""Evaluation of a model on a labelled corpus."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diffusionner import formats
from diffusionner.corpus import Sentence, check_labels
from diffusionner.errors import DataError, SettingsError, nearest
from diffusionner.evaluation.report import PredictionScores, Report
from diffusionner.evaluation.scorer import score_sentences
from diffusionner.inference.calibration import MIN_PER_KNOT, fit_calibration, outcomes
from diffusionner.inference.decoding import DecodedEntity, to_spans
from diffusionner.inference.pipeline import DiffusionNER


def evaluate(
    model: DiffusionNER | str | Path,
    data: str | Path | Sequence[Sentence],
    *,
    format: str | None = None,
    compare: Mapping[str, Any] | None = None,
    calibrate_on: str | Path | Sequence[Sentence] | None = None,
    mapping: Mapping[str, str] | None = None,
    resamples: int = 1000,
    progress: Callable[[int, int], None] = lambda done, total: None,
    **inference_options: Any,
) -> Report:
    """Score a model on a labelled corpus.

    model: a loaded model, the name of an installed one, or a model folder.
    data: a corpus file in any format, or its sentences.
    format: the format of the file, detected if not given.
    compare: inference settings to compare with, such as `{"steps": 0}`; all others stay the same.
        The report then has the scores of both, and a paired bootstrap test of their difference.
    calibrate_on: another labelled corpus on which scores and thresholds are fitted first,
        separately for each of the two settings. The stored ones were fitted for the model's own.
    mapping: the label that the corpus has for each type of the model, such as `{"person": "PER",
        "location": "LOC", "facility": "LOC"}`; entities of other types are left out.
    resamples: number of bootstrap resamples of the comparison.
    progress: called with the number of finished windows and their total.
    inference_options: inference settings such as `steps`, `spans` or `threshold`.

    Print the report to see precision, recall and F1 overall and for each type. The same numbers are
    its attributes: `report.micro.f1`, `report.per_type["PER"].recall`, `report.to_dict()`.
    """
    sentences = formats.read(data, format) if isinstance(data, str | Path) else data
    ner = model if isinstance(model, DiffusionNER) else DiffusionNER.from_pretrained(model)
    names = ner.labels_of(sentences)
    labels = names if mapping is None else _mapped(names, mapping)
    check_labels(sentences, labels)
    other_options = {**inference_options, **(compare or {})}
    ner.settings.with_inference(other_options)  # raises before anything is predicted
    fitted = ner
    if calibrate_on is not None:
        if isinstance(calibrate_on, str | Path):
            calibrate_on = formats.read(calibrate_on)
        fitted, _ = fit_scores(ner, calibrate_on, "calibrate_on", **inference_options)
    decoded = fitted.decode_sentences(sentences, progress, **inference_options)
    if mapping is not None:
        decoded = [[e for e in entities if names[e.type_id] in mapping] for entities in decoded]
    report = score_sentences(sentences, [to_spans(entities, labels) for entities in decoded])
    found = outcomes(sentences, decoded, labels)
    report = replace(report, prediction_scores=PredictionScores(found.scores, found.right))
    if compare is None:
        return report
    other = evaluate(
        ner,
        sentences,
        calibrate_on=calibrate_on,
        mapping=mapping,
        progress=progress,
        **other_options,
    )
    name = ", ".join(f"{option}={value}" for option, value in compare.items())
    return report.compare_with(other, name, resamples)


def _mapped(names: Sequence[str], mapping: Mapping[str, str]) -> list[str]:
    """Return the labels of a corpus for the types of a model, by number."""
    for name in mapping:
        if name not in names:
            raise SettingsError(f"the model has no type '{name}'; {nearest(name, names)}")
    return [mapping.get(name, name) for name in names]


def fit_scores(
    ner: DiffusionNER, sentences: Sequence[Sentence], origin: str, **inference_options: Any
) -> tuple[DiffusionNER, list[list[DecodedEntity]]]:
    """Return the model with scores and thresholds fitted on labelled sentences for these settings.

    The second result is what they were fitted on: the predicted entities with any score.
    """
    labels = ner.labels_of(sentences)
    check_labels(sentences, labels)
    everything = {**inference_options, "threshold": None, "phi": 0.0}
    found = ner.decode_sentences(sentences, **everything)
    calibration = fit_calibration(sentences, found, labels, one_threshold=ner.is_open)
    if calibration is None:
        raise DataError(
            f"{origin}: the model predicts too few entities to calibrate on; give a corpus in "
            f"which it predicts at least {2 * MIN_PER_KNOT}"
        )
    inference = replace(ner.settings.inference, threshold=None, phi=None)
    settings = replace(ner.settings, inference=inference)
    return ner.changed(settings=settings, calibration=calibration), found
