"""CUDA graphs of what follows the encoder: candidates, γ denoising steps, reading out.

A step has some 270 kernels. With a small model, or many steps, the host takes longer to launch them
than the GPU to run them, and has no time left to read the next text. Recorded once per shape, they
are one launch.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffusionner.batching import Batch, round_up
from diffusionner.diffusion import span_noise
from diffusionner.diffusion.span_counts import AUTO
from diffusionner.model.encoder import SentenceEncoding
from diffusionner.model.network import DenoisingNetwork, noise_source
from diffusionner.model.tensors import pack, to_device, unpack
from diffusionner.settings import InferenceSettings

# Words and spans of a batch are padded to multiples of these, its sentences to one of eight sizes
# between a power of two and the next: few shapes, at most an eighth of them padding.
WORDS, SPANS = 8, 8
SENTENCES = 8
SIGHTINGS = 2  # a shape is recorded when it comes again: what is met once would not pay
MOST = 32  # recordings that are kept; the one that was not used for longest goes

Replay = Callable[[], None]
Record = Callable[[Callable[[], Tensor]], tuple[Replay, Tensor]]


@dataclass
class _Recording:
    """One pass over fixed memory."""

    states: Tensor  # [B, M, h]
    inputs: Tensor  # lengths, slots and, from noise, x: one behind the other
    replay: Replay
    table: Tensor  # [B, steps, K, 5]


class GraphedDecoding:
    """What a network finds; all behind its encoder is one launch where the shape was met before."""

    def __init__(self, network: DenoisingNetwork, record: Record | None = None) -> None:
        """record: makes something to run again of a function whose inputs stay where they are."""
        self.network = network
        self.record = record or CudaRecorder()
        self.seen: Counter[tuple[object, ...]] = Counter()
        self.recorded: OrderedDict[tuple[object, ...], _Recording] = OrderedDict()
        # Between filling a recording's memory and launching it no other thread may do so.
        self.lock = threading.Lock()

    def find(
        self,
        batch: Batch[np.ndarray],
        tensors: Batch[Tensor],
        settings: InferenceSettings,
        slots: np.ndarray,
    ) -> Tensor:
        """As the network's own, from noise or candidates; tensors: the batch on the device."""
        encoding = self.network.encoder(tensors)
        table = self._replayed(encoding, batch, settings, slots)
        if table is None:
            device = encoding.states.device
            noise = noise_source(batch.keys, settings.seed, device)
            table = self.network.decode(encoding, settings, to_device([slots], device)[0], noise)
        return table

    def _replayed(
        self,
        encoding: SentenceEncoding,
        batch: Batch[np.ndarray],
        settings: InferenceSettings,
        slots: np.ndarray,
    ) -> Tensor | None:
        """[B, steps, K, 5]; None where it is not recorded."""
        if settings.eta > 0:  # needs new noise at every step
            return None
        auto = settings.spans == AUTO
        sentences, words, spans = *encoding.states.shape[:2], slots.shape[1]
        # A fixed number of spans is seen without a mask, so it must be just that.
        most = round_up(spans, SPANS) if auto else spans
        shape = (padded_count(sentences), round_up(words, WORDS), most)
        key = (shape, settings.steps, auto, settings.start, settings.average_steps)
        with self.lock:
            self.seen[key] += 1
            if self.seen[key] < SIGHTINGS:
                return None
            values = _padded(batch, settings, slots, shape)
            if key not in self.recorded:
                self.recorded[key] = self._record(encoding, settings, values, shape)
                while len(self.recorded) > MOST:
                    self.recorded.popitem(last=False)
            self.recorded.move_to_end(key)
            recording = self.recorded[key]
            recording.states.zero_()
            recording.states[:sentences, :words].copy_(encoding.states)
            recording.inputs.copy_(pack(values, recording.inputs.device), non_blocking=True)
            recording.replay()
            # A copy, made before another thread can launch the same again.
            return recording.table[:sentences, :, :spans].clone()

    def _record(
        self,
        encoding: SentenceEncoding,
        settings: InferenceSettings,
        values: list[np.ndarray],
        shape: tuple[int, ...],
    ) -> _Recording:
        sentences, words, _ = shape
        states = encoding.states.new_zeros(sentences, words, encoding.states.shape[-1])
        inputs = pack(values, states.device).to(states.device)

        def work() -> Tensor:
            lengths, slots, *noise = unpack(inputs, values)
            mask = torch.arange(words, device=states.device) < lengths[:, None]
            return self.network.decode(
                SentenceEncoding(states, mask, lengths),
                settings,
                slots,
                lambda step, count: noise[0],
            )

        return _Recording(states, inputs, *self.record(work))


def padded_count(sentences: int) -> int:
    """To one of SENTENCES sizes between a power of two and the next."""
    step = max(SENTENCES, 1 << (sentences - 1).bit_length()) // (2 * SENTENCES) or 1
    return round_up(sentences, step)


def _padded(
    batch: Batch[np.ndarray],
    settings: InferenceSettings,
    slots: np.ndarray,
    shape: tuple[int, ...],
) -> list[np.ndarray]:
    """Lengths, slots and, from noise, x of the shape; sentences that are none have one word."""
    sentences, _, spans = shape
    more = sentences - len(batch.lengths)
    lengths = np.pad(batch.lengths, (0, more), constant_values=1)
    fixed = settings.spans != AUTO  # all spans are there then
    wider = ((0, more), (0, spans - slots.shape[1]))
    values = [lengths, np.pad(slots, wider, constant_values=fixed)]
    if settings.start == "noise":
        noise = span_noise(batch.keys, settings.seed, 0, spans)
        values.append(np.pad(noise, ((0, more), (0, 0), (0, 0), (0, 0))))
    return values


class CudaRecorder:
    """Recordings on the current GPU that share their memory: one runs after the other."""

    @cached_property
    def pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # libraries choose their kernels and workspaces
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU meanwhile.
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            table = work()
        return graph.replay, table
