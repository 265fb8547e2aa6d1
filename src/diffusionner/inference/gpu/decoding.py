"""The reverse process as CUDA graphs.

The part that all steps share takes some 90 operations, a denoising step with its read-out 150.
Recorded once per shape, each is one launch, and the recording of a step serves any number of steps.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from diffusionner.batching import Batch, round_up
from diffusionner.diffusion import AUTO, Candidates, ReverseStart
from diffusionner.inference.gpu.recording import (
    SPANS,
    WORDS,
    BufferPool,
    Recorder,
    Recordings,
    Replay,
    Shape,
    padded_count,
)
from diffusionner.model.decoder import PreparedSentence, read_out
from diffusionner.model.encoder import SentenceEncoding
from diffusionner.model.network import DenoisingNetwork, ReverseState
from diffusionner.model.tensors import pack, unpack
from diffusionner.settings import InferenceSettings


@dataclass
class _Recording:
    """A reverse process over fixed memory."""

    states: Tensor  # [B, M, h]
    inputs: Tensor  # lengths and slots, concatenated
    start: Replay  # fills the state
    state: ReverseState  # without the sentence
    x: Tensor  # [B, 1, K, 2] input of a step
    t: Tensor  # [B, 1]
    step: Replay
    x0: Tensor  # [B, 1, K, 2] outputs of a step
    found: Candidates[Tensor]


class GraphedDecoding:
    """Runs the reverse process of a network, by a recording if its shape was seen before.

    Recordings share their memory, so all of them belong to one stream and one thread at a time.
    """

    def __init__(self, network: DenoisingNetwork, record: Recorder, seen: Counter[Shape]) -> None:
        """seen: as in `Recordings`."""
        self.network = network
        self.record = record
        self.recordings: Recordings[_Recording] = Recordings(seen)
        self.states = BufferPool(next(network.parameters()))

    def candidates(
        self,
        encoding: SentenceEncoding,
        batch: Batch[np.ndarray],
        start: ReverseStart[np.ndarray],
        settings: InferenceSettings,
    ) -> Candidates[Tensor] | None:
        """Return the network's candidates; None if they must be computed without a recording.

        That is so for a new shape, given spans, zero steps and a network with beliefs.
        """
        if start.given is not None or settings.steps == 0 or self.network.beliefs is not None:
            return None
        masked = settings.spans == AUTO or start.is_ragged
        (sentences, words), spans = batch.first.shape, start.slots.shape[1]
        # Spans that are not masked must not be padded.
        most = round_up(spans, SPANS) if masked else spans
        shape = (padded_count(sentences), round_up(words, WORDS), most)
        recording = self.recordings.get(
            (shape, masked, settings.start), lambda: self._record(settings, shape, masked)
        )
        if recording is None:
            return None
        # Padding sentences have one word and no span.
        more = shape[0] - sentences
        lengths = np.pad(batch.lengths, (0, more), constant_values=1)
        values = [lengths, np.pad(start.slots, ((0, more), (0, most - spans)))]
        # Padding keeps the finite numbers of an earlier batch; nothing reads them.
        recording.states[:sentences, :words].copy_(encoding.states)
        recording.inputs.copy_(pack(values, recording.inputs.device), non_blocking=True)
        recording.start()
        steps: list[Candidates[Tensor]] = []
        keys = np.pad(batch.keys, (0, more))

        def denoise(x: Tensor, t: int) -> tuple[Tensor, Candidates[Tensor]]:
            recording.x.copy_(x)
            recording.t.fill_(t)
            recording.step()
            return recording.x0, recording.found

        for step in self.network.reverse(recording.state, keys, settings, denoise=denoise):
            found = step.prediction.map(lambda array: array[:sentences, :, :spans])
            # The next step overwrites it.
            steps.append(found.map(torch.clone) if settings.average_steps else found)
        counted = steps if settings.average_steps else steps[-1:]
        return Candidates.combine(counted, lambda arrays: torch.cat(arrays, 1))

    def _record(
        self, settings: InferenceSettings, shape: tuple[int, int, int], masked: bool
    ) -> _Recording:
        sentences, words, spans = shape
        states = self.states.take(sentences, words, self.network.encoder.hidden_size)
        # While recording: sentences of one word, with all their spans.
        values = [np.ones(sentences, dtype=np.int64), np.ones((sentences, spans), dtype=bool)]
        inputs = pack(values, states.device).to(states.device)
        x = torch.zeros(sentences, 1, spans, 2, device=states.device)
        t = torch.ones(sentences, 1, dtype=torch.int64, device=states.device)

        def start() -> ReverseState:
            lengths, slots = unpack(inputs, values)
            mask = torch.arange(words, device=states.device) < lengths[:, None]
            encoding = SentenceEncoding(states, mask, lengths)
            start = ReverseStart(slots, is_ragged=masked)
            return self.network.start_reverse(encoding, start, settings)

        state, replay_start = self.record(start)

        def step() -> tuple[Tensor, Candidates[Tensor]]:
            x0, prediction = self.network.denoise(state.sentence, x, t, state.mask)
            return x0, read_out(prediction, state.slots, state.sentence.initial)

        (x0, found), replay_step = self.record(step)
        # Replays do not need the sentence; later recordings reuse its memory.
        kept = ReverseState(cast(PreparedSentence, None), state.slots, None, state.x)
        return _Recording(states, inputs, replay_start, kept, x, t, replay_step, x0, found)
