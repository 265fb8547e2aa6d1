"""DiffusionNER: named entity recognition as boundary denoising diffusion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diffusionner.corpus import Entity
from diffusionner.errors import DiffusionNERError
from diffusionner.settings import Settings

if TYPE_CHECKING:
    from diffusionner.inference.pipeline import DiffusionNER

__all__ = ["DiffusionNER", "DiffusionNERError", "Entity", "Settings"]
__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    # torch and transformers take seconds to import: `diffusionner --help` should not pay for them.
    if name == "DiffusionNER":
        from diffusionner.inference.pipeline import DiffusionNER

        return DiffusionNER
    raise AttributeError(f"module 'diffusionner' has no attribute '{name}'")
