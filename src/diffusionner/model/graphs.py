"""CUDA graphs of the network's forward and backward pass, for training on one GPU.

A small model's kernels are shorter than it takes Python to launch them. Recorded once per shape of
its inputs, a whole pass is replayed with a single launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from diffusionner.batching import Batch
from diffusionner.model.decoder import Prediction
from diffusionner.model.network import DenoisingNetwork

# Subwords and words of a batch are padded to multiples of these, to have few shapes to record.
BUCKETS = (64, 16)


class _Core(nn.Module):
    """Tensors in, tensors out: what can be recorded."""

    def __init__(self, network: DenoisingNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, spans: Tensor, t: Tensor, *parts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        prediction = self.network(_unpack(parts), spans, t)
        return prediction.left, prediction.right, prediction.types


class GraphedNetwork:
    """Records the network for each shape of a full batch, on first sight.

    The recordings share their memory: between a forward pass and its backward pass no other runs.
    Gradients end up in static memory, so they must be used before the next backward pass.
    """

    def __init__(self, network: DenoisingNetwork, batch_size: int) -> None:
        self.network = network
        self.batch_size = batch_size
        self.pool = torch.cuda.graph_pool_handle()
        self.recorded: dict[torch.Size, Callable[..., tuple[Tensor, Tensor, Tensor]]] = {}

    def fits(self, batch: Batch) -> bool:
        """The smaller last batch of an epoch is not worth a recording."""
        return len(batch.lengths) == self.batch_size

    def __call__(self, batch: Batch, spans: Tensor, t: Tensor) -> Prediction:
        inputs = (spans, t, *_pack(batch))
        shape = batch.subwords.shape + batch.first.shape
        if shape not in self.recorded:
            self.recorded[shape] = self._record(inputs)
        return Prediction(*self.recorded[shape](*inputs))

    def _record(self, inputs: tuple[Tensor, ...]) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
        # Recording happens on a stream of its own; autograd then waits where it must.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        precision = torch.autocast(
            "cuda",
            dtype=torch.get_autocast_dtype("cuda"),
            enabled=torch.is_autocast_enabled("cuda"),
            cache_enabled=False,  # a cached weight would be recorded once and never again
        )
        static = tuple(value.clone() for value in inputs)
        with precision:
            recorded = torch.cuda.make_graphed_callables(
                _Core(self.network).train(), static, allow_unused_input=True, pool=self.pool
            )
        return cast(Callable[..., tuple[Tensor, Tensor, Tensor]], recorded)


def _pack(batch: Batch) -> tuple[Tensor, ...]:
    # The mask is given in its final, 4-D form: a 2-D one would have its content looked at by the
    # host, which cannot be recorded.
    mask = batch.attention.bool()[:, None, None]
    return batch.subwords, mask, batch.word_of, batch.first, batch.lengths, batch.characters


def _unpack(parts: tuple[Tensor, ...]) -> Batch:
    subwords, attention, word_of, first, lengths, characters = parts
    none = lengths.new_zeros(0)
    return Batch(
        subwords, attention, word_of, first, lengths, characters,
        keys=none, gold=none, gold_types=none, gold_counts=none, host_counts=none,
    )  # fmt: skip
