"""Training objectives: noise the gold, denoise, match, and score the matched likelihood.

Shapes: B sentences, D sets of spans for each, K spans, N gold entities, M words, C types.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffusionner.batching import Batch
from diffusionner.diffusion import expand, gaussian_noise, mix_keys, reverse_process, uniform_noise
from diffusionner.model.base import Network
from diffusionner.model.decoder import Prediction, PreparedSentence
from diffusionner.model.initializer import SpanScores, best_spans, span_loss
from diffusionner.model.network import DenoisingNetwork
from diffusionner.model.tensors import to_device
from diffusionner.settings import Settings
from diffusionner.training.matching import finite, match, matched_count, matching_cost, span_iou
from diffusionner.training.type_losses import (
    classification_loss,
    fragment_loss,
    independent_loss,
    type_loss,
)

OWN_DRAWS_FROM_NOISE = 0.5  # share of own draws that start from noise, not from candidates
Predicted = TypeVar("Predicted")


class NotFinite(ArithmeticError):
    """Raised when a prediction or the previous loss is NaN or infinite."""


class Objective(nn.Module, ABC, Generic[Predicted]):
    """Wraps a network so that one forward call returns the loss of a training step, as DDP needs.

    A step is two passes on the device, `predict` and `loss`. Between them the host gets the
    matching `costs` and answers with `assign`; a method without matching has only the two passes.
    Their shapes follow from those of the batch and they never synchronise, so each can be recorded
    as a CUDA graph.
    """

    scores_spans = False  # for every type, which training.consistency needs

    def __init__(self, network: Network, settings: Settings) -> None:
        super().__init__()
        self.network = network
        self.consistency = settings.training.consistency
        self.freeze_encoder = False

    @abstractmethod
    def denominator(self, counts: np.ndarray) -> int:
        """Return the divisor of an update's loss. counts: [B] entities of its sentences."""

    def inputs(self, batch: Batch[np.ndarray], keys: np.ndarray) -> list[np.ndarray]:
        """Return the inputs of a step besides the batch, computed in advance on the host.

        keys: [B], unique to sentence and epoch.
        """
        return []

    def forward(
        self, batch: Batch[Tensor], inputs: Sequence[np.ndarray], denominator: float
    ) -> Tensor:
        """Return the loss. denominator: divisor of the whole update's loss."""
        device = batch.subwords.device
        predicted = self.predict(batch, *to_device(inputs, device))
        # The only point at which the host waits for the device.
        costs = self.costs(predicted, batch).cpu().numpy()
        (assigned,) = to_device([self.assign(costs, batch.gold_counts)], device)
        return self.loss(predicted, batch, assigned) / denominator

    @abstractmethod
    def predict(self, batch: Batch[Tensor], *inputs: Tensor) -> Predicted:
        """Run the network."""

    def costs(self, predicted: Predicted, batch: Batch[Tensor]) -> Tensor:
        """Return the matching costs, which the host needs."""
        return batch.lengths.new_zeros(0).float()

    def assign(self, costs: np.ndarray, counts: np.ndarray, loss: float = 0.0) -> np.ndarray:
        """Assign predictions to gold. counts: [B] gold entities; loss: of the previous step."""
        if not math.isfinite(loss):
            raise NotFinite
        return np.zeros(self.assigned_shape(len(counts)), dtype=np.int64)

    def assigned_shape(self, sentences: int) -> tuple[int, ...]:
        """Return the shape of the result of `assign`."""
        return (sentences, 0)

    @abstractmethod
    def loss(self, predicted: Predicted, batch: Batch[Tensor], assigned: Tensor) -> Tensor:
        """Return the loss, summed over the batch."""


