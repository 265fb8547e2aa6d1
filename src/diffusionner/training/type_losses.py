"""Losses of the types of spans.

Shapes: B sentences, D sets of spans for each, K spans, N gold entities, M words, C types.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from diffusionner.batching import Batch
from diffusionner.model.decoder import Prediction
from diffusionner.model.fragments import PAIRS
from diffusionner.model.initializer import IMPOSSIBLE, valid_spans


def type_loss(prediction: Prediction, batch: Batch[Tensor], assigned: Tensor) -> Tensor:
    """Return the negative log-likelihood of the types of denoised spans, summed.

    assigned: [B, D, K] gold entity of each span, -1 for none.
    """
    positive, chosen = assigned >= 0, assigned.clamp(min=0)
    draws = assigned.shape[1]
    if not prediction.exclusive:
        logits, words = prediction.types[..., :-1], prediction.left.shape[-1]
        cells = (batch.gold[..., 0] * words + batch.gold[..., 1])[:, None].expand(-1, draws, -1)
        cells = cells.gather(-1, chosen).flatten(1)[..., None].expand(-1, -1, logits.shape[-1])
        targets = span_targets(batch, words).gather(1, cells).view_as(logits)
        each = F.binary_cross_entropy_with_logits(
            logits, targets * positive[..., None], reduction="none"
        )
        return (each * batch.annotated_types[:, None, None]).sum()
    types = batch.gold_types[:, None].expand(-1, draws, -1).gather(-1, chosen)
    types = types.masked_fill(~positive, prediction.types.shape[-1] - 1)
    log_types = prediction.types.log_softmax(-1)
    of_gold = log_types.gather(-1, types[..., None])[..., 0]
    of_none = log_no_entity(log_types, batch.annotated_types)
    return -torch.where(positive, of_gold, of_none).sum()


def independent_loss(scores: Tensor, batch: Batch[Tensor], consistency: float = 0.0) -> Tensor:
    """Return the summed binary cross-entropy of all spans and types. scores: [B, M, M, C].

    Types that were not annotated in a sentence do not count. consistency: as below.
    """
    words = scores.shape[1]
    logits, targets = scores.flatten(1, 2), span_targets(batch, words)
    inside = torch.arange(words, device=scores.device) < batch.lengths[:, None]
    counted = valid_spans(inside).flatten(1)[..., None] & batch.annotated_types[:, None]
    return _binary_loss(logits, targets, counted, consistency)


def _binary_loss(logits: Tensor, targets: Tensor, counted: Tensor, consistency: float) -> Tensor:
    """Return the summed binary cross-entropy of what counts, and the weighted divergence."""
    each = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    loss = (each * counted).sum()
    if consistency:
        first, second = logits.chunk(2)
        divergence = (first.sigmoid() - second.sigmoid()) * (first - second)
        loss = loss + consistency * (divergence * counted.chunk(2)[0]).sum()
    return loss


def fragment_loss(scores: Tensor, batch: Batch[Tensor], consistency: float = 0.0) -> Tensor:
    """Return the summed binary cross-entropy of the parts of discontinuous entities.

    scores: [B, M, M, C + 2], those of `model.fragments.FragmentScores`. Envelopes of types that
    were not annotated do not count, nor does what is no fragment or jump unless all types were.
    consistency: as below.
    """
    count, words, _, grids = scores.shape
    targets = torch.zeros(count, words * words * grids + 1, device=scores.device)
    if batch.gap_cells is not None:
        grid, first, last = batch.gap_cells.unbind(-1)
        cells = (first * words + last) * grids + grid
        targets = targets.scatter(1, cells.masked_fill(grid < 0, words * words * grids), 1.0)
    targets = targets[:, :-1].view_as(scores)
    complete = batch.annotated_types.all(-1, keepdim=True).expand(-1, PAIRS)
    if batch.labels is not None:  # what is asked for does not change what a fragment is
        complete = torch.ones_like(complete)
    annotated = torch.cat([batch.annotated_types, complete], -1)[:, None, None]
    counted = (annotated | (targets > 0)) & (scores > IMPOSSIBLE / 2)
    return _binary_loss(scores, targets, counted, consistency)


def span_targets(batch: Batch[Tensor], words: int) -> Tensor:
    """Return 1 for each span and type that are an entity, else 0: [B, M * M, C]."""
    types = batch.annotated_types.shape[1]
    cells = (batch.gold[..., 0] * words + batch.gold[..., 1]) * types + batch.gold_types
    size = words * words * types
    cells = cells.masked_fill(batch.gold_types < 0, size)  # one extra cell collects the padding
    targets = torch.zeros(len(cells), size + 1, device=cells.device).scatter(1, cells, 1.0)
    return targets[:, :-1].view(len(cells), words * words, types)


def classification_loss(scores: Tensor, batch: Batch[Tensor], consistency: float = 0.0) -> Tensor:
    """Return the summed cross-entropy of all spans. scores: [B, M, M, C + 1], no-entity last.

    consistency: weight of the divergence between the two halves of a doubled batch, which differ in
    dropout (R-Drop, Liang et al., 2021).
    """
    words, none = scores.shape[1], scores.shape[-1] - 1
    log_types = scores.log_softmax(-1).flatten(1, 2)  # [B, M * M, C + 1]
    targets = span_types(batch, words, none)  # [B, M * M]
    of_gold = log_types.gather(-1, targets[..., None])[..., 0]
    likelihood = torch.where(
        targets == none, log_no_entity(log_types, batch.annotated_types), of_gold
    )
    inside = torch.arange(words, device=scores.device) < batch.lengths[:, None]
    valid = valid_spans(inside).flatten(1)
    loss = -(likelihood * valid).sum()
    if consistency:
        first, second = log_types.chunk(2)
        divergence = ((first.exp() - second.exp()) * (first - second)).sum(-1)
        loss = loss + consistency * (divergence * valid.chunk(2)[0]).sum()
    return loss


def log_no_entity(log_types: Tensor, annotated_types: Tensor) -> Tensor:
    """Return the log-likelihood that a span is not an entity of an annotated type.

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
