"""The registry of methods: the network and the training objective behind each name.

The library has one method, `diffusion`. `register` adds another, which then trains, loads, predicts
and is scored like it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Method:
    """The parts of a method, each given as `module:name` and imported on first use."""

    network: str  # subclass of model.base.Network
    objective: str  # callable (network, settings) → training.objective.Objective
    recorded: str  # class that runs the network as CUDA graphs: inference.gpu.decoding.Graphed
    options: tuple[str, ...] = ()  # names allowed in the setting `options`
    denoises: bool = False  # has a reverse process, and so steps, spans and noise


METHODS: dict[str, Method] = {
    "diffusion": Method(
        network="diffusionner.model.network:DenoisingNetwork",
        objective="diffusionner.training.objective:DenoisingObjective",
        recorded="diffusionner.inference.gpu.decoding:GraphedDecoding",
        denoises=True,
    )
}


def register(name: str, method: Method) -> None:
    """Add a method, so that `method: name` is a valid setting."""
    METHODS[name] = method


def network_class(name: str) -> Any:
    """Return the `Network` subclass of a method."""
    return _load(METHODS[name].network)


def objective_class(name: str) -> Any:
    """Return the class, or another callable, that builds the training objective of a method."""
    return _load(METHODS[name].objective)


def recorded_class(name: str) -> Any:
    """Return the class that runs the network of a method as CUDA graphs."""
    return _load(METHODS[name].recorded)


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
