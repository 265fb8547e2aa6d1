"""Entities drawn as coloured lanes under their text: HTML, SVG and whole pages, without scripts."""

from diffusionner.drawing.entities import Entities

__all__ = ["Entities"]
