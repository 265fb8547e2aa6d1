"""The interface of an engine, which runs a network with torch or ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np

from diffusionner.batching import Batch
from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.diffusion import BeliefDenoiser, Candidates, ReverseStart
from diffusionner.label_set import LabelSet
from diffusionner.settings import InferenceSettings

# Waits for a batch and returns its result.
Pending: TypeAlias = Callable[[], Candidates[np.ndarray]]


class Engine(Protocol):
    """A trained network, ready to predict."""

    labels: list[str]
    subword_multiple: int  # the length of a batch is padded to a multiple of this
    prefetch: int  # batches that may be launched before the first result is awaited
    beliefs: BeliefDenoiser | None  # denoises candidates over documents; None: nothing does

    @property
    def label_groups(self) -> int:
        """Number of groups of labels, read one by one; each has candidates of given spans."""

    def launch(
        self, batch: Batch[np.ndarray], start: ReverseStart[np.ndarray], settings: InferenceSettings
    ) -> Pending:
        """Start a batch; calling the result waits for its candidates.

        The candidates come from all steps if the settings average steps, otherwise from the last
        one. K may be smaller than in `start` if no sentence of the batch needs as many spans.
        """


class OpenEngine(Engine, Protocol):
    """The engine of a network that reads labels as words."""

    def bind(self, labels: LabelSet, subwords: SubwordTokenizer) -> OpenEngine:
        """Return this engine asked for other labels."""
