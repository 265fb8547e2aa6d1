"""How a GPU runs the sentence encoder: without padding, and recorded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diffusionner.batching import Batch, round_up
from diffusionner.inference.gpu.recording import (
    WORDS,
    Recorder,
    Recordings,
    Replay,
    Room,
    Shape,
    padded_count,
)
from diffusionner.model.bert import Bert
from diffusionner.model.encoder import SentenceEncoder, SentenceEncoding, pool_subwords
from diffusionner.model.tensors import pack, to_device, unpack

TOTALS = 32  # sizes between a power of two and the next that subwords of a batch are padded to
LONGEST = 128  # the longest sentence is rounded up to a multiple: how far attention has to look


def can_pack(encoder: SentenceEncoder) -> bool:
    """Whether its transformer can do without padding: where flash attention can."""
    transformer = encoder.transformer
    if not isinstance(transformer, Bert):
        return False
    weight = next(transformer.parameters())
    head = transformer.config.hidden_size // transformer.config.num_attention_heads
    return (
        weight.is_cuda
        and torch.backends.cuda.is_flash_attention_available()
        and weight.dtype == torch.bfloat16
        and torch.cuda.get_device_capability(weight.device) >= (8, 0)
        and head % 8 == 0
        and head <= 256
    )


@dataclass
class _Transformed:
    """The transformer over fixed memory."""

    inputs: Tensor  # subwords and boundaries, one behind the other
    states: Tensor  # [T, size]
    run: Replay


class PackedTransformer:
    """The pretrained part of an encoder, `can_pack`: sentences of a batch one behind the other.

    Nothing is computed for padding, and attention that needs no mask is several times as fast.
    """

    def __init__(self, encoder: SentenceEncoder, record: Recorder | None) -> None:
        """record: None to launch kernel by kernel."""
        assert isinstance(encoder.transformer, Bert)
        self.transformer, self.pooling = encoder.transformer, encoder.pooling
        self.record = record
        self.recordings: Recordings[_Transformed] = Recordings()
        weight = next(self.transformer.parameters())
        self.device = weight.device
        self.states = Room(weight)
        self.inputs = Room(torch.zeros(0, dtype=torch.int32, device=weight.device))

    def __call__(self, batch: Batch[np.ndarray]) -> Tensor:
        """Word states [B, M, size]"""
        states, boundaries = self.subwords(batch)
        values = [batch.first, batch.word_of, boundaries[:-1]]
        first, word_of, starts = to_device(values, self.device)
        return pool_subwords(states, first, word_of, self.pooling, starts)

    def subwords(self, batch: Batch[np.ndarray]) -> tuple[Tensor, np.ndarray]:
        """Subword states [T, size], until the next batch; [B + 1] where each sentence begins."""
        real = batch.attention.astype(bool)
        sizes = real.sum(1)
        boundaries = np.concatenate([[0], np.cumsum(sizes)])
        return self._states(batch.subwords[real], boundaries, int(sizes.max())), boundaries

    def _states(self, ids: np.ndarray, boundaries: np.ndarray, longest: int) -> Tensor:
        total, sentences = len(ids), len(boundaries) - 1
        # Sentences that are none have no subword.
        more = (1 << (sentences - 1).bit_length()) - sentences
        shape = (padded_count(total, TOTALS), sentences + more, round_up(longest, LONGEST))
        recording = None
        if self.record is not None:
            recording = self.recordings.of(shape, lambda: self._record(shape))
        if recording is None:
            inputs = pack([ids, boundaries], self.device).to(self.device, non_blocking=True)
            return self._run(inputs, total, shape[2])
        values = [np.pad(ids, (0, shape[0] - total)), np.pad(boundaries, (0, more), mode="edge")]
        recording.inputs.copy_(pack(values, self.device), non_blocking=True)
        recording.run()
        return recording.states

    def _run(self, inputs: Tensor, total: int, longest: int) -> Tensor:
        return self.transformer.packed(inputs[:total], inputs[total:], longest)

    def _record(self, shape: tuple[int, int, int]) -> _Transformed:
        total, sentences, longest = shape
        inputs = self.inputs.take(total + sentences + 1)
        inputs.zero_()  # for the time of recording: no sentence at all
        states = self.states.take(total, self.transformer.config.hidden_size)
        assert self.record is not None
        _, run = self.record(lambda: states.copy_(self._run(inputs, total, longest)))
        return _Transformed(inputs, states, run)


@dataclass
class _Contextualised:
    """Characters and BiLSTM over fixed memory."""

    words: Tensor  # [B, M, size of the transformer]
    inputs: Tensor  # lengths and characters, one behind the other
    states: Tensor  # [B, M, h]
    run: Replay


class RecordedContext:
    """What follows the transformer in an encoder; all on one stream, by one thread at a time."""

    def __init__(self, encoder: SentenceEncoder, record: Recorder, seen: Counter[Shape]) -> None:
        """seen: as `Recordings` has it."""
        self.encoder = encoder
        self.record = record
        self.recordings: Recordings[_Contextualised] = Recordings(seen)
        weight = next(encoder.parameters())
        self.device = weight.device
        self.words, self.states = Room(weight), Room(weight)
        self.inputs = Room(torch.zeros(0, dtype=torch.int32, device=weight.device))

    @property
    def count(self) -> int:
        return len(self.recordings)

    def __call__(self, words: Tensor, batch: Batch[np.ndarray]) -> SentenceEncoding:
        """words: [B, M, size of the transformer]"""
        sentences, most = batch.first.shape
        width = round_up(batch.characters.shape[2], 4)
        shape = (padded_count(sentences), round_up(most, WORDS), width)
        recording = self.recordings.of(shape, lambda: self._record(shape))
        if recording is None:
            moved = to_device([batch.lengths, batch.characters], self.device)
            return self.encoder.contextualise(words, *moved)
        lengths, characters = values = _blank(shape)
        lengths[:sentences] = batch.lengths
        characters[:sentences, :most, : batch.characters.shape[2]] = batch.characters
        # What is padding keeps what was there before: numbers, which nothing looks at.
        recording.words[:sentences, :most].copy_(words)
        recording.inputs.copy_(pack(values, self.device), non_blocking=True)
        recording.run()
        states = recording.states[:sentences, :most].contiguous()
        there = recording.inputs[:sentences].long()
        mask = torch.arange(most, device=self.device) < there[:, None]
        return SentenceEncoding(states, mask, there)

    def _record(self, shape: tuple[int, int, int]) -> _Contextualised:
        sentences, most, _ = shape
        values = _blank(shape)
        inputs = self.inputs.take(sum(value.size for value in values))
        inputs.copy_(pack(values, self.device))
        words = self.words.take(sentences, most, self.encoder.transformer.config.hidden_size)
        states = self.states.take(sentences, most, self.encoder.hidden_size)

        def work() -> None:
            found = self.encoder.contextualise(words, *unpack(inputs, values))
            states.copy_(found.states)

        _, run = self.record(work)
        return _Contextualised(words, inputs, states, run)


def _blank(shape: tuple[int, int, int]) -> list[np.ndarray]:
    """Lengths and characters of sentences that are none: of one word without any."""
    return [np.ones(shape[0], dtype=np.int64), np.zeros(shape, dtype=np.int64)]
