"""DiffusionNER: named entity recognition as boundary denoising diffusion."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from diffusionner.corpus import Discontinuous, Entity, Sentence, Span
from diffusionner.errors import DiffusionNERError
from diffusionner.settings import Settings

if TYPE_CHECKING:
    from diffusionner.evaluation import Report, evaluate
    from diffusionner.inference.pipeline import DiffusionNER
    from diffusionner.training.api import train

__all__ = [
    "DiffusionNER",
    "DiffusionNERError",
    "Discontinuous",
    "Entity",
    "Report",
    "Sentence",
    "Settings",
    "Span",
    "evaluate",
    "train",
]
__version__ = "0.2.0"

# Imported on first use: torch and transformers take seconds, which `diffusionner --help` must not.
_LAZY = {
    "DiffusionNER": "diffusionner.inference.pipeline",
    "Report": "diffusionner.evaluation",
    "evaluate": "diffusionner.evaluation",
    "train": "diffusionner.training.api",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'diffusionner' has no attribute '{name}'")
    return getattr(import_module(_LAZY[name]), name)
