"""Every denoising step of a sentence, for inspection: noisy and denoised spans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from diffusionner.batching import EncodedCorpus
from diffusionner.diffusion import Candidates, ReverseStart, span_slots, timestep_sequence
from diffusionner.inference.decoding import ScoreRule
from diffusionner.inference.engine import Engine
from diffusionner.settings import Settings


class DenoisedSpan(NamedTuple):
    """One of the K spans at one step, in words of the sentence, both boundaries inclusive."""

    noisy: tuple[int, int]  # what the network saw
    denoised: tuple[int, int]  # what it predicted: x̂_0
    type_id: int | None  # None: no entity
    score: float


@dataclass(frozen=True)
class TrajectoryStep:
    """All spans at one step."""

    timestep: int
    spans: list[DenoisedSpan]


@dataclass(frozen=True)
class Trajectory:
    """The steps of one window: a whole sentence, unless it is too long to be read at once."""

    sentence: int  # its index
    first: int  # words of the sentence before the window
    words: int
    steps: list[TrajectoryStep]


def trajectories(
    engine: Engine, corpus: EncodedCorpus, settings: Settings, rule: ScoreRule
) -> Iterator[Trajectory]:
    """Yield the reverse process from noise of each window, in reading order."""
    inference = replace(settings.inference, start="noise", average_steps=True)  # returns every step
    timesteps = timestep_sequence(settings.diffusion.timesteps, inference.steps)
    windows = corpus.windows
    for number in range(len(corpus)):
        batch = corpus.batch(np.array([number]))
        slots = span_slots(batch.lengths, inference.spans, inference.start)
        start = ReverseStart(slots, is_ragged=not slots.all())
        candidates = engine.launch(batch, start, inference)()
        first = int(windows.offset[number])
        steps = [
            TrajectoryStep(timestep, _spans(candidates, step, first, rule))
            for step, timestep in enumerate(timesteps[:-1])
        ]
        yield Trajectory(int(windows.sentence[number]), first, int(windows.words[number]), steps)


def _spans(
    candidates: Candidates[np.ndarray], step: int, first: int, rule: ScoreRule
) -> list[DenoisedSpan]:
    """Read the spans of one step of a single window."""
    left = candidates.left[0, step] + first
    right = np.maximum(left, candidates.right[0, step] + first)
    noisy = candidates.noisy[0, step] + first
    rows = zip(
        noisy.tolist(),
        np.stack([left, right], -1).tolist(),
        candidates.type_id[0, step].tolist(),
        rule.scores(candidates.summed_probability[0, step]).tolist(),
        candidates.is_entity[0, step].tolist(),
        strict=True,
    )
    found = []
    for seen, denoised, type_id, score, is_entity in rows:
        read = (type_id, score) if is_entity else (None, 0.0)
        found.append(DenoisedSpan((seen[0], seen[1]), (denoised[0], denoised[1]), *read))
    return found
