"""Inference on a GPU: several batches at a time, with CUDA graphs and without padding."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diffusionner.batching import Batch, round_up
from diffusionner.diffusion import AUTO, Candidates, ReverseStart
from diffusionner.inference.engine import Pending
from diffusionner.inference.gpu.encoding import PackedTransformer, RecordedContext, can_pack
from diffusionner.inference.gpu.recording import SPANS, CudaRecorder, Recorder, Shape
from diffusionner.methods import recorded_class
from diffusionner.model.base import Network
from diffusionner.model.encoder import BiLSTM
from diffusionner.model.network import DenoisingNetwork
from diffusionner.model.tensors import batch_to_device, to_device
from diffusionner.settings import InferenceSettings

# Many small kernels follow the transformer, one after the other. Those of two batches run at once,
# in parallel with the transformer of a third.
LANES = 2


@dataclass
class Lane:
    """Stream and recordings of what follows the transformer, for every LANES-th batch."""

    stream: torch.cuda.Stream | None = None
    context: RecordedContext | None = None
    method: Any = None  # runs the network's method by recordings, as GraphedDecoding does

    @classmethod
    def recorded(cls, network: Network, record: Recorder, seen: Counter[Shape]) -> Lane:
        """seen: the shapes that any lane has seen."""
        context = RecordedContext(network.encoder, record, seen)
        return cls(None, context, recorded_class(network.method)(network, record, seen))

    @property
    def recordings(self) -> int:
        return sum(len(part.recordings) for part in (self.context, self.method) if part)


class SpanBudget:
    """Number of spans to launch with spans="auto", by the number of slots of a batch.

    A CPU reads the scores of the candidates and takes as many as are likely; reading them would
    stall a GPU. So it gets as many as such batches have needed so far. A batch that needed more
    runs again with all slots, so that the result does not depend on this.
    """

    def __init__(self) -> None:
        self.needed: dict[int, int] = {}

    def expected(self, slots: np.ndarray) -> int:
        """Return how many of the slots [B, K] to launch: all of them for a new kind of batch."""
        most = slots.shape[1]
        needed = self.needed.get(round_up(most, SPANS))
        return most if needed is None else min(most, round_up(needed + 1, SPANS))

    def was_sufficient(
        self, found: Candidates[np.ndarray], slots: np.ndarray, launched: int
    ) -> bool:
        """Return whether the launched spans were enough, and remember how many were used."""
        used = found.slots[:, 0].sum(1)
        kind = round_up(slots.shape[1], SPANS)
        self.needed[kind] = max(self.needed.get(kind, 0), int(used.max()))
        return not ((used == launched) & (slots.sum(1) > launched)).any()


class GpuEngine:
    """Launches batches without waiting for them."""

    subword_multiple = 8  # tensor cores work on blocks of eight
    prefetch = 8  # a GPU must not wait while the host reads a chunk

    def __init__(
        self, network: Network, running: Network, cuda_graphs: bool, autocast: bool = False
    ) -> None:
        """running: the copy of the network to run; autocast: run a float32 network in bf16."""
        # cuDNN's attention is planned anew for every shape, which costs more than it saves.
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.network = network
        self.beliefs = network.belief_denoiser()
        self.running = running
        self.labels = network.labels
        self.label_groups = 1
        self.cuda_graphs = cuda_graphs
        self.autocast = autocast
        self.device = next(running.parameters()).device
        self.budget = SpanBudget()
        self.launched = 0
        # Recordings and streams, whose memory follows the order of launches, are for one thread.
        self.launching = threading.Lock()
        self.transformer: PackedTransformer | None = None
        self.lanes = [Lane()]
        # On a CPU, as in tests, there are no streams.
        if self.device.type == "cuda" and not autocast:  # the weights do not change any more
            self.lanes = _lanes(self.device, running, cuda_graphs)
            for module in running.modules():
                if isinstance(module, BiLSTM):
                    module.run_in_parallel = run_in_parallel
            if can_pack(running.encoder):
                record = CudaRecorder(_stream(self.device)) if cuda_graphs else None
                self.transformer = PackedTransformer(running.encoder, record)

    @property
    def recordings(self) -> int:
        """Number of recorded shapes."""
        of_lanes = sum(lane.recordings for lane in self.lanes)
        return of_lanes + (0 if self.transformer is None else len(self.transformer.recordings))

    def launch(
        self, batch: Batch[np.ndarray], start: ReverseStart[np.ndarray], settings: InferenceSettings
    ) -> Pending:
        """Launch a batch. A network that is being trained returns to training mode."""
        fixed = settings.spans != AUTO or settings.start != "candidates" or start.given is not None
        if fixed or not isinstance(self.running, DenoisingNetwork):
            return self._launch(batch, start, settings)
        expected = self.budget.expected(start.slots)
        pending = self._launch(batch, ReverseStart(start.slots[:, :expected]), settings)

        def wait() -> Candidates[np.ndarray]:
            """Wait for a batch; run it again with all slots if the launched ones were too few."""
            found = pending()
            if not self.budget.was_sufficient(found, start.slots, expected):
                found = self._launch(batch, start, settings)()
                self.budget.was_sufficient(found, start.slots, start.slots.shape[1])  # to remember
            return found

        return wait

    def _launch(
        self, batch: Batch[np.ndarray], start: ReverseStart[np.ndarray], settings: InferenceSettings
    ) -> Pending:
        was_training = self.running.training
        if was_training:
            self.running.eval()
        try:
            with self.exclusive():
                try:
                    return self._run(batch, start, settings)
                except torch.OutOfMemoryError:
                    if not self.recordings:
                        raise
                self._drop_recordings()
                return self._run(batch, start, settings)
        finally:
            if was_training:
                self.running.train()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Enter inference mode on this GPU, one thread at a time."""
        kind = self.device.type
        autocast = torch.autocast(kind, torch.bfloat16, enabled=self.autocast)
        # Triton kernels and graphs are launched on the current GPU, wherever their tensors are.
        here = torch.cuda.device(self.device) if kind == "cuda" else nullcontext()
        with here, self.launching, torch.inference_mode(), autocast:
            yield

    def _drop_recordings(self) -> None:
        """Run without recordings from now on: batches need their memory more."""
        for lane in self.lanes:
            lane.context = lane.method = None
        if self.transformer is not None:
            self.transformer = PackedTransformer(self.running.encoder, None)
        torch.cuda.empty_cache()

    def _run(
        self, batch: Batch[np.ndarray], start: ReverseStart[np.ndarray], settings: InferenceSettings
    ) -> Pending:
        """Encode the batch, run the reverse process and read out the candidates."""
        if self.transformer is not None:
            words = self.transformer(batch)
        else:
            words = self.running.encoder.pooled(batch_to_device(batch, self.device))
        lane = self.lanes[self.launched % len(self.lanes)]
        self.launched += 1
        with _after(lane.stream, words):
            if lane.context is not None:
                encoding = lane.context(words, batch)
            else:
                arrays = to_device([batch.lengths, batch.characters], self.device)
                encoding = self.running.encoder.contextualise(words, *arrays)
            found = None
            if lane.method is not None:
                found = lane.method.candidates(encoding, batch, start, settings)
            if found is None:
                on_device = start.map(lambda array: to_device([array], self.device)[0])
                found = self.running.candidates(encoding, batch.keys, on_device, settings)
            return fetch(found)


