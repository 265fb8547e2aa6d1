"""Scores of the parts of discontinuous entities.

"Muscle pain and stiffness" has the entity "Muscle … stiffness": two fragments and a gap. Such an
entity is a path over three kinds of pairs of words (left, right):

* its *envelope*, from the first to the last word, which has the type;
* its *fragments*, from the first to the last word of each;
* its *jumps*, from the last word of a fragment to the first of the next.

Each pair is scored on its own for the whole sentence, as the initializer scores spans.
`inference.fragments` joins likely pairs to entities. Discontinuous entities are rare, so
contiguous ones are learned as well: each is an envelope with a single fragment and no jump.

Shapes: B sentences, M words, h hidden size, C types.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from diffusionner.model.initializer import IMPOSSIBLE, Biaffine, SpanTypeProduct, valid_spans

PAIRS = 2  # grids after those of the types: fragments, then jumps
UNLIKELY = -6.0  # start of the bias: few pairs of words are part of an entity


class FragmentScores(nn.Module):
    """Scores every pair of words as envelope of each type, as fragment and as jump."""

    # Prefixes of the weights that belong to the types.
    type_weights = tuple(f"envelopes.{name}" for name in Biaffine.type_weights)

    def __init__(self, size: int, types: int, dropout: float, type_size: int | None = None) -> None:
        """type_size: size of the vectors of types, if they are given as vectors."""
        super().__init__()
        self.envelopes: Biaffine | SpanTypeProduct
        if type_size is None:
            self.envelopes = Biaffine(size, types, dropout)
            nn.init.constant_(self.envelopes.first_weight.bias, UNLIKELY)
        else:
            self.envelopes = SpanTypeProduct(size, type_size, dropout)
        self.pairs = Biaffine(size, PAIRS, dropout)
        nn.init.constant_(self.pairs.first_weight.bias, UNLIKELY)

    def forward(self, states: Tensor, mask: Tensor, vectors: Tensor | None = None) -> Tensor:
        """H_S [B, M, h], mask [B, M], vectors of types [B, C, type size] → logits [B, M, M, C + 2]

        The last two are those of fragments and of jumps.
        """
        if isinstance(self.envelopes, SpanTypeProduct):
            envelopes = self.envelopes(states, vectors)
        else:
            envelopes = self.envelopes(states)
        scores = torch.cat([envelopes, self.pairs(states)], -1)
        return scores.masked_fill(~possible_pairs(mask, envelopes.shape[-1]), IMPOSSIBLE)


def possible_pairs(mask: Tensor, types: int) -> Tensor:
    """Return which pairs of words can be an envelope, a fragment and a jump: [B, M, M, C + 2].

    Envelopes and jumps have at least one word between theirs.
    """
    spans = valid_spans(mask)
    apart = spans & torch.ones_like(spans[0]).triu(2)
    envelopes = apart[..., None].expand(-1, -1, -1, types)
    return torch.cat([envelopes, spans[..., None], apart[..., None]], -1)
