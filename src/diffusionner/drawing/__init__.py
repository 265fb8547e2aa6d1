"""Drawings of entities as coloured bars under their text: HTML, SVG and standalone pages."""
