"""The optimiser and its learning-rate schedule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from diffusionner.model.base import Network
from diffusionner.settings import TrainingSettings

# Averaged weights reach back over one in so many of the updates so far at most: without it a run of
# some hundred updates would end as an average of its beginnings.
REACH = 4
_LAYER = re.compile(r"\blayers?\.(\d+)\.")  # as the library names them


@dataclass(frozen=True)
class Phases:
    """The two-phase schedule: updates with the encoder frozen, then updates of everything."""

    frozen: int
    full: int
    warmup: float

    @property
    def total(self) -> int:
        return self.frozen + self.full

    def factor(self, step: int) -> float:
        """Share of the peak rate at an update: linear warm-up and decay, anew in each phase."""
        in_frozen = step < self.frozen
        length = self.frozen if in_frozen else self.full
        done = step if in_frozen else step - self.frozen
        rising = max(1, round(self.warmup * length))
        if done < rising:
            return (done + 1) / rising
        return max(0.0, (length - done) / max(1, length - rising))


def build_optimizer(
    network: Network, settings: TrainingSettings, recorded: bool = False
) -> torch.optim.AdamW:
    """AdamW with separate rates for the pretrained encoder and the rest; no decay on vectors.

    recorded: its steps will be replayed from a CUDA graph, so the rates must lie on the GPU.
    """
    device = next(network.parameters()).device
    pretrained = {
        parameter: settings.encoder_learning_rate * settings.layer_decay**below
        for parameter, below in layers_below_top(network.encoder.transformer).items()
    }
    members: dict[tuple[float, bool], list[torch.nn.Parameter]] = {}
    for parameter in network.parameters():
        rate = pretrained.get(parameter, settings.learning_rate)
        members.setdefault((rate, parameter.dim() > 1), []).append(parameter)
    groups = [
        {
            "params": parameters,
            "weight_decay": settings.weight_decay if decays else 0.0,
            "lr": torch.tensor(rate, device=device) if recorded else rate,
            "peak": rate,
        }
        for (rate, decays), parameters in members.items()
    ]
    return torch.optim.AdamW(groups, fused=True, capturable=recorded)


def layers_below_top(transformer: torch.nn.Module) -> dict[torch.nn.Parameter, int]:
    """How many layers lie above each parameter; above the embeddings lie all of them."""
    numbers = {name: _LAYER.search(name) for name, _ in transformer.named_parameters()}
    count = 1 + max((int(match[1]) for match in numbers.values() if match), default=-1)

    def below(name: str) -> int:
        if match := numbers[name]:
            return count - 1 - int(match[1])
        return count if "embedding" in name else 0  # or on top, as a pooler

    return {parameter: below(name) for name, parameter in transformer.named_parameters()}


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        rate = group["peak"] * factor
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def share_of_new(decay: float, step: int) -> float:
    """Weight of the newest weights in the average; all at the first update (step 0)."""
    return 1 - min(decay, step / (step + REACH))


def average_towards(
    parameters: Sequence[torch.Tensor], average: torch.nn.Module, share: torch.Tensor
) -> None:
    """Move averaged weights by that share of the way to the newest. share: a scalar."""
    averaged: list[torch.Tensor] = list(average.parameters())
    with torch.no_grad():
        apart = torch._foreach_sub(list(parameters), averaged)
        torch._foreach_mul_(apart, share)
        torch._foreach_add_(averaged, apart)