class MatchingObjective(Objective[Predicted]):
    """Objective for predictions that are a set: each gold entity is the target of some of them."""

    def __init__(self, network: Network, settings: Settings) -> None:
        super().__init__(network, settings)
        self.spans = settings.diffusion.spans
        self.training_settings = settings.training

    @property
    def draws(self) -> int:
        """D, the number of sets of spans for each sentence."""
        return 1

    def denominator(self, counts: np.ndarray) -> int:
        """Return the number of spans that will be matched, over all draws."""
        matches = self.training_settings.matches_per_entity
        per_draw = sum(matched_count(int(n), self.spans, matches) for n in counts.tolist())
        return max(1, per_draw * self.draws)

    def assign(self, costs: np.ndarray, counts: np.ndarray, loss: float = 0.0) -> np.ndarray:
        """Return the gold entity of each span, [B, D, K]; -1 for none."""
        if not (math.isfinite(loss) and finite(costs, counts)):
            raise NotFinite
        return match(costs, counts, self.training_settings.matches_per_entity)

    def assigned_shape(self, sentences: int) -> tuple[int, ...]:
        return sentences, self.draws, self.spans

    def likelihood(self, prediction: Prediction, batch: Batch[Tensor], assigned: Tensor) -> Tensor:
        """Return the negative log-likelihood of the matched gold, summed over all spans.

        P^l and P^r are Bernoulli per word, so the likelihood of a boundary also counts the words
        that are not the boundary; pointing everywhere would minimise -log P(boundary) alone.
        """
        positive = assigned >= 0
        chosen = assigned.clamp(min=0)
        draws = assigned.shape[1]
        loss = type_loss(prediction, batch, assigned)
        words = prediction.left.shape[-1]
        inside = torch.arange(words, device=chosen.device) < batch.lengths[:, None]
        for scores, side in ((prediction.left, 0), (prediction.right, 1)):
            target = batch.gold[:, None, :, side].expand(-1, draws, -1).gather(-1, chosen)
            one_hot = F.one_hot(target, words).to(scores.dtype)
            each = F.binary_cross_entropy_with_logits(scores, one_hot, reduction="none")
            each = each * (positive[..., None] & inside[:, None, None])
            loss = loss + each.sum()
        return loss


class NoisySpans(NamedTuple):
    """Spans that the network denoises in a training step, with their timesteps."""

    spans: np.ndarray  # [B, 1, K, 2] word indices of noised gold
    t: np.ndarray  # [B, 1]; with an initializer [B, 3]: also of candidates and own draw
    # With an initializer, the own draw starts from noise x_T or from the candidates.
    start_noise: np.ndarray  # [B, K, 2] x_T
    from_noise: np.ndarray  # [B]


@dataclass
class StepOutput:
    """Predictions of a training step."""

    prediction: Prediction
    initial: SpanScores | None
    fragments: Tensor | None = None  # [B, M, M, C + 2], if discontinuous entities are learned


