"""How good predictions are."""

from diffusionner.evaluation.counts import Counts
from diffusionner.evaluation.scorer import Report, score

__all__ = ["Counts", "Report", "score"]
