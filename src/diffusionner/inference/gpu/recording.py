"""CUDA graphs: work that is recorded once for a shape and then launched as a whole.

The host takes longer to launch the kernels of a small network one by one than a GPU to run them.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from diffusionner.batching import round_up
from diffusionner.inference.gpu.streams import aside

SIGHTINGS = 2  # a shape is recorded when it comes again: what is met once would not pay
# Words and spans of a sentence come in multiples of these: few shapes, and little more to compute,
# which is mostly done span by span.
WORDS, SPANS = 16, 8
MOST = 128  # recordings that are kept; the one that was not used for longest goes

Result = TypeVar("Result")
Recording = TypeVar("Recording")
Replay = Callable[[], None]
Shape = tuple[object, ...]


class Recorder(Protocol):
    """Makes something to run again of a function whose inputs stay where they are.

    What it gives is where the result of the last run lies, until another recording runs.
    """

    def __call__(self, work: Callable[[], Result]) -> tuple[Result, Replay]: ...


class Recordings(Generic[Recording]):
    """What was recorded, by shape."""

    def __init__(self, seen: Counter[Shape] | None = None) -> None:
        """seen: how often each shape was met, where others on other streams meet them too."""
        self.seen: Counter[Shape] = Counter() if seen is None else seen
        self.refused: set[Shape] = set()  # there was no memory for these
        self.recorded: OrderedDict[Shape, Recording] = OrderedDict()

    def __len__(self) -> int:
        return len(self.recorded)

    def of(self, shape: Shape, record: Callable[[], Recording]) -> Recording | None:
        """That of a shape which was met before; None: run it without."""
        self.seen[shape] += 1
        known = shape in self.recorded or shape in self.refused
        if self.seen[shape] >= SIGHTINGS and not known:
            try:
                self.recorded[shape] = record()
            except torch.OutOfMemoryError:
                self.refused.add(shape)
                torch.cuda.empty_cache()
            while len(self.recorded) > MOST:
                gone, _ = self.recorded.popitem(last=False)
                self.seen.pop(gone, None)
        if shape in self.recorded:
            self.recorded.move_to_end(shape)
        return self.recorded.get(shape)


class Room:
    """Memory for what goes into recordings or comes out, which those of one stream share.

    A larger shape takes more, which then serves the next ones too.
    """

    def __init__(self, like: Tensor) -> None:
        """like: of the same kind, on the same device."""
        self.memory = like.new_zeros(0)

    def take(self, *shape: int) -> Tensor:
        size = math.prod(shape)
        if self.memory.numel() < size:
            self.memory = self.memory.new_zeros(max(size, 2 * self.memory.numel()))
        return self.memory[:size].view(shape)


def padded_count(count: int, sizes: int = 8) -> int:
    """To one of so many sizes between a power of two and the next: few shapes, little padding."""
    step = max(sizes, 1 << (count - 1).bit_length()) // (2 * sizes) or 1
    return round_up(count, step)


class CudaRecorder:
    """CUDA graphs on the current GPU that share their memory."""

    def __init__(self, side: torch.cuda.Stream) -> None:
        """side: a stream to record on, on which nobody else is meanwhile.

        All that was recorded on it must run one after the other: cuBLAS has a workspace per stream.
        """
        self.side = side

    @cached_property
    def pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

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
