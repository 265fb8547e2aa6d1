"""The optimiser, its learning-rate schedule and the moving average of the weights."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch.optim.swa_utils import AveragedModel

from diffusionner.model.base import Network
from diffusionner.settings import TrainingSettings

# Limits the decay of the average to step / (step + EMA_RAMP): without it, a run of a few hundred
# updates would end with an average of its initial weights.
EMA_RAMP = 4
_LAYER = re.compile(r"\blayers?\.(\d+)\.")  # names of the Transformers library


@dataclass(frozen=True)
class Phases:
    """The two-phase schedule: updates with the encoder frozen, then updates of all weights."""

    frozen: int
    full: int
    warmup: float

    def factor(self, step: int) -> float:
        """Return the fraction of the peak rate: linear warm-up and decay in each phase."""
        in_frozen = step < self.frozen
        length = self.frozen if in_frozen else self.full
        done = step if in_frozen else step - self.frozen
        rising = max(1, round(self.warmup * length))
        if done < rising:
            return (done + 1) / rising
        return max(0.0, (length - done) / max(1, length - rising))


class WeightUpdate:
    """One update of the weights from their gradients: clipping, AdamW, moving average.

    Learning rates and the weight of the average are set beforehand, because the update itself may
    be replayed from a CUDA graph.
    """

    def __init__(
        self, network: Network, settings: TrainingSettings, phases: Phases, recorded: bool
    ) -> None:
        self.settings, self.phases = settings, phases
        self.parameters = list(network.parameters())  # collecting them takes 3 ms
        self.optimizer = build_optimizer(network, settings, recorded)
        self.average = AveragedModel(network) if settings.ema else None
        self.new_weight = torch.zeros((), device=self.parameters[0].device)
        self.zero_in_place = False  # CUDA graphs need the gradients to stay where they are

    def set_schedule(self, step: int) -> None:
        set_rate(self.optimizer, self.phases.factor(step))
        self.new_weight.fill_(1 - min(self.settings.ema, step / (step + EMA_RAMP)))

    def __call__(self) -> None:
        if self.settings.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not self.zero_in_place)
        if self.average is not None:
            averaged: list[torch.Tensor] = list(self.average.module.parameters())
            with torch.no_grad():
                difference = torch._foreach_sub(list(self.parameters), averaged)
                torch._foreach_mul_(difference, self.new_weight)
                torch._foreach_add_(averaged, difference)


def build_optimizer(
    network: Network, settings: TrainingSettings, recorded: bool = False
) -> torch.optim.AdamW:
    """Build AdamW with separate rates for the pretrained encoder; vectors have no weight decay.

    recorded: updates are replayed from a CUDA graph, so the rates must be on the GPU.
    """
    device = next(network.parameters()).device
    pretrained = {
        parameter: settings.encoder_learning_rate * settings.layer_decay**depth
        for parameter, depth in layer_depths(network.encoder.transformer).items()
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


def layer_depths(transformer: torch.nn.Module) -> dict[torch.nn.Parameter, int]:
    """Return the number of layers above each parameter; all layers are above the embeddings."""
    numbers = {name: _LAYER.search(name) for name, _ in transformer.named_parameters()}
    count = 1 + max((int(match[1]) for match in numbers.values() if match), default=-1)

    def depth(name: str) -> int:
        if match := numbers[name]:
            return count - 1 - int(match[1])
        return count if "embedding" in name else 0  # on top, as a pooler

    return {parameter: depth(name) for name, parameter in transformer.named_parameters()}


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        rate = group["peak"] * factor
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
