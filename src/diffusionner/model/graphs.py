"""CUDA graphs of the pretrained encoder for training on one GPU.

A small encoder's kernels are shorter than it takes Python to launch them. Recorded once per input
shape, forward and backward passes are each replayed with a single launch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class _Core(nn.Module):
    """Tensors in, tensor out: what can be recorded."""

    def __init__(self, transformer: PreTrainedModel) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, subwords: Tensor, attention: Tensor) -> Tensor:
        hidden: Tensor = self.transformer(
            input_ids=subwords, attention_mask=attention
        ).last_hidden_state
        return hidden


class GraphedTransformer:
    """Records the encoder for each shape of a full batch, on first sight.

    The recordings share their memory: between a forward pass and its backward pass no other runs.
    Gradients end up in static memory, so they must be used before the next backward pass.
    """

    def __init__(self, transformer: PreTrainedModel, batch_size: int) -> None:
        self.transformer = transformer
        self.batch_size = batch_size
        self.pool = torch.cuda.graph_pool_handle()
        self.recorded: dict[int, Callable[[Tensor, Tensor], Tensor]] = {}

    def fits(self, subwords: Tensor) -> bool:
        return subwords.shape[0] == self.batch_size and torch.is_grad_enabled()

    def __call__(self, subwords: Tensor, attention: Tensor) -> Tensor:
        """[B, L] ids and mask → [B, L, h]"""
        mask = attention.bool()[:, None, None]  # already 4-D: no check of its content on the host
        length = subwords.shape[1]
        if length not in self.recorded:
            core = _Core(self.transformer).train()
            # Recording happens on a stream of its own; autograd then waits where it must.
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
            precision = torch.autocast(
                "cuda",
                dtype=torch.get_autocast_dtype("cuda"),
                enabled=torch.is_autocast_enabled("cuda"),
                cache_enabled=False,
            )
            with precision:
                self.recorded[length] = torch.cuda.make_graphed_callables(
                    core, (subwords.clone(), mask.clone()), allow_unused_input=True, pool=self.pool
                )
        return self.recorded[length](subwords, mask)
