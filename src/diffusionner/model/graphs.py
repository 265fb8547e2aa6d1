"""CUDA graphs of the network's forward and backward pass, for training on one GPU.

A small model's kernels are shorter than it takes Python to launch them. Recorded once per shape of
its inputs, a whole pass is replayed with a single launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from diffusionner.batching import Batch
from diffusionner.model.decoder import Prediction
from diffusionner.model.network import DenoisingNetwork

# Subwords and words of a batch are padded to multiples of these, to have few shapes to record.
BUCKETS = (64, 16)
SPARE = 0.3  # share of the GPU's memory that must be free to record one more shape


class _Core(nn.Module):
    """Tensors in, tensors out: what can be recorded."""

    def __init__(self, network: DenoisingNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, spans: Tensor, t: Tensor, *parts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        prediction = self.network(unpack(parts), spans, t)
        return prediction.left, prediction.right, prediction.types


@dataclass
class _Recording:
    """A forward and a backward pass over fixed memory."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]  # of the loss with respect to the outputs
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph


class _Replay(torch.autograd.Function):
    """Puts a recording into autograd's graph; the backward pass adds to the parameters' .grad."""

    @staticmethod
    def forward(ctx: Any, recording: _Recording, anchor: Tensor, *inputs: Tensor) -> Any:
        # The anchor asks for a gradient: without it, autograd would see nothing to differentiate.
        ctx.recording, ctx.inputs = recording, len(inputs)
        for static, value in zip(recording.inputs, inputs, strict=True):
            static.copy_(value)
        recording.forward.replay()
        return tuple(output.detach() for output in recording.outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        for static, value in zip(ctx.recording.gradients, gradients, strict=True):
            static.copy_(value)
        ctx.recording.backward.replay()
        return (None,) * (2 + ctx.inputs)


class GraphedNetwork:
    """Records the network for each shape of a full batch, on first sight.

    The recordings share their memory, since between a forward pass and its backward pass no other
    runs. They add to the gradients where these lie: those must be zeroed, not dropped.
    """

    def __init__(self, network: DenoisingNetwork, batch_size: int) -> None:
        self.core = _Core(network)
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        # Not a parameter: its place in autograd's graph would be bound to the stream in use, and
        # so spoil a recording on another as long as a loss is alive.
        self.anchor = torch.zeros((), requires_grad=True)
        self.batch_size = batch_size
        self.side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()
        self.recorded: dict[torch.Size, _Recording] = {}

    def fits(self, batch: Batch[Tensor]) -> bool:
        """Whether to replay: not the smaller last batch of an epoch, nor where memory is short."""
        if len(batch.lengths) != self.batch_size:
            return False
        if _shape(batch) in self.recorded:
            return True
        free, total = torch.cuda.mem_get_info()
        return free > total * SPARE

    def __call__(self, batch: Batch[Tensor], spans: Tensor, t: Tensor) -> Prediction:
        inputs = (spans, t, *_pack(batch))
        shape = _shape(batch)
        if shape not in self.recorded:
            # A run that is resumed records at other times: its dropout must not depend on that.
            with torch.random.fork_rng(devices=[spans.device]):
                self.recorded[shape] = self._record(inputs)
        left, right, types = _Replay.apply(self.recorded[shape], self.anchor, *inputs)  # type: ignore[no-untyped-call]
        return Prediction(left, right, types)

    def _record(self, inputs: tuple[Tensor, ...]) -> _Recording:
        # Recording happens on a stream of its own; autograd then waits where it must.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        precision = torch.autocast(
            "cuda",
            dtype=torch.get_autocast_dtype("cuda"),
            enabled=torch.is_autocast_enabled("cuda"),
            cache_enabled=False,  # a cached weight would be recorded once and never again
        )
        static = tuple(value.clone() for value in inputs)
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            for _ in range(3):  # libraries choose their kernels and workspaces
                with precision:
                    outputs = self.core(*static)
                zeros = tuple(torch.zeros_like(output) for output in outputs)
                found = torch.autograd.grad(outputs, self.parameters, zeros, allow_unused=True)
        torch.cuda.current_stream().wait_stream(self.side)
        for parameter, gradient in zip(self.parameters, found, strict=True):
            if gradient is not None and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        del outputs, found
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(forward, pool=self.pool), precision:
            outputs = self.core(*static)
        with torch.cuda.graph(backward, pool=self.pool):
            torch.autograd.backward(outputs, zeros)
        detached = tuple(output.detach() for output in outputs)
        return _Recording(static, detached, zeros, forward, backward)


def _shape(batch: Batch[Tensor]) -> torch.Size:
    return batch.subwords.shape + batch.first.shape


def _pack(batch: Batch[Tensor]) -> tuple[Tensor, ...]:
    # The mask is given in its final, 4-D form: a 2-D one would have its content looked at by the
    # host, which cannot be recorded.
    mask = batch.attention.bool()[:, None, None]
    return batch.subwords, mask, batch.word_of, batch.first, batch.lengths, batch.characters


def unpack(parts: tuple[Tensor, ...]) -> Batch[Tensor]:
    """A batch of tensors alone, its mask 4-D, for whatever records the network."""
    subwords, attention, word_of, first, lengths, characters = parts
    none, nothing = lengths.new_zeros(0), np.zeros(0, dtype=np.int64)
    return Batch(
        subwords, attention, word_of, first, lengths, characters,
        gold=none, gold_types=none, keys=nothing, gold_counts=nothing,
    )  # fmt: skip
