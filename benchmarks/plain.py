"""The network without optimisations, which the fast path must match."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from diffusionner.model.base import Network
from diffusionner.model.pointer import BoundaryPointer


class PlainPointer(BoundaryPointer):
    """A pointer that computes the K × M × h tensor."""

    def __init__(self, pointer: BoundaryPointer) -> None:
        super().__init__(pointer.words.in_features)
        self.load_state_dict(pointer.state_dict())

    def forward(self, words: Tensor, spans: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
        fused = F.relu(words[:, None, None] + self.spans(spans)[..., None, :])
        scores: Tensor = self.output(fused).squeeze(-1)
        return scores.masked_fill(~mask[:, None, None], -1e4)


def plainly(network: Network) -> Network:
    """Replace the pointers of a network."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, BoundaryPointer):
                setattr(module, name, PlainPointer(child))
    return network
