"""The training objective: noise the gold, denoise it, match, and score the matched likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffusionner.batching import Batch
from diffusionner.diffusion import expand, gaussian_noise, mix_keys, uniform_noise
from diffusionner.model import DenoisingNetwork, Prediction
from diffusionner.model.tensors import to_device
from diffusionner.settings import Settings
from diffusionner.training.matching import finite, match, matched_count, matching_cost


class NotFinite(ArithmeticError):
    """A prediction or the previous loss is NaN or infinite."""


@dataclass
class NoisySpans:
    """What the network denoises in a training step."""

    spans: np.ndarray  # [B, D, K, 2] word indices
    t: np.ndarray  # [B, D]


class DenoisingObjective(nn.Module):
    """Wraps the network so that one forward call is one training step's loss (what DDP needs)."""

    def __init__(self, network: DenoisingNetwork, settings: Settings) -> None:
        super().__init__()
        self.network = network
        self.diffusion = settings.diffusion
        self.training_settings = settings.training
        self.freeze_encoder = False

    def matched_spans(self, counts: np.ndarray) -> int:
        """Spans that matching will give an entity to, over all draws: the loss's denominator."""
        training = self.training_settings
        per_draw = sum(
            matched_count(int(n), self.diffusion.spans, training.matches_per_entity)
            for n in counts.tolist()
        )
        return per_draw * training.draws

    def noise(self, batch: Batch[np.ndarray], keys: np.ndarray) -> NoisySpans:
        """The forward process for a batch on the host. keys: [B], unique to sentence and epoch."""
        draws, spans = self.training_settings.draws, self.diffusion.spans
        salts = mix_keys(np.arange(draws), 0)
        keys = mix_keys(keys[:, None] + salts, 0)  # [B, D]
        coordinates, schedule = self.network.coordinates, self.network.schedule
        x0 = expand(
            batch.gold, batch.gold_counts, batch.lengths, keys, spans,
            self.diffusion.expansion, coordinates,
        )  # fmt: skip
        uniform = uniform_noise(mix_keys(keys, 3), 1)[..., 0]
        t = (uniform * self.diffusion.timesteps).astype(np.int64) + 1  # 1..T
        x = schedule.add_noise(x0, t, gaussian_noise(mix_keys(keys, 4), spans, 2))
        return NoisySpans(coordinates.decode(x, batch.lengths[:, None]), t)

    def forward(self, batch: Batch[Tensor], noisy: NoisySpans, denominator: float) -> Tensor:
        """The loss; the denominator is that of the whole update."""
        device = batch.subwords.device
        spans, t = to_device([noisy.spans, noisy.t], device)
        prediction = self.predict(batch, spans, t)
        # The only point of a step at which the host waits for the device.
        costs = self.costs(prediction, batch).cpu().numpy()
        (assigned,) = to_device([self.assign(costs, batch.gold_counts)], device)
        return self.loss(prediction, batch, assigned) / denominator

    def predict(self, batch: Batch[Tensor], spans: Tensor, t: Tensor) -> Prediction:
        prediction: Prediction = self.network(batch, spans, t, self.freeze_encoder)
        return prediction

    @torch.no_grad()
    def costs(self, prediction: Prediction, batch: Batch[Tensor]) -> Tensor:
        """[B, D, K, N]"""
        return matching_cost(prediction, batch.gold, batch.gold_types)

    def assign(self, costs: np.ndarray, counts: np.ndarray, loss: float = 0.0) -> np.ndarray:
        """The gold entity of each span, [B, D, K]; -1 for none. loss: that of the step before."""
        if not (math.isfinite(loss) and finite(costs, counts)):
            raise NotFinite
        return match(costs, counts, self.training_settings.matches_per_entity)

    def loss(self, prediction: Prediction, batch: Batch[Tensor], assigned: Tensor) -> Tensor:
        """Negative log-likelihood of the matched gold, summed over all spans.

        P^l and P^r are Bernoulli per word, so the likelihood of a boundary also counts the words
        that are not it; -log P(boundary) alone would be won by pointing everywhere.
        """
        positive = assigned >= 0
        chosen = assigned.clamp(min=0)
        draws = assigned.shape[1]
        none = prediction.types.shape[-1] - 1
        kinds = batch.gold_types[:, None].expand(-1, draws, -1).gather(-1, chosen)
        kinds = kinds.masked_fill(~positive, none)
        likelihood = F.cross_entropy(
            prediction.types.flatten(0, 2), kinds.flatten(), reduction="none"
        )
        weight = torch.where(positive, 1.0, self.training_settings.no_entity_weight)
        loss = (likelihood.view_as(weight) * weight).sum()
        words = prediction.left.shape[-1]
        inside = torch.arange(words, device=chosen.device) < batch.lengths[:, None]
        for scores, side in ((prediction.left, 0), (prediction.right, 1)):
            target = batch.gold[:, None, :, side].expand(-1, draws, -1).gather(-1, chosen)
            one_hot = F.one_hot(target, words).to(scores.dtype)
            each = F.binary_cross_entropy_with_logits(scores, one_hot, reduction="none")
            each = each * (positive[..., None] & inside[:, None, None])
            loss = loss + each.sum()
        return loss
