"""The network that denoises beliefs, as a module to train; see `diffusion.beliefs`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from diffusionner.diffusion.beliefs import INPUTS, BeliefWeights

HIDDEN = 64
DROPOUT = 0.1


class BeliefNetwork(nn.Module):
    """Adds a residual to the initializer's logits, zero before training."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(INPUTS, HIDDEN)
        self.dropout = nn.Dropout(DROPOUT)
        self.output = nn.Linear(HIDDEN, 1)
        self.reset()

    def reset(self) -> None:
        """Make the residual zero."""
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, inputs: Tensor, logits: Tensor) -> Tensor:
        """Return logits [D, N, C + 1]. inputs: of `network_inputs`; logits: of the initializer."""
        residual: Tensor = self.output(self.dropout(self.hidden(inputs).relu()))
        return torch.cat([logits[..., :-1] + residual[..., 0], logits[..., -1:]], -1)

    def weights(self) -> BeliefWeights:
        """Return the weights on the host."""
        return BeliefWeights(*(p.detach().float().cpu().numpy() for p in self._in_order()))

    def load_weights(self, weights: BeliefWeights) -> None:
        """Copy weights from the host."""
        for parameter, array in zip(self._in_order(), weights, strict=True):
            parameter.data.copy_(torch.from_numpy(array))

    def _in_order(self) -> tuple[Tensor, ...]:
        """Return the parameters in the order of `BeliefWeights`."""
        return self.hidden.weight, self.hidden.bias, self.output.weight, self.output.bias
