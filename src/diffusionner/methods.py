"""The methods by name: DiffusionNER, and its rivals on the same encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diffusionner.model.base import Network


def network_class(method: str) -> type[Network]:
    """Of `method` in the settings. Each is imported when it is needed, and no other."""
    match method:
        case "crf":
            from diffusionner.rivals.crf import TaggingNetwork

            return TaggingNetwork
        case "biaffine":
            from diffusionner.rivals.biaffine import BiaffineNetwork

            return BiaffineNetwork
        case "queries":
            from diffusionner.rivals.queries import QueryNetwork

            return QueryNetwork
        case "autoregressive":
            from diffusionner.rivals.autoregressive import GeneratingNetwork

            return GeneratingNetwork
    from diffusionner.model import DenoisingNetwork

    return DenoisingNetwork
