"""Rivals as CUDA graphs, like `inference.gpu.decoding` for the main method.

Shapes: B sentences, M words, K candidates.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from diffusionner.batching import Batch, round_up
from diffusionner.diffusion import Candidates, ReverseStart
from diffusionner.inference.gpu.recording import (
    WORDS,
    BufferPool,
    Recorder,
    Recordings,
    Replay,
    Shape,
    padded_count,
)
from diffusionner.model.encoder import SentenceEncoding
from diffusionner.model.tensors import pack, unpack
from diffusionner.settings import InferenceSettings
from reproduce.rivals.base import Rival, Rounds, concatenate


@dataclass
class _Recording:
    """CUDA graphs of a rival for one shape."""

    states: Tensor  # [B, M, h]
    inputs: Tensor  # lengths and counts, concatenated
    begin: Replay
    rounds: Rounds
    needed: int = 1  # maximum rounds of any batch so far
    # The first rounds, with the memory of their candidates.
    recorded: list[tuple[Candidates[Tensor], Replay]] = field(default_factory=list)


class RecordedRival:
    """Runs a rival from CUDA graphs; rounds that no batch has needed yet run without."""

    def __init__(self, network: Rival, record: Recorder, seen: Counter[Shape]) -> None:
        """seen: see `Recordings`."""
        self.network = network
        self.record = record
        self.recordings: Recordings[_Recording] = Recordings(seen)
        weight = next(network.parameters())
        self.states, self.memory = BufferPool(weight), BufferPool(weight)

    @property
    def count(self) -> int:
        """Number of recordings, including those of rounds."""
        return sum(1 + len(one.recorded) for one in self.recordings.recorded.values())

    def candidates(
        self,
        encoding: SentenceEncoding,
        batch: Batch[np.ndarray],
        start: ReverseStart[np.ndarray],
        settings: InferenceSettings,
    ) -> Candidates[Tensor] | None:
        """Return the candidates; None if the shape is new.

        If spans are given, generation returns as many entities.
        """
        sentences, words = batch.first.shape
        shape = (padded_count(sentences), round_up(words, WORDS))
        recording = self.recordings.get(shape, lambda: self._record(shape))
        if recording is None:
            return None
        while len(recording.recorded) < recording.needed:
            next_round = partial(recording.rounds, len(recording.recorded))
            recording.recorded.append(self.record(next_round))
        lengths, counts = values = _blank(shape[0])
        lengths[:sentences] = batch.lengths
        if start.given_slots is not None:
            counts[:sentences] = start.given_slots.sum(1)
        # Padding keeps earlier values, which are never read.
        recording.states[:sentences, :words].copy_(encoding.states)
        recording.inputs.copy_(pack(values, recording.states.device), non_blocking=True)
        return self._run(recording).map(lambda array: array[:sentences])

    def _run(self, recording: _Recording) -> Candidates[Tensor]:
        recording.begin()
        found: list[Candidates[Tensor]] = []
        while len(found) < recording.rounds.max_rounds:
            if len(found) < len(recording.recorded):
                of_round, replay = recording.recorded[len(found)]
                replay()
                found.append(of_round.map(torch.clone))
            else:
                found.append(recording.rounds(len(found)))
            if not recording.rounds.more():
                break
        recording.needed = max(recording.needed, len(found))
        return concatenate(found)

    def _record(self, shape: tuple[int, int]) -> _Recording:
        sentences, words = shape
        states = self.states.take(sentences, words, self.network.encoder.hidden_size)
        values = _blank(sentences)
        inputs = pack(values, states.device).to(states.device)

        def begin() -> Rounds:
            lengths, counts = unpack(inputs, values)
            mask = torch.arange(words, device=states.device) < lengths[:, None]
            encoding = SentenceEncoding(states, mask, lengths)
            return self.network.rounds(encoding, counts, self.memory.take)

        rounds, replay = self.record(begin)
        return _Recording(states, inputs, replay, rounds)


def _blank(sentences: int) -> list[np.ndarray]:
    """Return the lengths and counts of padding: one word, any number of entities."""
    return [np.ones(sentences, dtype=np.int64), np.full(sentences, -1, dtype=np.int64)]
