"""The training objective: noise the gold, denoise it, match, and score the matched likelihood."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffusionner.batching import Batch
from diffusionner.diffusion import expand, gaussian_noise, mix_keys, uniform_noise
from diffusionner.model import DenoisingNetwork, Prediction
from diffusionner.model.graphs import GraphedNetwork
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
        self.graphed: GraphedNetwork | None = None

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
        spans, t = to_device([noisy.spans, noisy.t], batch.subwords.device)
        if self.graphed is not None and self.graphed.fits(batch):
            prediction = self.graphed(batch, spans, t)
        else:
            prediction = self.network(batch, spans, t, self.freeze_encoder)
        return self._loss(prediction, batch) / denominator

    def _loss(self, prediction: Prediction, batch: Batch[Tensor]) -> Tensor:
        """Negative log-likelihood of the matched gold, summed over all spans.

        P^l and P^r are Bernoulli per word, so the likelihood of a boundary also counts the words
        that are not it; -log P(boundary) alone would be won by pointing everywhere.
        """
        assigned = self._match(prediction, batch)
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

    @torch.no_grad()
    def _match(self, prediction: Prediction, batch: Batch[Tensor]) -> Tensor:
        """The only point of a step at which the host waits for the device."""
        cost = matching_cost(prediction, batch.gold, batch.gold_types).cpu().numpy()
        counts = batch.gold_counts
        if not finite(cost, counts):
            raise NotFinite
        assigned = match(cost, counts, self.training_settings.matches_per_entity)
        return torch.from_numpy(assigned).to(batch.gold.device, non_blocking=True)
