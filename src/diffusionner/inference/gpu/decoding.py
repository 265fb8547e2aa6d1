"""The reverse process as CUDA graphs.

What all steps share is some 90 operations, a denoising step with its reading out 150. Recorded once
per shape, they are one launch each; a step's recording serves any number of steps.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from diffusionner.batching import Batch, round_up
from diffusionner.diffusion import ddim_weights
from diffusionner.diffusion.span_counts import AUTO
from diffusionner.inference.gpu.recording import (
    SPANS,
    WORDS,
    Recorder,
    Recordings,
    Replay,
    Room,
    Shape,
    padded_count,
)
from diffusionner.model.decoder import read_out
from diffusionner.model.encoder import SentenceEncoding
from diffusionner.model.network import Beginning, DenoisingNetwork, noise_source
from diffusionner.model.tensors import pack, unpack
from diffusionner.settings import InferenceSettings


@dataclass
class _Recording:
    """A reverse process over fixed memory."""

    states: Tensor  # [B, M, h]
    inputs: Tensor  # lengths and slots, one behind the other
    begin: Replay  # x is where it starts then, unless that is noise
    x: Tensor  # [B, 1, K, 2]
    noise: Tensor  # [B, 1, K, 2] of the step, for eta > 0
    control: Tensor  # [4] t, and what the next x is a sum of
    step: Replay  # after which x is the next one
    table: Tensor  # [B, K, 5]


class GraphedDecoding:
    """What a network finds; behind its encoder recordings run where the shape was met before.

    They share their memory: nothing of one is needed any more when the next begins. So all must be
    on one stream, and one thread at a time may be at it.
    """

    def __init__(self, network: DenoisingNetwork, record: Recorder, seen: Counter[Shape]) -> None:
        """seen: as `Recordings` has it."""
        self.network = network
        self.record = record
        self.recordings: Recordings[_Recording] = Recordings(seen)
        self.states = Room(next(network.parameters()))
        self.controls: dict[tuple[tuple[int, ...], float], Tensor] = {}

    @property
    def count(self) -> int:
        return len(self.recordings)

    def find(
        self,
        encoding: SentenceEncoding,
        batch: Batch[np.ndarray],
        settings: InferenceSettings,
        slots: np.ndarray,
        given: np.ndarray | None,
    ) -> Tensor | None:
        """As the network's own, from noise or candidates; batch: what was encoded.

        None for what has no recording: a shape that is new, and spans that are given.
        """
        if given is not None:
            return None
        auto = settings.spans == AUTO
        (sentences, words), spans = batch.first.shape, slots.shape[1]
        # A fixed number of spans is seen without a mask, so it must be just that.
        most = round_up(spans, SPANS) if auto else spans
        shape = (padded_count(sentences), round_up(words, WORDS), most)
        recording = self.recordings.of(
            (shape, auto, settings.start), lambda: self._record(settings, shape)
        )
        if recording is None:
            return None
        values = _padded(batch, slots, shape)
        table = self._run(recording, encoding.states, batch.keys, settings, values)
        return table[:, :, :spans]

    def _run(
        self,
        recording: _Recording,
        states: Tensor,
        keys: np.ndarray,
        settings: InferenceSettings,
        values: list[np.ndarray],
    ) -> Tensor:
        """[B, steps, K, 5]; values: lengths and slots, padded."""
        sentences, words = states.shape[:2]
        # What is padding keeps what was there before: numbers, which nothing looks at.
        recording.states[:sentences, :words].copy_(states)
        recording.inputs.copy_(pack(values, states.device), non_blocking=True)
        recording.begin()
        noise = noise_source(keys, settings.seed, states.device)
        count = recording.x.shape[2]
        if settings.start == "noise":
            recording.x[:sentences].copy_(noise(0, count))
        tables = []
        for number, control in enumerate(self._controls(settings, states.device), start=1):
            if settings.eta > 0 and number < settings.steps:
                recording.noise[:sentences].copy_(noise(number, count))
            recording.control.copy_(control)
            recording.step()
            tables.append(recording.table[:sentences].clone())
        return torch.stack(tables if settings.average_steps else tables[-1:], 1)

    def _controls(self, settings: InferenceSettings, device: torch.device) -> Tensor:
        """[steps, 4] what each step is told: t, and the weights of the next x."""
        sequence = tuple(self.network.timesteps(settings))
        key = sequence, settings.eta
        if key not in self.controls:
            alpha_bar = self.network.schedule.alpha_bar.tolist()
            rows = [
                (now, *ddim_weights(alpha_bar[now], alpha_bar[later], settings.eta))
                for now, later in pairwise(sequence)
            ]
            self.controls[key] = torch.tensor(rows, dtype=torch.float32, device=device)
        return self.controls[key]

    def _record(self, settings: InferenceSettings, shape: tuple[int, int, int]) -> _Recording:
        sentences, words, spans = shape
        states = self.states.take(sentences, words, self.network.encoder.hidden_size)
        # For the time of recording: sentences of one word, and all their spans.
        values = [np.ones(sentences, dtype=np.int64), np.ones((sentences, spans), dtype=bool)]
        inputs = pack(values, states.device).to(states.device)
        x = torch.zeros(sentences, 1, spans, 2, device=states.device)
        noise = torch.zeros_like(x)
        control = torch.ones(4, device=states.device)

        def begin() -> Beginning:
            lengths, slots = unpack(inputs, values)
            mask = torch.arange(words, device=states.device) < lengths[:, None]
            encoding = SentenceEncoding(states, mask, lengths)
            begun = self.network.begin(encoding, settings, slots)
            if begun.x is not None:
                x.copy_(begun.x)
            return begun

        begun, replay_begin = self.record(begin)

        def step() -> Tensor:
            t = control[0].long().expand(sentences, 1)
            x0, prediction = self.network.step(begun, x, t)
            table = read_out(prediction, begun.slots, begun.sentence.initial)
            x.copy_(control[1] * x0 + control[2] * x + control[3] * noise)
            return table

        table, replay_step = self.record(step)
        return _Recording(states, inputs, replay_begin, x, noise, control, replay_step, table)


def _padded(
    batch: Batch[np.ndarray], slots: np.ndarray, shape: tuple[int, int, int]
) -> list[np.ndarray]:
    """Lengths and slots of the shape; sentences that are none have one word, and no span."""
    more = shape[0] - len(batch.lengths)
    lengths = np.pad(batch.lengths, (0, more), constant_values=1)
    return [lengths, np.pad(slots, ((0, more), (0, shape[2] - slots.shape[1])))]
