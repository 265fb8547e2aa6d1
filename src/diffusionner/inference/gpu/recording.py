"""CUDA graphs: work recorded once per shape and then launched as a whole.

Launching the kernels of a small network one by one takes the host longer than running them takes a
GPU.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from diffusionner.batching import round_up

MIN_SIGHTINGS = 2  # a shape is recorded when it recurs: recording takes longer than one run
# Words and spans are padded to multiples of these: few shapes, and little extra work.
WORDS, SPANS = 16, 8
MAX_RECORDINGS = 128  # the least recently used one is dropped

Result = TypeVar("Result")
Recording = TypeVar("Recording")
Replay = Callable[[], None]
Shape = tuple[object, ...]
# Turns a function whose inputs stay in place into its result and a function that runs it again. The
# result is the memory that each run writes to, valid until another recording runs.
Recorder = Callable[[Callable[[], Any]], tuple[Any, Replay]]


@contextmanager
def on_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Run on another stream, which waits for the current one; the current one then waits for it."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


class CudaRecorder:
    """Records CUDA graphs that share their memory."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        """stream: to record on; nothing else may run on it meanwhile.

        Everything recorded on one stream must run sequentially: cuBLAS has one workspace per
        stream.
        """
        self.stream = stream

    @cached_property
    def pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], Result]) -> tuple[Result, Replay]:
        with on_stream(self.stream):
            work()  # libraries choose their kernels and workspaces
        result, replay = self.capture(work)
        with on_stream(self.stream):
            replay()  # capturing runs nothing, and later recordings need the result
        return result, replay

    def capture(self, work: Callable[[], Result]) -> tuple[Result, Replay]:
        """Record without running."""
        graph = torch.cuda.CUDAGraph()
        try:
            with on_stream(self.stream):
                # torch.cuda.graph would synchronise and release all spare memory. Other threads may
                # use the GPU meanwhile.
                graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
                try:
                    result = work()
                except BaseException:
                    with suppress(RuntimeError):  # a failed recording must be ended too
                        graph.capture_end()
                    raise
                graph.capture_end()
        except BaseException:
            # A pool without recordings is freed and must not be used again.
            self.pool = torch.cuda.graph_pool_handle()
            raise
        return result, graph.replay


class Recordings(Generic[Recording]):
    """Recordings by shape."""

    def __init__(self, seen: Counter[Shape] | None = None) -> None:
        """seen: how often each shape was seen, if shared with other streams."""
        self.seen: Counter[Shape] = Counter() if seen is None else seen
        self.refused: set[Shape] = set()  # shapes that did not fit into memory
        self.recorded: OrderedDict[Shape, Recording] = OrderedDict()

    def __len__(self) -> int:
        return len(self.recorded)

    def get(self, shape: Shape, record: Callable[[], Recording]) -> Recording | None:
        """Return the recording of a shape seen before; None: run without one."""
        self.seen[shape] += 1
        known = shape in self.recorded or shape in self.refused
        if self.seen[shape] >= MIN_SIGHTINGS and not known:
            try:
                self.recorded[shape] = record()
            except torch.OutOfMemoryError:
                self.refused.add(shape)
                torch.cuda.empty_cache()
            while len(self.recorded) > MAX_RECORDINGS:
                dropped, _ = self.recorded.popitem(last=False)
                self.seen.pop(dropped, None)
        if shape in self.recorded:
            self.recorded.move_to_end(shape)
        return self.recorded.get(shape)


class BufferPool:
    """Memory for the inputs and outputs of recordings, shared by those of one stream.

    It grows to the largest shape.
    """

    def __init__(self, like: Tensor) -> None:
        """like: a tensor with the dtype and device of the memory."""
        self.memory = like.new_zeros(0)

    def take(self, *shape: int) -> Tensor:
        """Return memory of a shape, which may overlap memory that was taken before."""
        size = math.prod(shape)
        if self.memory.numel() < size:
            self.memory = self.memory.new_zeros(max(size, 2 * self.memory.numel()))
        return self.memory[:size].view(shape)


def padded_count(count: int, sizes: int = 8) -> int:
    """Round up to one of `sizes` sizes between powers of two: few shapes, little padding."""
    step = max(sizes, 1 << (count - 1).bit_length()) // (2 * sizes) or 1
    return round_up(count, step)
