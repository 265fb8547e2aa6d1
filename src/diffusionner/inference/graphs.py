"""CUDA graphs of what follows the encoder.

What all steps share is some 90 operations, a denoising step with its reading out 140. The host
takes longer to launch them than a GPU to run them, and has no time left to read the next text.
Recorded once per shape, they are one launch each; a step's recording serves any number of steps.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from diffusionner.batching import Batch, round_up
from diffusionner.diffusion import reverse_process
from diffusionner.diffusion.span_counts import AUTO
from diffusionner.model.decoder import read_out
from diffusionner.model.encoder import SentenceEncoding
from diffusionner.model.network import Beginning, DenoisingNetwork, noise_source
from diffusionner.model.streams import aside
from diffusionner.model.tensors import pack, to_device, unpack
from diffusionner.settings import InferenceSettings

# Words and spans of a batch are padded to multiples of these, its sentences to one of eight sizes
# between a power of two and the next: few shapes, and little more to compute, which is mostly done
# span by span.
WORDS, SPANS = 16, 8
SENTENCES = 8
SIGHTINGS = 2  # a shape is recorded when it comes again: what is met once would not pay
MOST = 128  # recordings that are kept; the one that was not used for longest goes

Result = TypeVar("Result")
Replay = Callable[[], None]


class Recorder(Protocol):
    """Makes something to run again of a function whose inputs stay where they are.

    What it gives is where the result of the last run lies, until another recording runs.
    """

    def __call__(self, work: Callable[[], Result]) -> tuple[Result, Replay]: ...


@dataclass
class _Recording:
    """A reverse process over fixed memory."""

    states: Tensor  # [B, M, h]
    inputs: Tensor  # lengths and slots, one behind the other
    begin: Replay
    first: Tensor | None  # [B, 1, K, 2] where it starts, unless at noise
    x: Tensor  # [B, 1, K, 2]
    t: Tensor  # [B, 1]
    step: Replay
    x0: Tensor  # [B, 1, K, 2]
    table: Tensor  # [B, K, 5]


class GraphedDecoding:
    """What a network finds; behind its encoder recordings run where the shape was met before.

    They share their memory: nothing of one is needed any more when the next begins. So all must be
    on one stream, and one thread at a time may be at it.
    """

    def __init__(
        self,
        network: DenoisingNetwork,
        record: Recorder | None = None,
        seen: Counter[tuple[object, ...]] | None = None,
    ) -> None:
        """seen: how often each shape was met, where others on other streams meet them too."""
        self.network = network
        self.record: Recorder = record or CudaRecorder()
        self.seen: Counter[tuple[object, ...]] = Counter() if seen is None else seen
        self.refused: set[tuple[object, ...]] = set()  # there was no memory for these
        self.recorded: OrderedDict[tuple[object, ...], _Recording] = OrderedDict()
        self.room = torch.empty(0)  # of the states

    def find(
        self,
        encoding: SentenceEncoding,
        batch: Batch[np.ndarray],
        settings: InferenceSettings,
        slots: np.ndarray,
    ) -> Tensor:
        """As the network's own, from noise or candidates; batch: what was encoded."""
        auto = settings.spans == AUTO
        (sentences, words), spans = batch.first.shape, slots.shape[1]
        # A fixed number of spans is seen without a mask, so it must be just that.
        most = round_up(spans, SPANS) if auto else spans
        shape = (padded_count(sentences), round_up(words, WORDS), most)
        recording = self._recording((shape, auto, settings.start), settings, shape)
        if recording is None:
            (counted,) = to_device([slots], encoding.states.device)
            return self.network.find(encoding, batch.keys, settings, counted)
        values = _padded(batch, slots, shape)
        table = self._run(recording, encoding.states, batch.keys, settings, values)
        return table[:, :, :spans]

    def _recording(
        self, key: tuple[object, ...], settings: InferenceSettings, shape: tuple[int, int, int]
    ) -> _Recording | None:
        """That of a shape which was met before."""
        self.seen[key] += 1
        known = key in self.recorded or key in self.refused
        if self.seen[key] >= SIGHTINGS and not known:
            try:
                self.recorded[key] = self._record(settings, shape)
            except torch.OutOfMemoryError:  # it runs without
                self.refused.add(key)
                torch.cuda.empty_cache()
            while len(self.recorded) > MOST:
                gone, _ = self.recorded.popitem(last=False)
                self.seen.pop(gone, None)
        if key in self.recorded:
            self.recorded.move_to_end(key)
        return self.recorded.get(key)

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
        count = recording.x.shape[2]
        noise = noise_source(keys, settings.seed, states.device)
        first = noise(0, count) if recording.first is None else recording.first[:sentences]

        def denoise(x: Tensor, t: int) -> tuple[Tensor, Tensor]:
            recording.x[:sentences].copy_(x)
            recording.t.fill_(t)
            recording.step()
            return recording.x0[:sentences], recording.table[:sentences].clone()

        tables = reverse_process(
            denoise,
            first,
            self.network.schedule,
            self.network.timesteps(settings),
            settings.eta,
            lambda step: noise(step, count),
        )
        return torch.stack(tables if settings.average_steps else tables[-1:], 1)

    def _record(self, settings: InferenceSettings, shape: tuple[int, int, int]) -> _Recording:
        sentences, words, spans = shape
        states = self._states(sentences, words)
        # For the time of recording: sentences of one word, and all their spans.
        values = [np.ones(sentences, dtype=np.int64), np.ones((sentences, spans), dtype=bool)]
        inputs = pack(values, states.device).to(states.device)
        x = torch.zeros(sentences, 1, spans, 2, device=states.device)
        t = torch.ones(sentences, 1, dtype=torch.long, device=states.device)

        def begin() -> Beginning:
            lengths, slots = unpack(inputs, values)
            mask = torch.arange(words, device=states.device) < lengths[:, None]
            return self.network.begin(SentenceEncoding(states, mask, lengths), settings, slots)

        begun, replay_begin = self.record(begin)

        def step() -> tuple[Tensor, Tensor]:
            x0, prediction = self.network.step(begun, x, t)
            return x0, read_out(prediction, begun.slots, begun.sentence.initial)

        (x0, table), replay_step = self.record(step)
        return _Recording(states, inputs, replay_begin, begun.x, x, t, replay_step, x0, table)

    def _states(self, sentences: int, words: int) -> Tensor:
        """Memory for [B, M, h]; a larger shape takes more, which then serves the next ones too."""
        hidden = self.network.encoder.hidden_size
        size = sentences * words * hidden
        if self.room.numel() < size:
            like = next(self.network.parameters())
            self.room = like.new_zeros(max(size, 2 * self.room.numel()))
        return self.room[:size].view(sentences, words, hidden)


