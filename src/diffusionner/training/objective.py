"""The training objective: noise the gold, denoise it, match, and score the matched likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from diffusionner.batching import Batch
from diffusionner.diffusion import (
    expand,
    gaussian_noise,
    mix_keys,
    uniform_noise,
)
from diffusionner.model import DenoisingNetwork, Prediction
from diffusionner.model.base import Network
from diffusionner.model.decoder import PreparedSentence
from diffusionner.model.initializer import Initial, candidates, initializer_loss
from diffusionner.settings import Settings
from diffusionner.training.base import NotFinite, Objective
from diffusionner.training.classification import classification_loss, log_no_entity
from diffusionner.training.matching import finite, match, matched_count, matching_cost, overlap

SHARE_FROM_NOISE = 0.5  # of the sentences whose own draw begins there


@dataclass
class NoisySpans:
    """What the network denoises in a training step."""

    spans: np.ndarray  # [B, D, K, 2] word indices
    t: np.ndarray  # [B, D]; with an initializer two more: of candidates, and of the own draw
    # Where the own draw begins, with an initializer: at x_T or at the candidates.
    beginning: np.ndarray  # [B, K, 2] x_T
    from_noise: np.ndarray  # [B]

    def arrays(self) -> list[np.ndarray]:
        return [self.spans, self.t, self.beginning, self.from_noise]


@dataclass
class Step:
    """What the network makes of them."""

    spans: Tensor  # [B, D, K, 2] what was denoised
    prediction: Prediction
    initial: Initial | None


Predicted = TypeVar("Predicted")


class MatchingObjective(Objective[Predicted]):
    """For predictions that are a set: each gold entity is the target of some of them."""

    def __init__(self, network: Network, settings: Settings) -> None:
        super().__init__(network, settings)
        self.spans = settings.diffusion.spans
        self.training_settings = settings.training

    @property
    def draws(self) -> int:
        """D: sets of spans of a sentence."""
        return 1

    def denominator(self, counts: np.ndarray) -> int:
        """Spans that matching will give an entity to, over all draws."""
        matches = self.training_settings.matches_per_entity
        per_draw = sum(matched_count(int(n), self.spans, matches) for n in counts.tolist())
        return max(1, per_draw * self.draws)

    def assign(self, costs: np.ndarray, counts: np.ndarray, loss: float = 0.0) -> np.ndarray:
        """The gold entity of each span, [B, D, K]; -1 for none."""
        if not (math.isfinite(loss) and finite(costs, counts)):
            raise NotFinite
        return match(costs, counts, self.training_settings.matches_per_entity)

    def assigned_shape(self, sentences: int) -> tuple[int, ...]:
        return sentences, self.draws, self.spans

    def likelihood(self, prediction: Prediction, batch: Batch[Tensor], assigned: Tensor) -> Tensor:
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
        log_types = prediction.types.log_softmax(-1)
        of_gold = log_types.gather(-1, kinds[..., None])[..., 0]
        of_none = log_no_entity(log_types, batch.annotated_types)
        loss = -torch.where(positive, of_gold, of_none).sum()
        words = prediction.left.shape[-1]
        inside = torch.arange(words, device=chosen.device) < batch.lengths[:, None]
        for scores, side in ((prediction.left, 0), (prediction.right, 1)):
            target = batch.gold[:, None, :, side].expand(-1, draws, -1).gather(-1, chosen)
            one_hot = F.one_hot(target, words).to(scores.dtype)
            each = F.binary_cross_entropy_with_logits(scores, one_hot, reduction="none")
            each = each * (positive[..., None] & inside[:, None, None])
            loss = loss + each.sum()
        return loss


class DenoisingObjective(MatchingObjective[Step]):
    network: DenoisingNetwork

    def __init__(self, network: DenoisingNetwork, settings: Settings) -> None:
        super().__init__(network, settings)
        self.diffusion = settings.diffusion
        self.has_initializer = settings.decoder.initializer != "none"
        self.alpha_bar: Tensor
        alpha_bar = torch.from_numpy(network.schedule.alpha_bar)
        self.register_buffer("alpha_bar", alpha_bar, persistent=False)

    @property
    def draws(self) -> int:
        """D: noised gold, then the candidates, then the network's own."""
        return 1 + 2 * self.has_initializer

    def inputs(self, batch: Batch[np.ndarray], keys: np.ndarray) -> list[np.ndarray]:
        return self.noise(batch, keys).arrays()

    def noise(self, batch: Batch[np.ndarray], keys: np.ndarray) -> NoisySpans:
        """The forward process for a batch on the host. keys: [B], unique to sentence and epoch."""
        spans = self.spans
        salts = mix_keys(np.arange(1), 0)
        keys_of_draws = mix_keys(keys[:, None] + salts, 0)  # [B, D]
        coordinates, schedule = self.network.coordinates, self.network.schedule
        x0 = expand(
            batch.gold, batch.gold_counts, batch.lengths, keys_of_draws, spans,
            self.diffusion.expansion, coordinates,
        )  # fmt: skip
        t = _timesteps(mix_keys(keys_of_draws, 3), self.diffusion.timesteps)
        x = schedule.add_noise(x0, t, gaussian_noise(mix_keys(keys_of_draws, 4), spans, 2))
        count = spans if self.has_initializer else 0
        beginning = gaussian_noise(mix_keys(keys, 6), count, 2)
        from_noise = uniform_noise(mix_keys(keys, 7), 1)[..., 0] < SHARE_FROM_NOISE
        if self.has_initializer:
            start = np.full(len(keys), schedule.start)
            first = np.where(from_noise, schedule.timesteps, start)
            later = _timesteps(mix_keys(keys, 5), first)
            t = np.concatenate([t, start[:, None], later[:, None]], 1)
        spans_of_draws = coordinates.decode(x, batch.lengths[:, None])
        return NoisySpans(spans_of_draws, t, beginning, from_noise)

    def predict(self, batch: Batch[Tensor], *inputs: Tensor) -> Step:
        """What the network makes of the noisy spans, and of its own candidates if it has any.

        inputs: the arrays of `NoisySpans`.
        """
        spans, t, beginning, from_noise = inputs
        network = self.network
        sentence = network.encode_in_training(batch, self.freeze_encoder)
        if sentence.initial is not None:
            chosen = candidates(sentence.initial.spans, spans.shape[2])[0]
            x = network.coordinates.encode(chosen, sentence.lengths)
            x = torch.where(from_noise[:, None, None], beginning, x)
            own = self._own_draw(sentence, x, from_noise, t[:, -1])
            spans = torch.cat([spans, chosen[:, None], own[:, None]], 1)
        return Step(spans, network.decoder(sentence, spans, t), sentence.initial)

    @torch.no_grad()
    def _own_draw(
        self, sentence: PreparedSentence, x: Tensor, from_noise: Tensor, later: Tensor
    ) -> Tensor:
        """What a first step makes of x, the beginning, at a later timestep: [B, K, 2] word indices.

        The decoder thus learns from the spans that it meets in the reverse process, its own
        mistakes among them, and not only from noise around what is right.
        """
        network, lengths = self.network, sentence.lengths[:, None]
        schedule = network.schedule
        first = schedule.start + from_noise[:, None] * (schedule.timesteps - schedule.start)
        x = x[:, None]
        x0 = network.restored(network.denoise(sentence, x, first), lengths)
        alpha_bar = self.alpha_bar[first][..., None, None]
        noise = (x - alpha_bar.sqrt() * x0) / (1 - alpha_bar).clamp(min=1e-12).sqrt()
        alpha_bar = self.alpha_bar[later][:, None, None, None]
        x = alpha_bar.sqrt() * x0 + (1 - alpha_bar).sqrt() * noise
        own: Tensor = network.coordinates.decode(x, lengths)[:, 0]
        return own

    @torch.no_grad()
    def costs(self, step: Step, batch: Batch[Tensor]) -> Tensor:
        """[B, D, K, N]"""
        costs = matching_cost(step.prediction, batch.gold, batch.gold_types)
        if weight := self.training_settings.overlap_cost:
            costs = costs - weight * overlap(step.spans, batch.gold)
        return costs

    def loss(self, step: Step, batch: Batch[Tensor], assigned: Tensor) -> Tensor:
        if least := self.training_settings.soft_match_iou:
            best, nearest = overlap(step.spans, batch.gold, batch.gold_types >= 0).max(-1)
            assigned = torch.where((assigned < 0) & (best >= least), nearest, assigned)
        loss = self.likelihood(step.prediction, batch, assigned)
        if step.initial is not None:
            loss = loss + self.spans * self._initial_loss(step.initial, batch)
        return loss

    def _initial_loss(self, initial: Initial, batch: Batch[Tensor]) -> Tensor:
        """Counts as much as the spans of a draw."""
        if initial.types is not None:
            return classification_loss(F.pad(initial.types, (0, 1)), batch)
        whole = batch.annotated_types.all(-1)
        return initializer_loss(initial.spans, batch.gold, batch.gold_types >= 0, whole).sum()


def _timesteps(keys: np.ndarray, most: int | np.ndarray) -> np.ndarray:
    """One of 1..most for each key."""
    return (uniform_noise(keys, 1)[..., 0] * most).astype(np.int64) + 1
