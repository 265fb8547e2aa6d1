"""Every denoising step of a sentence, to be looked at: what the noisy spans were, and became."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from diffusionner.batching import Batch, EncodedCorpus
from diffusionner.diffusion import (
    Coordinates,
    Schedule,
    reverse_process,
    span_noise,
    timestep_sequence,
)
from diffusionner.diffusion.span_counts import span_counts, span_slots
from diffusionner.inference.calibration import ScoreRule
from diffusionner.inference.engine import Engine
from diffusionner.settings import InferenceSettings, Settings


class DenoisedSpan(NamedTuple):
    """One of the K spans at one step, in words of the sentence, both boundaries inclusive."""

    noisy: tuple[int, int]  # what the network was shown
    restored: tuple[int, int]  # what it made of it: x̂_0
    kind: int | None  # index of the type; None: no entity
    score: float


@dataclass(frozen=True)
class Step:
    timestep: int
    spans: list[DenoisedSpan]


@dataclass(frozen=True)
class Trajectory:
    """The steps of one window: a whole sentence, unless that is too long for the encoder."""

    sentence: int  # its index
    first: int  # words of the sentence before the window
    words: int
    steps: list[Step]


def trajectories(
    engine: Engine, corpus: EncodedCorpus, settings: Settings, judge: ScoreRule
) -> Iterator[Trajectory]:
    """The reverse process from noise, window by window in reading order."""
    # average_steps is what makes an engine return the table of every step.
    inference = replace(settings.inference, start="noise", average_steps=True)
    for number in range(len(corpus)):
        batch = corpus.batch(np.array([number]), engine.subword_step)
        slots = span_slots(span_counts(batch.lengths, inference.spans, inference.start))
        tables = engine.find(batch, inference, slots)()[0]  # [steps, K, 5]
        windows = corpus.windows
        first = int(windows.offset[number])
        yield Trajectory(
            int(windows.sentence[number]),
            first,
            int(windows.words[number]),
            _steps(tables, _noisy(tables, batch, settings, inference), first, judge, settings),
        )


def _noisy(
    tables: np.ndarray, batch: Batch[np.ndarray], settings: Settings, inference: InferenceSettings
) -> list[np.ndarray]:
    """The spans each step was shown, [K, 2] word indices.

    Engines keep only what came out of a step. What went in follows from that: the noise is a
    function of the sentence, and the sampler is the same one, fed with what the network said.
    """
    diffusion = settings.diffusion
    schedule = Schedule(diffusion.schedule, diffusion.timesteps)
    coordinates = Coordinates(diffusion.coordinates, diffusion.scale)
    lengths = batch.lengths[:, None]
    given = iter(tables)

    def noise(step: int) -> np.ndarray:  # [1, 1, K, 2]
        return span_noise(batch.keys, inference.seed, step, tables.shape[1])

    def denoise(x: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        return coordinates.encode(_restored(next(given))[None, None], lengths), x

    sequence = timestep_sequence(schedule.timesteps, inference.steps)
    seen = reverse_process(denoise, noise(0), schedule, sequence, inference.eta, noise)
    return [coordinates.decode(x, lengths)[0, 0] for x in seen]


def _restored(table: np.ndarray) -> np.ndarray:
    """[K, 5] → [K, 2]: the likeliest boundaries, as the network's `restored`."""
    left, right = table[:, 0], table[:, 1]
    return np.stack([left, np.maximum(left, right)], -1).astype(np.int64)


def _steps(
    tables: np.ndarray, noisy: list[np.ndarray], first: int, judge: ScoreRule, settings: Settings
) -> list[Step]:
    sequence = timestep_sequence(settings.diffusion.timesteps, settings.inference.steps)
    steps = []
    for (timestep, _), table, before in zip(pairwise(sequence), tables, noisy, strict=True):
        scores = judge.scores(np.maximum(table[:, 3], 0))
        after = _restored(table)
        spans = [
            DenoisedSpan(
                (int(before[k, 0]) + first, int(before[k, 1]) + first),
                (int(after[k, 0]) + first, int(after[k, 1]) + first),
                int(table[k, 2]) if table[k, 3] >= 0 else None,
                float(scores[k]) if table[k, 3] >= 0 else 0.0,
            )
            for k in range(len(table))
        ]
        steps.append(Step(timestep, spans))
    return steps
