"""Precision, recall and F1 of predictions and models."""

from diffusionner.evaluation.counts import Counts
from diffusionner.evaluation.model import evaluate
from diffusionner.evaluation.report import Report
from diffusionner.evaluation.scorer import score, score_sentences

__all__ = ["Counts", "Report", "evaluate", "score", "score_sentences"]
