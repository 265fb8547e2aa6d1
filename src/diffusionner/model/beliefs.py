"""The network that denoises beliefs, as a module to train; see `diffusion.beliefs`."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from diffusionner.diffusion.beliefs import BeliefWeights, input_size

HIDDEN = 192
DROPOUT = 0.2


class BeliefNetwork(nn.Module):
    """Adds a residual to the initializer's logits, zero before training."""

    def __init__(self, types: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(input_size(types), HIDDEN)
        self.dropout = nn.Dropout(DROPOUT)
        self.output = nn.Linear(HIDDEN, types + 1)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, inputs: Tensor, logits: Tensor) -> Tensor:
        """Return logits [D, N, C + 1]. inputs: of `network_inputs`; logits: of the initializer."""
        residual: Tensor = self.output(self.dropout(F.relu(self.hidden(inputs))))
        return logits + residual

    def weights(self) -> BeliefWeights:
        """Return the weights on the host."""
        parameters = self.hidden.weight, self.hidden.bias, self.output.weight, self.output.bias
        return BeliefWeights(*(p.detach().float().cpu().numpy() for p in parameters))
