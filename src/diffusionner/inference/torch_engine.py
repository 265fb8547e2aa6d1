"""A network in torch, on a CPU or a GPU."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from diffusionner.batching import Batch
from diffusionner.diffusion.span_counts import AUTO
from diffusionner.errors import SettingsError, nearest
from diffusionner.inference.gpu.encoding import PackedTransformer, RecordedContext, can_pack
from diffusionner.inference.gpu.recording import CudaRecorder, Recorder, Shape
from diffusionner.inference.gpu.span_budget import SpanBudget
from diffusionner.methods import recorded_class
from diffusionner.model.base import Network
from diffusionner.model.encoder import SentenceEncoding
from diffusionner.model.network import DenoisingNetwork
from diffusionner.model.tensors import to_device, to_tensors
from diffusionner.settings import InferenceSettings

PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}
# Behind the transformer come many small kernels, one after the other: what follows it in two
# batches runs side by side, beside the transformer in a third.
LANES = 2


class Graphed(Protocol):
    """Finds entities in what is encoded, by recordings of the shapes that were met before."""

    @property
    def count(self) -> int:
        """Recordings."""

    def find(
        self,
        encoding: SentenceEncoding,
        batch: Batch[np.ndarray],
        settings: InferenceSettings,
        slots: np.ndarray,
        given: np.ndarray | None,
    ) -> Tensor | None:
        """As the network; None for what has no recording."""


@dataclass
class Lane:
    """What follows the transformer in every so many-th batch: its stream and its recordings."""

    stream: torch.cuda.Stream | None = None
    context: RecordedContext | None = None
    graphs: Graphed | None = None

    @classmethod
    def recorded(cls, network: Network, record: Recorder, seen: Counter[Shape]) -> Lane:
        """seen: the shapes that any lane has met."""
        context = RecordedContext(network.encoder, record, seen)
        return cls(None, context, recorded_class(network.method)(network, record, seen))

    @property
    def recordings(self) -> int:
        return sum(part.count for part in (self.context, self.graphs) if part)


class TorchEngine:
    def __init__(
        self,
        network: Network,
        device: str | None = None,
        precision: str | None = None,
        cuda_graphs: bool = True,
    ) -> None:
        """device: where to move the network; None leaves it as it is, being trained perhaps.

        precision: None = bf16 on a GPU, float32 on a CPU. cuda_graphs: on a GPU, record the encoder
        and what finds entities.
        """
        self.network = network
        self.labels = network.labels
        self.running = network  # or a rounded copy
        self.borrowed = device is None  # its weights change, so a rounded copy would not last
        if device is not None:
            self._move(device)
            self._round(precision or ("bf16" if device.startswith("cuda") else "float32"))
        self.transformer: PackedTransformer | None = None
        self.lanes = [Lane()]
        self.launched = 0
        self.enough = SpanBudget() if next(network.parameters()).is_cuda else None
        # Recordings and streams, whose memory follows the order of launches, are for one at a time.
        self.launching = threading.Lock()
        if device is not None and device.startswith("cuda"):
            self.lanes = _lanes(device, self.running, cuda_graphs)
            if can_pack(self.running.encoder):
                record = CudaRecorder(_stream(device)) if cuda_graphs else None
                self.transformer = PackedTransformer(self.running.encoder, record)

    @property
    def subword_step(self) -> int:
        """Tensor cores work on blocks of eight."""
        return 8 if next(self.running.parameters()).is_cuda else 1

    @property
    def ahead(self) -> int:
        """A GPU must not wait while the host reads a chunk; on a CPU a batch is done at once."""
        return 8 if next(self.running.parameters()).is_cuda else 0

    def _move(self, device: str) -> None:
        if device.startswith("cuda"):
            # cuDNN's attention is planned anew for every shape, which costs more than it saves.
            torch.backends.cuda.enable_cudnn_sdp(False)
        try:
            self.network.to(device).eval()
        except (RuntimeError, AssertionError) as error:  # which of them depends on the device
            reason = str(error).strip().splitlines()[0]
            raise SettingsError(
                f"device '{device}' cannot be used ({reason}); try cpu, or leave it out"
            ) from error

    def _round(self, precision: str) -> None:
        """A copy in bf16 to run: autocast would keep float32 between the layers, twice the bytes.

        The weights themselves stay, to be saved as they are.
        """
        if precision not in PRECISIONS:
            raise SettingsError(
                f"unknown precision '{precision}'; {nearest(precision, PRECISIONS)}"
            )
        if precision != "float32":
            self.running = copy.deepcopy(self.network).to(PRECISIONS[precision])
            for module in self.running.modules():
                if isinstance(module, torch.nn.LSTM) and next(module.parameters()).is_cuda:
                    module.half().flatten_parameters()

    def find(
        self,
        batch: Batch[np.ndarray],
        settings: InferenceSettings,
        slots: np.ndarray,
        given: np.ndarray | None = None,
        start: int | None = None,
    ) -> Callable[[], np.ndarray]:
        """As `Engine` says. A network in training is put back into training."""
        counted = settings.spans != AUTO or settings.start != "candidates" or given is not None
        if self.enough is None or counted or not isinstance(self.running, DenoisingNetwork):
            return self._launch(batch, settings, slots, given, start)
        expected = self.enough.expected(slots)
        wait = self._launch(batch, settings, slots[:, :expected])
        return partial(self._with_enough, self.enough, wait, expected, batch, settings, slots)

    def _with_enough(
        self,
        enough: SpanBudget,
        wait: Callable[[], np.ndarray],
        launched: int,
        batch: Batch[np.ndarray],
        settings: InferenceSettings,
        slots: np.ndarray,
    ) -> np.ndarray:
        """What was found with so many spans, or with all that it may have if that was too few."""
        table = wait()
        if not enough.sufficed(table, slots, launched):
            table = self._launch(batch, settings, slots)()
            enough.sufficed(table, slots, slots.shape[1])  # to remember how many it were
        return table

    def _launch(
        self,
        batch: Batch[np.ndarray],
        settings: InferenceSettings,
        slots: np.ndarray,
        given: np.ndarray | None = None,
        start: int | None = None,
    ) -> Callable[[], np.ndarray]:
        """As `find`, with the spans that slots say."""
        network = self.running
        device = next(network.parameters()).device
        was_training = network.training
        if was_training:
            network.eval()
        mixed = self.borrowed and device.type == "cuda"
        autocast = torch.autocast(device.type, torch.bfloat16, enabled=mixed)
        try:
            with torch.inference_mode(), autocast, self._at_device():
                try:
                    return self._find(batch, settings, slots, given, start)
                except torch.OutOfMemoryError:
                    if not self.recordings:
                        raise
                self._forget()  # what batches need more
                torch.cuda.empty_cache()
                return self._find(batch, settings, slots, given, start)
        finally:
            if was_training:
                network.train()

    @contextmanager
    def _at_device(self) -> Iterator[None]:
        """One thread at a time; a CPU has room for many."""
        device = next(self.running.parameters()).device
        if device.type != "cuda":
            yield
            return
        # Triton kernels and graphs are launched on the current GPU, wherever their tensors are.
        with torch.cuda.device(device), self.launching:
            yield

    def encode(self, batches: Iterable[Batch[np.ndarray]]) -> None:
        """The transformer alone, without padding."""
        assert self.transformer is not None
        with torch.inference_mode(), self._at_device():
            for batch in batches:
                self.transformer.subwords(batch)

    @property
    def recordings(self) -> int:
        """How many there are."""
        of_lanes = sum(lane.recordings for lane in self.lanes)
        return of_lanes + (0 if self.transformer is None else len(self.transformer.recordings))

    def _forget(self) -> None:
        """Run without recordings from now on: they hold memory."""
        for lane in self.lanes:
            lane.context = lane.graphs = None
        if self.transformer is not None:
            self.transformer = PackedTransformer(self.running.encoder, None)

    def _find(
        self,
        batch: Batch[np.ndarray],
        settings: InferenceSettings,
        slots: np.ndarray,
        given: np.ndarray | None,
        start: int | None,
    ) -> Callable[[], np.ndarray]:
        device = next(self.running.encoder.parameters()).device
        words = self._words(batch, device)
        lane = self.lanes[self.launched % len(self.lanes)]
        self.launched += 1
        with _behind(lane.stream, words):
            encoding = self._encoding(lane, words, batch, device)
            if lane.graphs is not None:
                table = lane.graphs.find(encoding, batch, settings, slots, given)
                if table is not None:
                    return _fetch(table)
            (counted,) = to_device([slots], device)
            spans = None if given is None else to_device([given], device)[0]
            return _fetch(self.running.find(encoding, batch.keys, settings, counted, spans, start))

    def _words(self, batch: Batch[np.ndarray], device: torch.device) -> Tensor:
        """What the transformer says about words [B, M, its size]"""
        if self.transformer is not None:
            return self.transformer(batch)
        return self.running.encoder.pooled(to_tensors(batch, device))

    def _encoding(
        self, lane: Lane, words: Tensor, batch: Batch[np.ndarray], device: torch.device
    ) -> SentenceEncoding:
        if lane.context is not None:
            return lane.context(words, batch)
        lengths, characters = to_device([batch.lengths, batch.characters], device)
        return self.running.encoder.contextualise(words, lengths, characters)


def _lanes(device: str, network: Network, recorded: bool) -> list[Lane]:
    """Each records on the stream it runs on; of one stream, both at once, it would hang."""
    seen: Counter[Shape] = Counter()
    lanes = []
    for _ in range(LANES):
        stream = _stream(device)
        lane = Lane.recorded(network, CudaRecorder(stream), seen) if recorded else Lane()
        lane.stream = stream
        lanes.append(lane)
    return lanes


def _stream(device: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _behind(stream: torch.cuda.Stream | None, *needed: Tensor) -> AbstractContextManager[None]:
    """On a stream that is not waited for, so that the transformer's next batch runs beside."""
    if stream is None:
        return nullcontext()
    stream.wait_stream(torch.cuda.current_stream())
    for tensor in needed:
        tensor.record_stream(stream)  # or its memory would be the next batch's too early
    return torch.cuda.stream(stream)


def _fetch(table: Tensor) -> Callable[[], np.ndarray]:
    """Start copying a result to the host; what is returned waits for it."""
    if table.device.type != "cuda":
        return table.cpu().numpy
    there = torch.empty(table.shape, dtype=table.dtype, pin_memory=True)
    there.copy_(table, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()

    def wait() -> np.ndarray:
        arrived.synchronize()
        return there.numpy()

    return wait
