"""How good predictions are."""

from diffusionner.evaluation.scorer import Counts, Report, score

__all__ = ["Counts", "Report", "score"]
