"""The network with nothing that makes it faster: what the rest must match."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from diffusionner.model import DenoisingNetwork
from diffusionner.model.decoder import BoundaryPointer, PreparedSentence


class PlainPointer(BoundaryPointer):
    """A pointer that makes the K × M × h tensor."""

    def __init__(self, pointer: BoundaryPointer) -> None:
        super().__init__(pointer.words.in_features)
        self.load_state_dict(pointer.state_dict())

    def forward(self, words: Tensor, spans: Tensor, sentence: PreparedSentence) -> Tensor:
        fused = F.relu(words[:, None, None] + self.spans(spans)[..., None, :])
        scores: Tensor = self.output(fused).squeeze(-1)
        return scores.masked_fill(~sentence.mask[:, None, None], -1e4)


def plainly(network: DenoisingNetwork) -> DenoisingNetwork:
    """The network, its pointers replaced."""
    decoder = network.decoder
    decoder.left, decoder.right = PlainPointer(decoder.left), PlainPointer(decoder.right)
    return network
