"""CUDA graphs of a training step, on one GPU.

A small model's kernels are shorter than it takes Python to launch them. Recorded once per shape of
its inputs, everything up to the matching is one launch, everything from there to the gradients
another, and the update of the weights a third.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffusionner.batching import Batch
from diffusionner.inference.gpu.streams import aside
from diffusionner.model.tensors import arrays_of, pack, unpack, with_tensors
from diffusionner.training.base import Objective

# Subwords, words, entities, characters and the words' own subwords of a batch are padded to
# multiples of these, to have few shapes.
BUCKETS = (32, 16, 16, 32, 64)


@dataclass
class _Recording:
    """Two passes over fixed memory."""

    inputs: Tensor  # all the integers of a batch, one behind the other
    denominator: Tensor
    assigned: Tensor
    costs: Tensor  # on the host, the last number being the loss of the step before
    costs_shape: torch.Size
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph


class GraphedStep:
    """Loss and gradients of a batch; records each shape of a full batch on first sight.

    The recordings share their memory, since between the two passes of one no other runs. They add
    to the gradients where these lie: those must be zeroed, not dropped.
    """

    def __init__(self, objective: Objective[Any], batch_size: int) -> None:
        self.objective = objective
        self.parameters = [p for p in objective.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.batch_size = batch_size
        self.side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()
        self.recorded: dict[tuple[tuple[int, ...], ...], _Recording] = {}
        self.loss = torch.zeros((), device=self.device)
        self.room = 0  # bytes that recording takes for a while, at most

    def fits(self, batch: Batch[np.ndarray]) -> bool:
        """Whether to replay: not the smaller last batch of an epoch, nor where memory is short."""
        if len(batch.lengths) != self.batch_size:
            return False
        if _shape(batch) in self.recorded:
            return True
        free, _ = torch.cuda.mem_get_info()
        return free > self.room

    def __call__(
        self, batch: Batch[np.ndarray], given: Sequence[np.ndarray], denominator: float
    ) -> Tensor:
        """The loss. Raises NotFinite for this prediction or the loss before."""
        shape = _shape(batch)
        if shape not in self.recorded:
            # A run that is resumed records at other times: its dropout must not depend on that.
            with torch.random.fork_rng(devices=[self.device]):
                self.recorded[shape] = self._record(batch, given)
        recording = self.recorded[shape]
        values = [*arrays_of(batch), *given]
        recording.inputs.copy_(pack(values, self.device), non_blocking=True)
        recording.denominator.fill_(denominator)
        recording.forward.replay()
        torch.cuda.current_stream().synchronize()
        found = recording.costs.numpy()
        costs = found[:-1].reshape(recording.costs_shape)
        assigned = self.objective.assign(costs, batch.gold_counts, float(found[-1]))
        numbers = pack([assigned], self.device).view(assigned.shape)
        recording.assigned.copy_(numbers, non_blocking=True)
        recording.backward.replay()
        return self.loss.clone()

    def _record(self, batch: Batch[np.ndarray], given: Sequence[np.ndarray]) -> _Recording:
        # Recording happens on a stream of its own; autograd then waits where it must.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        precision = torch.autocast(
            "cuda",
            dtype=torch.get_autocast_dtype("cuda"),
            enabled=torch.is_autocast_enabled("cuda"),
            cache_enabled=False,  # a cached weight would be recorded once and never again
        )
        objective = self.objective

        def predict() -> tuple[Any, Batch[Tensor], Tensor]:
            parts = unpack(inputs, values)
            own = len(values) - len(given)
            tensors = with_tensors(batch, parts[:own])
            predicted = objective.predict(tensors, *parts[own:])
            return predicted, tensors, objective.costs(predicted, tensors)

        values = [*arrays_of(batch), *given]
        inputs = pack(values, self.device).to(self.device)
        denominator = torch.ones((), device=self.device)
        shape_assigned = objective.assigned_shape(len(batch.lengths))
        assigned = torch.full(shape_assigned, -1, device=self.device)
        before = torch.cuda.memory_reserved()
        with aside(self.side), precision:
            for _ in range(3):  # libraries choose their kernels and workspaces
                predicted, tensors, costs = predict()
                loss = objective.loss(predicted, tensors, assigned)
                found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        for parameter, gradient in zip(self.parameters, found, strict=True):
            if gradient is not None and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        shape = costs.shape
        host = torch.empty(costs.numel() + 1, pin_memory=True)
        del predicted, tensors, costs, loss, found
        # What the trials took on the other stream; the largest shape, the first, takes most.
        self.room = max(self.room, torch.cuda.memory_reserved() - before)
        torch.cuda.empty_cache()
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(forward, pool=self.pool), precision:
            predicted, tensors, costs = predict()
            host.copy_(torch.cat([costs.flatten(), self.loss[None]]), non_blocking=True)
        with torch.cuda.graph(backward, pool=self.pool):
            with precision:
                loss = objective.loss(predicted, tensors, assigned) / denominator
            loss.backward()  # type: ignore[no-untyped-call]
            self.loss.copy_(loss.detach())
        return _Recording(inputs, denominator, assigned, host, shape, forward, backward)


class GraphedUpdate:
    """What is done to the weights after each backward pass, with the same tensors every time."""

    def __init__(self, update: Callable[[], None]) -> None:
        self.update = update
        self.graph: torch.cuda.CUDAGraph | None = None
        self.ran = False

    def __call__(self) -> None:
        if not self.ran:  # the optimiser makes its state at the first step
            self.ran = True
            self.update()
            return
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.update()
        self.graph.replay()


def _shape(batch: Batch[np.ndarray]) -> tuple[tuple[int, ...], ...]:
    return tuple(value.shape for value in arrays_of(batch))
