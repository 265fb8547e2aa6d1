"""Optimal matching π̂ between the K predictions and the gold entities (paper, appendix A)."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from diffusionner.model.decoder import Prediction
from diffusionner.model.initializer import type_probabilities


def matching_cost(prediction: Prediction, gold: Tensor, gold_types: Tensor) -> Tensor:
    """Return minus the sum of the three probabilities of each gold entity under each prediction.

    gold: [B, N, 2]; gold_types: [B, N], -1 for padding → [B, D, K, N]
    """
    _, draws, spans, _ = prediction.left.shape

    def of(probabilities: Tensor, index: Tensor) -> Tensor:
        return probabilities.gather(-1, index[:, None, None].expand(-1, draws, spans, -1))

    return -(
        of(prediction.left.sigmoid(), gold[..., 0])
        + of(prediction.right.sigmoid(), gold[..., 1])
        + of(type_probabilities(prediction.types, prediction.exclusive), gold_types.clamp(min=0))
    )


def span_iou(spans: Tensor, gold: Tensor, present: Tensor | None = None) -> Tensor:
    """Return the intersection over union of spans and gold entities, in words: [B, D, K, N].

    spans: [B, D, K, 2], gold: [B, N, 2], both inclusive; present: [B, N] false for padding.
    """
    left, right = spans[..., None, 0], spans[..., None, 1]
    gold = gold[:, None, None]
    shared = torch.minimum(right, gold[..., 1]) - torch.maximum(left, gold[..., 0]) + 1
    shared = shared.clamp(min=0)
    union = (right - left + 1) + (gold[..., 1] - gold[..., 0] + 1) - shared
    ratio = shared / union
    return ratio if present is None else ratio * present[:, None, None]


def slots_per_entity(entities: int, spans: int, matches: int) -> np.ndarray:
    """Return how many noisy spans each entity is matched to: `matches`, or as many as fit into K.

    matches = 0 distributes all K. With more entities than spans, K entities are matched to one
    each.
    """
    if entities >= spans:
        return np.ones(entities, dtype=np.int64)
    share = spans // entities
    if matches:
        return np.full(entities, min(matches, share), dtype=np.int64)
    return share + (np.arange(entities) < spans % entities).astype(np.int64)


def matched_count(entities: int, spans: int, matches: int) -> int:
    """Return how many noisy spans of a sentence will be matched."""
    return min(spans, int(slots_per_entity(entities, spans, matches).sum())) if entities else 0


def match(cost: np.ndarray, counts: np.ndarray, matches: int) -> np.ndarray:
    """Return the optimal assignment. cost: [B, D, K, N]; counts: [B] gold entities.

    The result [B, D, K] is the index of the gold entity of each span, -1 for no-entity. An entity
    that takes several spans is several columns of the assignment problem.
    """
    batch, draws, spans, _ = cost.shape
    assigned = np.full((batch, draws, spans), -1, dtype=np.int64)
    lone = counts == 1  # the common case: a single entity takes the cheapest spans
    taken = int(slots_per_entity(1, spans, matches)[0])
    cheapest = cost[lone, :, :, 0].argsort(-1, kind="stable")[..., :taken]
    of_lone = assigned[lone]
    np.put_along_axis(of_lone, cheapest, 0, -1)
    assigned[lone] = of_lone
    for i, entities in enumerate(counts.tolist()):
        if entities < 2:
            continue
        columns = np.repeat(np.arange(entities), slots_per_entity(entities, spans, matches))
        for d in range(draws):
            rows, chosen = linear_sum_assignment(cost[i, d][:, columns])
            assigned[i, d, rows] = columns[chosen]
    return assigned


def finite(cost: np.ndarray, counts: np.ndarray) -> bool:
    """Return whether all costs are finite; no assignment exists otherwise."""
    present = np.arange(cost.shape[-1]) < counts[:, None]
    return bool(np.isfinite(np.where(present[:, None, None], cost, 0.0)).all())
