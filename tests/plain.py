"""Small settings without the refinements of the recommended recipe, on which most tests build."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diffusionner.settings import DecoderSettings, EncoderSettings, InferenceSettings, Settings

PLAIN: dict[str, dict[str, Any]] = {
    "encoder": {"context": 0, "character_filters": 0, "lstm_layers": 2},
    "diffusion": {"expansion": "random", "coordinates": "left-right"},
    "decoder": {"span_pooling": "mean", "layers": 1, "offset_window": 0, "initializer": "none"},
    "training": {
        "epochs": 50,
        "frozen_epochs": 5,
        "batch_size": 8,
        "encoder_learning_rate": 2e-5,
        "learning_rate": 2e-5,
        "weight_decay": 0.1,
        "ema": 0,
        "matches_per_entity": 1,
        "overlap_cost": 0,
        "soft_match_iou": 0,
    },
    "inference": {"steps": 5, "start": "noise", "average_steps": False},
}


def plain(values: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, dict[str, Any]]:
    """Return the plain settings with the given ones in place of some, in sections."""
    given = values or {}
    return {name: {**PLAIN.get(name, {}), **given.get(name, {})} for name in (*PLAIN, *given)}


def plain_settings(values: Mapping[str, Mapping[str, Any]] | None = None) -> Settings:
    return Settings.from_dict(plain(values))


def plain_encoder(**settings: Any) -> EncoderSettings:
    return EncoderSettings(**{**PLAIN["encoder"], **settings})


def plain_decoder(**settings: Any) -> DecoderSettings:
    return DecoderSettings(**{**PLAIN["decoder"], **settings})


def plain_inference(**settings: Any) -> InferenceSettings:
    return InferenceSettings(**{**PLAIN["inference"], **settings})
