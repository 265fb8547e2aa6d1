"""The likelihood of types: of every span of a sentence, and where some types were not marked.

Shapes: B sentences, M words, C types.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from diffusionner.batching import Batch
from diffusionner.diffusion.span_counts import LOWEST
from diffusionner.model.biaffine import spans_of


def classification_loss(scores: Tensor, batch: Batch[Tensor]) -> Tensor:
    """Cross-entropy of the type of every span, summed. scores: [B, M, M, C + 1], no-entity last."""
    words, none = scores.shape[1], scores.shape[-1] - 1
    log_types = scores.log_softmax(-1).flatten(1, 2)  # [B, M * M, C + 1]
    targets = span_types(batch, words, none)  # [B, M * M]
    of_gold = log_types.gather(-1, targets[..., None])[..., 0]
    likelihood = torch.where(
        targets == none, log_no_entity(log_types, batch.annotated_types), of_gold
    )
    inside = torch.arange(words, device=scores.device) < batch.lengths[:, None]
    return -(likelihood * spans_of(inside).flatten(1)).sum()


def log_no_entity(log_types: Tensor, annotated_types: Tensor) -> Tensor:
    """Of a span without an entity, which may be one of a type that nobody marked.

    log_types: [B, ..., C + 1], no-entity last; annotated_types: [B, C] → [B, ...]
    """
    marked = F.pad(annotated_types, (0, 1))
    marked = marked.view(len(marked), *[1] * (log_types.dim() - 2), -1)
    return log_types.masked_fill(marked, LOWEST).logsumexp(-1)


def span_types(batch: Batch[Tensor], words: int, none: int) -> Tensor:
    """The type of every span [B, M * M], `none` for those that are no entity."""
    cells = batch.gold[..., 0] * words + batch.gold[..., 1]
    # One cell more than there are spans collects what is padding.
    cells = cells.masked_fill(batch.gold_types < 0, words * words)
    types = batch.lengths.new_full((len(cells), words * words + 1), none)
    return types.scatter(1, cells, batch.gold_types.clamp(min=0))[:, :-1]
