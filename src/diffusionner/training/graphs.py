"""CUDA graphs of a training step, on one GPU.

Launching the kernels of a small model takes longer than running them. Recorded once per shape of
the inputs, everything up to the matching is one launch, everything from there to the gradients
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
from diffusionner.inference.gpu.recording import CudaRecorder, Replay, on_stream
from diffusionner.model.tensors import device_arrays, pack, unpack, with_tensors
from diffusionner.training.objective import Objective


@dataclass
class _StepRecording:
    """Two passes over fixed memory."""

    inputs: Tensor  # all integers of a batch, concatenated
    denominator: Tensor
    assigned: Tensor
    costs: Tensor  # on the host; the last number is the loss of the previous step
    costs_shape: torch.Size
    forward: Replay
    backward: Replay


class GraphedStep:
    """Computes loss and gradients of a batch; records each shape of a full batch on first sight.

    Recordings share their memory, since no other runs between the two passes of one. They add to
    the gradients in place: those must be zeroed, not dropped.
    """

    # Subwords, words, entities, characters and the words' own subwords of a batch are padded to
    # these, to have few shapes.
    multiples = (32, 16, 16, 32, 64)

    def __init__(self, objective: Objective[Any], batch_size: int) -> None:
        self.objective = objective
        self.parameters = [p for p in objective.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.batch_size = batch_size
        self.recorder = CudaRecorder(torch.cuda.Stream())  # type: ignore[no-untyped-call]
        self.recorded: dict[tuple[tuple[int, ...], ...], _StepRecording] = {}
        self.loss = torch.zeros((), device=self.device)
        self.memory_needed = 0  # bytes that recording takes temporarily, at most

    def can_replay(self, batch: Batch[np.ndarray]) -> bool:
        """Return False for the smaller last batch of an epoch, and if memory is short."""
        if len(batch.lengths) != self.batch_size:
            return False
        if _shape(batch) in self.recorded:
            return True
        free, _ = torch.cuda.mem_get_info()
        return free > self.memory_needed

    def __call__(
        self, batch: Batch[np.ndarray], given: Sequence[np.ndarray], denominator: float
    ) -> Tensor:
        """Return the loss; raise NotFinite if a prediction or the previous loss is not finite."""
        shape = _shape(batch)
        if shape not in self.recorded:
            # A resumed run records at other times: its dropout must not depend on that.
            with torch.random.fork_rng(devices=[self.device]):
                self.recorded[shape] = self._record(batch, given)
        recording = self.recorded[shape]
        values = [*device_arrays(batch), *given]
        recording.inputs.copy_(pack(values, self.device), non_blocking=True)
        recording.denominator.fill_(denominator)
        recording.forward()
        torch.cuda.current_stream().synchronize()
        on_host = recording.costs.numpy()
        costs = on_host[:-1].reshape(recording.costs_shape)
        assigned = self.objective.assign(costs, batch.gold_counts, float(on_host[-1]))
        numbers = pack([assigned], self.device).view(assigned.shape)
        recording.assigned.copy_(numbers, non_blocking=True)
        recording.backward()
        return self.loss.clone()

    def _record(self, batch: Batch[np.ndarray], given: Sequence[np.ndarray]) -> _StepRecording:
        # Recording happens on a stream of its own; autograd then waits where it must.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        precision = torch.autocast(
            "cuda",
            dtype=torch.get_autocast_dtype("cuda"),
            enabled=torch.is_autocast_enabled("cuda"),
            cache_enabled=False,  # a cached weight would be recorded once and never updated
        )
        objective = self.objective
        values = [*device_arrays(batch), *given]
        inputs = pack(values, self.device).to(self.device)
        denominator = torch.ones((), device=self.device)
        shape_assigned = objective.assigned_shape(len(batch.lengths))
        assigned = torch.full(shape_assigned, -1, device=self.device)

        def predict() -> tuple[Any, Batch[Tensor], Tensor]:
            parts = unpack(inputs, values)
            own = len(values) - len(given)
            tensors = with_tensors(batch, parts[:own])
            predicted = objective.predict(tensors, *parts[own:])
            return predicted, tensors, objective.costs(predicted, tensors)

        before = torch.cuda.memory_reserved()
        with on_stream(self.recorder.stream), precision:
            for _ in range(3):  # libraries choose their kernels and workspaces
                predicted, tensors, costs = predict()
                loss = objective.loss(predicted, tensors, assigned)
                gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            if gradient is not None and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        shape = costs.shape
        host = torch.empty(costs.numel() + 1, pin_memory=True)
        del predicted, tensors, costs, loss, gradients
        torch.cuda.synchronize()
        # Memory of the trials on the other stream; the first shape is the largest.
        self.memory_needed = max(self.memory_needed, torch.cuda.memory_reserved() - before)
        torch.cuda.empty_cache()

        def forward() -> tuple[Any, Batch[Tensor]]:
            with precision:
                predicted, tensors, costs = predict()
                host.copy_(torch.cat([costs.flatten(), self.loss[None]]), non_blocking=True)
            return predicted, tensors

        (predicted, tensors), replay_forward = self.recorder.capture(forward)

        def backward() -> None:
            with precision:
                loss = objective.loss(predicted, tensors, assigned) / denominator
            loss.backward()  # type: ignore[no-untyped-call]
            self.loss.copy_(loss.detach())

        _, replay_backward = self.recorder.capture(backward)
        return _StepRecording(
            inputs, denominator, assigned, host, shape, replay_forward, replay_backward
        )


class GraphedUpdate:
    """Updates the weights after a backward pass, with the same tensors every time."""

    def __init__(self, update: Callable[[], None]) -> None:
        self.update = update
        self.recorder = CudaRecorder(torch.cuda.Stream())  # type: ignore[no-untyped-call]
        self.replay: Replay | None = None
        self.ran = False

    def __call__(self) -> None:
        if not self.ran:  # the optimiser creates its state at the first step
            self.ran = True
            self.update()
            return
        if self.replay is None:
            _, self.replay = self.recorder.capture(self.update)
        self.replay()


def _shape(batch: Batch[np.ndarray]) -> tuple[tuple[int, ...], ...]:
    return tuple(array.shape for array in device_arrays(batch))