def padded_count(sentences: int) -> int:
    """To one of SENTENCES sizes between a power of two and the next."""
    step = max(SENTENCES, 1 << (sentences - 1).bit_length()) // (2 * SENTENCES) or 1
    return round_up(sentences, step)


def _padded(
    batch: Batch[np.ndarray], slots: np.ndarray, shape: tuple[int, int, int]
) -> list[np.ndarray]:
    """Lengths and slots of the shape; sentences that are none have one word, and no span."""
    more = shape[0] - len(batch.lengths)
    lengths = np.pad(batch.lengths, (0, more), constant_values=1)
    return [lengths, np.pad(slots, ((0, more), (0, shape[2] - slots.shape[1])))]


class CudaRecorder:
    """CUDA graphs on the current GPU that share their memory."""

    @cached_property
    def pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    @cached_property
    def side(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, work: Callable[[], Result]) -> tuple[Result, Replay]:
        try:
            with aside(self.side):
                return self._record(work)
        except BaseException:
            # The pool is gone if no recording is left in it, and must not be used again.
            self.pool = torch.cuda.graph_pool_handle()
            raise

    def _record(self, work: Callable[[], Result]) -> tuple[Result, Replay]:
        graph = torch.cuda.CUDAGraph()
        work()  # libraries choose their kernels and workspaces
        # Not by torch.cuda.graph, which waits for the GPU and gives all its spare memory back.
        # Other threads may use the GPU meanwhile.
        graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
        try:
            result = work()
        except BaseException:
            with suppress(RuntimeError):  # a recording that failed must be ended as well
                graph.capture_end()
            raise
        graph.capture_end()
        graph.replay()  # nothing has run so far, and what is recorded next needs the result
        return result, graph.replay
