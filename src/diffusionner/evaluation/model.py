"""A model held against a labelled corpus: what it finds, and whether its scores can be believed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffusionner.corpus import Sentence, check_labels
from diffusionner.evaluation.result import Evaluation, Resampling, evaluate_pairs
from diffusionner.evaluation.scorer import pair_up
from diffusionner.inference.calibration import expected_calibration_error, outcomes
from diffusionner.inference.decoding import to_spans

if TYPE_CHECKING:
    from diffusionner.inference.pipeline import DiffusionNER


@dataclass(frozen=True)
class Measured:
    evaluation: Evaluation
    scores: np.ndarray  # [N] of the entities found whose label was looked for
    right: np.ndarray  # [N] whether they are

    @property
    def calibration_error(self) -> float:
        return expected_calibration_error(self.scores, self.right)


def measure(
    ner: DiffusionNER,
    sentences: Sequence[Sentence],
    names: tuple[str, str],
    resampling: Resampling,
    progress: Callable[[int, int], None],
    **options: Any,
) -> Measured:
    """names: of the corpus and of the model; options: inference settings."""
    check_labels(sentences, ner.labels)
    found = ner.find(sentences, progress, **options)
    predicted = [to_spans(one, ner.labels) for one in found]
    totals, right, _ = outcomes(sentences, found, ner.labels)
    judge = ner.judge(ner.settings.with_inference(options).inference)
    evaluation = evaluate_pairs(pair_up(sentences, predicted), names, resampling)
    return Measured(evaluation, judge.scores(totals), right)
