"""Likelihood of types, also where some types were not annotated.

Shapes: B sentences, M words, C types.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from diffusionner.batching import Batch
from diffusionner.model.initializer import IMPOSSIBLE, valid_spans


def classification_loss(scores: Tensor, batch: Batch[Tensor]) -> Tensor:
    """Return the summed cross-entropy of all spans. scores: [B, M, M, C + 1], no-entity last."""
    words, none = scores.shape[1], scores.shape[-1] - 1
    log_types = scores.log_softmax(-1).flatten(1, 2)  # [B, M * M, C + 1]
    targets = span_types(batch, words, none)  # [B, M * M]
    of_gold = log_types.gather(-1, targets[..., None])[..., 0]
    likelihood = torch.where(
        targets == none, log_no_entity(log_types, batch.annotated_types), of_gold
    )
    inside = torch.arange(words, device=scores.device) < batch.lengths[:, None]
    return -(likelihood * valid_spans(inside).flatten(1)).sum()


def log_no_entity(log_types: Tensor, annotated_types: Tensor) -> Tensor:
    """Return the log-likelihood of a span that is no entity of an annotated type.

    It may be an entity of a type that was not annotated.

    log_types: [B, ..., C + 1], no-entity last; annotated_types: [B, C] → [B, ...]
    """
    excluded = F.pad(annotated_types, (0, 1))
    excluded = excluded.view(len(excluded), *[1] * (log_types.dim() - 2), -1)
    return log_types.masked_fill(excluded, IMPOSSIBLE).logsumexp(-1)


def span_types(batch: Batch[Tensor], words: int, none: int) -> Tensor:
    """Return the type of every span, [B, M * M], `none` for no entity."""
    cells = batch.gold[..., 0] * words + batch.gold[..., 1]
    # One extra cell collects the padding.
    cells = cells.masked_fill(batch.gold_types < 0, words * words)
    types = batch.lengths.new_full((len(cells), words * words + 1), none)
    return types.scatter(1, cells, batch.gold_types.clamp(min=0))[:, :-1]
