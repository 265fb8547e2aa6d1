"""The sentence encoder on a GPU: without padding, and recorded as CUDA graphs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diffusionner.batching import Batch, round_up
from diffusionner.inference.gpu.recording import (
    WORDS,
    BufferPool,
    Recorder,
    Recordings,
    Replay,
    Shape,
    padded_count,
)
from diffusionner.model.bert import Bert
from diffusionner.model.encoder import SentenceEncoder, SentenceEncoding, pool_subwords
from diffusionner.model.tensors import pack, to_device, unpack

TOTAL_SIZES = 32  # sizes between powers of two that the subwords of a batch are padded to
LENGTH_MULTIPLE = 128  # the length of the longest sentence is rounded up to a multiple of this


def can_pack(encoder: SentenceEncoder) -> bool:
    """Return whether flash attention can run the transformer on concatenated sentences."""
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


class PackedTransformer:
    """The pretrained part of an encoder, run on the concatenated sentences of a batch.

    Nothing is computed for padding, and attention without a mask is several times as fast. The
    encoder must satisfy `can_pack`.
    """

    def __init__(self, encoder: SentenceEncoder, record: Recorder | None) -> None:
        """record: None runs without CUDA graphs."""
        assert isinstance(encoder.transformer, Bert)
        self.transformer, self.pooling = encoder.transformer, encoder.pooling
        self.record = record
        # Subwords and boundaries, concatenated; states [T, size]; what computes them.
        self.recordings: Recordings[tuple[Tensor, Tensor, Replay]] = Recordings()
        weight = next(self.transformer.parameters())
        self.device = weight.device
        self.states = BufferPool(weight)
        self.inputs = BufferPool(torch.zeros(0, dtype=torch.int32, device=weight.device))

    def __call__(self, batch: Batch[np.ndarray]) -> Tensor:
        """Return word states [B, M, size]."""
        states, boundaries = self.subwords(batch)
        values = [batch.first, batch.word_of, batch.row, boundaries[:-1]]
        first, word_of, row, starts = to_device(values, self.device)
        return pool_subwords(states, first, word_of, row, self.pooling, starts)

    def subwords(self, batch: Batch[np.ndarray]) -> tuple[Tensor, np.ndarray]:
        """Return subword states [T, size] and starts of rows [R + 1], until the next batch."""
        real = batch.attention.astype(bool)
        sizes = real.sum(1)
        boundaries = np.concatenate([[0], np.cumsum(sizes)])
        return self._states(batch.subwords[real], boundaries, int(sizes.max())), boundaries

    def _states(self, ids: np.ndarray, boundaries: np.ndarray, longest: int) -> Tensor:
        total, sentences = len(ids), len(boundaries) - 1
        # Padding sentences have no subwords.
        more = (1 << (sentences - 1).bit_length()) - sentences
        shape = (
            padded_count(total, TOTAL_SIZES),
            sentences + more,
            round_up(longest, LENGTH_MULTIPLE),
        )
        recording = None
        if self.record is not None:
            recording = self.recordings.get(shape, lambda: self._record(shape))
        if recording is None:
            inputs = pack([ids, boundaries], self.device).to(self.device, non_blocking=True)
            return self._run(inputs, total, shape[2])
        values = [np.pad(ids, (0, shape[0] - total)), np.pad(boundaries, (0, more), mode="edge")]
        inputs, states, run = recording
        inputs.copy_(pack(values, self.device), non_blocking=True)
        run()
        return states

    def _run(self, inputs: Tensor, total: int, longest: int) -> Tensor:
        return self.transformer.packed(inputs[:total], inputs[total:], longest)

    def _record(self, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor, Replay]:
        total, sentences, longest = shape
        inputs = self.inputs.take(total + sentences + 1)
        inputs.zero_()  # while recording: no sentence at all
        states = self.states.take(total, self.transformer.config.hidden_size)
        assert self.record is not None
        _, run = self.record(lambda: states.copy_(self._run(inputs, total, longest)))
        return inputs, states, run


@dataclass
class _ContextRecording:
    """Characters and BiLSTM over fixed memory."""

    words: Tensor  # [B, M, size of the transformer]
    inputs: Tensor  # lengths and characters, concatenated
    states: Tensor  # [B, M, h]
    run: Replay


class RecordedContext:
    """The part of an encoder after the transformer, on one stream and one thread at a time."""

    def __init__(self, encoder: SentenceEncoder, record: Recorder, seen: Counter[Shape]) -> None:
        """seen: as in `Recordings`."""
        self.encoder = encoder
        self.record = record
        self.recordings: Recordings[_ContextRecording] = Recordings(seen)
        weight = next(encoder.parameters())
        self.device = weight.device
        self.words, self.states = BufferPool(weight), BufferPool(weight)
        self.inputs = BufferPool(torch.zeros(0, dtype=torch.int32, device=weight.device))

    def __call__(self, words: Tensor, batch: Batch[np.ndarray]) -> SentenceEncoding:
        """words: [B, M, size of the transformer]"""
        sentences, most = batch.first.shape
        width = round_up(batch.characters.shape[2], 4)
        shape = (padded_count(sentences), round_up(most, WORDS), width)
        recording = self.recordings.get(shape, lambda: self._record(shape))
        if recording is None:
            moved = to_device([batch.lengths, batch.characters], self.device)
            return self.encoder.contextualise(words, *moved)
        lengths, characters = values = _blank(shape)
        lengths[:sentences] = batch.lengths
        characters[:sentences, :most, : batch.characters.shape[2]] = batch.characters
        # Padding keeps the finite numbers of an earlier batch; nothing reads them.
        recording.words[:sentences, :most].copy_(words)
        recording.inputs.copy_(pack(values, self.device), non_blocking=True)
        recording.run()
        states = recording.states[:sentences, :most].contiguous()
        there = recording.inputs[:sentences].long()
        mask = torch.arange(most, device=self.device) < there[:, None]
        return SentenceEncoding(states, mask, there)

    def _record(self, shape: tuple[int, int, int]) -> _ContextRecording:
        sentences, most, _ = shape
        values = _blank(shape)
        inputs = self.inputs.take(sum(value.size for value in values))
        inputs.copy_(pack(values, self.device))
        words = self.words.take(sentences, most, self.encoder.transformer.config.hidden_size)
        states = self.states.take(sentences, most, self.encoder.hidden_size)

        def work() -> None:
            encoding = self.encoder.contextualise(words, *unpack(inputs, values))
            states.copy_(encoding.states)

        _, run = self.record(work)
        return _ContextRecording(words, inputs, states, run)


def _blank(shape: tuple[int, int, int]) -> list[np.ndarray]:
    """Return lengths and characters of padding sentences: one word without characters."""
    return [np.ones(shape[0], dtype=np.int64), np.zeros(shape, dtype=np.int64)]