class DenoisingObjective(MatchingObjective[StepOutput]):
    """Denoises noised gold and, with an initializer, its candidates and the network's own draw."""

    network: DenoisingNetwork

    def __init__(self, network: DenoisingNetwork, settings: Settings) -> None:
        super().__init__(network, settings)
        self.diffusion = settings.diffusion
        self.has_initializer = settings.decoder.initializer != "none"
        self.scores_spans = settings.decoder.initializer == "types"
        self.alpha_bar: Tensor
        alpha_bar = torch.from_numpy(network.schedule.alpha_bar)
        self.register_buffer("alpha_bar", alpha_bar, persistent=False)

    @property
    def draws(self) -> int:
        """D: noised gold and, with an initializer, the candidates and the network's own draw."""
        return 3 if self.has_initializer else 1

    def inputs(self, batch: Batch[np.ndarray], keys: np.ndarray) -> list[np.ndarray]:
        return list(self.noise(batch, keys))

    def noise(self, batch: Batch[np.ndarray], keys: np.ndarray) -> NoisySpans:
        """Run the forward process on the host. keys: [B], unique to sentence and epoch."""
        gold_keys = mix_keys(keys[:, None] + mix_keys(np.zeros(1), 0), 0)  # [B, 1], noise of 0.1
        coordinates, schedule = self.network.coordinates, self.network.schedule
        x0 = expand(
            batch.gold, batch.gold_counts, batch.lengths, gold_keys, self.spans,
            self.diffusion.expansion, coordinates,
        )  # fmt: skip
        t = _timesteps(mix_keys(gold_keys, 3), self.diffusion.timesteps)
        x = schedule.add_noise(x0, t, gaussian_noise(mix_keys(gold_keys, 4), self.spans, 2))
        count = self.spans if self.has_initializer else 0
        start_noise = gaussian_noise(mix_keys(keys, 6), count, 2)
        from_noise = uniform_noise(mix_keys(keys, 7), 1)[..., 0] < OWN_DRAWS_FROM_NOISE
        if self.has_initializer:
            start = np.full(len(keys), schedule.candidate_start)
            first = np.where(from_noise, schedule.timesteps, start)
            later = _timesteps(mix_keys(keys, 5), first)
            t = np.concatenate([t, start[:, None], later[:, None]], 1)
        spans = coordinates.decode(x, batch.lengths[:, None])
        return NoisySpans(spans, t, start_noise, from_noise)

    def predict(self, batch: Batch[Tensor], *inputs: Tensor) -> StepOutput:
        """Denoise the noisy spans and, with an initializer, candidates and the own draw.

        inputs: those of `NoisySpans`.
        """
        spans, t, start_noise, from_noise = inputs
        sentence = self.network.prepare(batch, self.freeze_encoder)
        if sentence.initial is not None:
            candidates = best_spans(sentence.initial.spans, spans.shape[2])[0]
            x = self.network.coordinates.encode(candidates, sentence.lengths)
            x = torch.where(from_noise[:, None, None], start_noise, x)
            own = self._own_draw(sentence, x[:, None], from_noise[:, None], t[:, -1:])
            spans = torch.cat([spans, candidates[:, None], own], 1)
        prediction = self.network.decoder(sentence, spans, t)
        return StepOutput(prediction, sentence.initial, sentence.fragments)

    @torch.no_grad()
    def _own_draw(
        self, sentence: PreparedSentence, x: Tensor, from_noise: Tensor, later: Tensor
    ) -> Tensor:
        """Run one reverse step from x to a later timestep: [B, 1, K, 2] word indices.

        The decoder thus learns from the spans it meets in the reverse process, including its own
        mistakes, and not only from noise around the gold. from_noise, later: [B, 1].
        """
        schedule = self.network.schedule
        start = schedule.candidate_start
        first = start + from_noise * (schedule.timesteps - start)
        steps = reverse_process(
            lambda x, t: self.network.denoise(sentence, x, t), x, self.alpha_bar, [first, later]
        )
        own: Tensor = self.network.coordinates.decode(next(steps).next_x, sentence.lengths[:, None])
        return own

    @torch.no_grad()
    def costs(self, step: StepOutput, batch: Batch[Tensor]) -> Tensor:
        """[B, D, K, N]"""
        costs = matching_cost(step.prediction, batch.gold, batch.gold_types)
        if weight := self.training_settings.overlap_cost:
            costs = costs - weight * span_iou(step.prediction.spans, batch.gold)
        return costs

    def loss(self, step: StepOutput, batch: Batch[Tensor], assigned: Tensor) -> Tensor:
        if threshold := self.training_settings.soft_match_iou:
            iou = span_iou(step.prediction.spans, batch.gold, batch.gold_types >= 0)
            iou, nearest = iou.max(-1)
            assigned = torch.where((assigned < 0) & (iou >= threshold), nearest, assigned)
        loss = self.likelihood(step.prediction, batch, assigned)
        if step.initial is not None:
            # The initializer counts as much as the K spans of one draw.
            loss = loss + self.spans * self._initial_loss(step.initial, batch)
        if step.fragments is not None:
            loss = loss + self.spans * fragment_loss(step.fragments, batch, self.consistency)
        return loss

    def _initial_loss(self, initial: SpanScores, batch: Batch[Tensor]) -> Tensor:
        if initial.types is not None:
            if not initial.exclusive:
                return independent_loss(initial.types, batch, self.consistency)
            return classification_loss(F.pad(initial.types, (0, 1)), batch, self.consistency)
        complete = batch.annotated_types.all(-1)
        return span_loss(initial.spans, batch.gold, batch.gold_types >= 0, complete).sum()


def _timesteps(keys: np.ndarray, highest: int | np.ndarray) -> np.ndarray:
    """Draw a timestep from 1 to `highest` for each key."""
    return (uniform_noise(keys, 1)[..., 0] * highest).astype(np.int64) + 1