def run_in_parallel(
    ahead: nn.Module, states: Tensor, behind: nn.Module, reversed_states: Tensor
) -> tuple[Tensor, Tensor]:
    """Run the two directions of an LSTM in parallel, on two streams.

    One direction alone keeps few multiprocessors busy, word after word. Memory is safe: what is
    allocated here is reused only by work that has waited for the stream.
    """
    if not states.is_cuda:  # a copy that was moved, as for an export
        return ahead(states)[0], behind(reversed_states)[0]
    main = torch.cuda.current_stream(states.device)
    side = _side_stream(main)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        second = behind(reversed_states)[0]
    first = ahead(states)[0]
    main.wait_stream(side)
    return first, second


@cache
def _side_stream(main: torch.cuda.Stream) -> torch.cuda.Stream:
    return _stream(main.device)


def _lanes(device: torch.device, network: Network, recorded: bool) -> list[Lane]:
    """Each lane captures on its own stream; sharing one deadlocks."""
    seen: Counter[Shape] = Counter()
    lanes = []
    for _ in range(LANES):
        stream = _stream(device)
        lane = Lane.recorded(network, CudaRecorder(stream), seen) if recorded else Lane()
        lane.stream = stream
        lanes.append(lane)
    return lanes


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _after(stream: torch.cuda.Stream | None, needed: Tensor) -> AbstractContextManager[None]:
    """Continue on a stream of its own, so that the transformer's next batch can start."""
    if stream is None:
        return nullcontext()
    stream.wait_stream(torch.cuda.current_stream())
    needed.record_stream(stream)  # or the next batch would reuse its memory too early
    return torch.cuda.stream(stream)


def fetch(found: Candidates[Tensor]) -> Pending:
    """Start copying candidates to the host, as one tensor; the result waits for them."""
    named = [vars(found)[name].float() for name in _COLUMNS]
    logits = () if found.logits is None else found.logits.float().unbind(-1)
    columns = torch.stack([*named, *found.noisy.float().unbind(-1), *logits])
    arrived = None
    on_host = torch.empty(columns.shape, dtype=columns.dtype, pin_memory=columns.is_cuda)
    on_host.copy_(columns, non_blocking=True)
    if columns.is_cuda:
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()

    def wait() -> Candidates[np.ndarray]:
        if arrived is not None:
            arrived.synchronize()
        values = on_host.numpy()
        named = {name: values[i].astype(dtype) for i, (name, dtype) in enumerate(_COLUMNS.items())}
        first, last = len(_COLUMNS), len(_COLUMNS) + 2
        noisy = np.stack([*values[first:last]], -1).astype(np.int64)
        logits_on_host = np.stack([*values[last:]], -1) if logits else None
        return Candidates(**named, noisy=noisy, logits=logits_on_host)

    return wait


_COLUMNS = {
    "left": np.int64,
    "right": np.int64,
    "type_id": np.int64,
    "summed_probability": np.float32,
    "type_probability": np.float32,
    "is_entity": np.bool_,
    "slots": np.bool_,
}
