"""The whole denoising network and the reverse process that runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diffusionner.batching import Batch
from diffusionner.diffusion import (
    Coordinates,
    Schedule,
    reverse_process,
    span_noise,
    timestep_sequence,
)
from diffusionner.diffusion.span_counts import AUTO, likely
from diffusionner.model.base import Network
from diffusionner.model.biaffine import Biaffine
from diffusionner.model.decoder import (
    CLASSIFIER,
    EntityDecoder,
    Prediction,
    PreparedSentence,
    check_heads,
    read_out,
)
from diffusionner.model.encoder import SentenceEncoding, Transformer
from diffusionner.model.initializer import Initial, candidates
from diffusionner.model.tensors import to_device
from diffusionner.settings import InferenceSettings, Settings


@dataclass
class Beginning:
    """What all steps of a reverse process share, and where it starts."""

    sentence: PreparedSentence
    x: Tensor | None  # [B, 1, K, 2] spans that are no noise
    slots: Tensor  # [B, K] true where a sentence has a span
    masked: bool  # whether spans must not look at all slots


@dataclass
class Restored:
    """What the reverse process ends with."""

    predictions: list[Prediction]  # of the steps that count: all, or the last
    slots: Tensor  # [B, K] true where a sentence has a span
    initial: Initial | None


class DenoisingNetwork(Network):
    """f_θ(x_t, S, t) with its schedule and coordinates."""

    of_types = (
        f"decoder.{CLASSIFIER}",
        *(f"decoder.initializer.types.{name}" for name in Biaffine.of_types),
    )

    def __init__(self, transformer: Transformer, labels: Sequence[str], settings: Settings) -> None:
        super().__init__(transformer, labels, settings)
        self.schedule = Schedule(settings.diffusion.schedule, settings.diffusion.timesteps)
        self.coordinates = Coordinates(settings.diffusion.coordinates, settings.diffusion.scale)
        size = self.encoder.hidden_size
        check_heads(size, settings.decoder)
        self.decoder = EntityDecoder(
            size, len(self.labels), settings.diffusion.timesteps, settings.decoder
        )

    def encode(self, batch: Batch[Tensor]) -> PreparedSentence:
        """The part that is paid once per sentence."""
        return self.decoder.prepare(self.encoder(batch))

    def encode_in_training(self, batch: Batch[Tensor], freeze: bool) -> PreparedSentence:
        """The same, with no gradients for the pretrained part while that is frozen."""
        return self.decoder.prepare(self.encode_words(batch, freeze))

    def denoise(
        self, sentence: PreparedSentence, x: Tensor, t: Tensor, slots: Tensor | None = None
    ) -> Prediction:
        """One denoising step. x: [B, D, K, 2] noisy spans; t: [B, D]."""
        spans = self.coordinates.decode(x, sentence.lengths[:, None])
        return self.decoder(sentence, spans, t, slots)

    def restored(self, prediction: Prediction, lengths: Tensor) -> Tensor:
        """x̂_0 [B, D, K, 2]: the likeliest boundaries. lengths: [B, 1]"""
        left, right = prediction.left.argmax(-1), prediction.right.argmax(-1)
        spans = torch.stack([left, torch.maximum(left, right)], -1)
        restored: Tensor = self.coordinates.encode(spans, lengths)
        return restored

    def find(
        self,
        encoding: SentenceEncoding,
        keys: np.ndarray,
        settings: InferenceSettings,
        slots: Tensor,
        given: Tensor | None = None,
        start: int | None = None,
    ) -> Tensor:
        restored = self.reverse(encoding, keys, settings, slots, given, start)
        tables = [
            read_out(prediction, restored.slots, restored.initial)
            for prediction in restored.predictions
        ]
        return torch.stack(tables, 1)

    @torch.inference_mode()
    def reverse(
        self,
        encoding: SentenceEncoding,
        keys: np.ndarray,
        settings: InferenceSettings,
        slots: Tensor,
        given: Tensor | None = None,
        start: int | None = None,
    ) -> Restored:
        """The reverse process: γ steps from Gaussian spans at T, from the initializer's candidates
        or from spans the caller gives.

        slots: [B, K] true where a sentence has a span; given: [B, K, 2] word indices (left,
        right), taken as the noisy spans of timestep `start`.
        """
        begun = self.begin(encoding, settings, slots, given)
        noise = noise_source(keys, settings.seed, slots.device)
        count = begun.slots.shape[1]
        x = noise(0, count) if begun.x is None else begun.x
        predictions = reverse_process(
            lambda x, t: self.step(begun, x, torch.full_like(encoding.lengths, t)[:, None]),
            x,
            self.schedule,
            self.timesteps(settings, start),
            settings.eta,
            lambda step: noise(step, count),
        )
        counting = predictions if settings.average_steps else predictions[-1:]
        return Restored(counting, begun.slots, begun.sentence.initial)

    def timesteps(self, settings: InferenceSettings, start: int | None = None) -> list[int]:
        """τ_γ, ..., τ_0; start: of spans that the caller gives."""
        if start is None:
            early = max(self.schedule.start, settings.steps)
            start = early if settings.start == "candidates" else self.schedule.timesteps
        return timestep_sequence(start, settings.steps)

    def begin(
        self,
        encoding: SentenceEncoding,
        settings: InferenceSettings,
        slots: Tensor,
        given: Tensor | None = None,
    ) -> Beginning:
        """All that comes before the first step, of the arguments of `reverse`."""
        sentence = self.decoder.prepare(encoding)
        # A fixed number is all there is: attention is faster without a mask.
        masked = settings.spans == AUTO or given is not None
        if given is None and settings.start == "candidates":
            assert sentence.initial is not None
            given, scores = candidates(sentence.initial.spans, slots.shape[1])
            if settings.spans == AUTO:
                slots = likely(slots, scores)
                if not slots.is_cuda:  # a GPU would have to be waited for
                    most = max(1, int(slots.sum(1).max()))
                    given, slots = given[:, :most], slots[:, :most]
        x = None
        if given is not None:
            x = self.coordinates.encode(given[:, None], encoding.lengths[:, None])
        return Beginning(sentence, x, slots, masked)

    def step(self, begun: Beginning, x: Tensor, t: Tensor) -> tuple[Tensor, Prediction]:
        """x̂_0 [B, 1, K, 2] and what it was read from; x: [B, 1, K, 2], t: [B, 1]."""
        seen = begun.slots if begun.masked else None
        prediction = self.denoise(begun.sentence, x, t, seen)
        return self.restored(prediction, begun.sentence.lengths[:, None]), prediction


def noise_source(keys: np.ndarray, seed: int, device: torch.device) -> Callable[[int, int], Tensor]:
    """What the host draws, on a device: the number of a step and of spans → [B, 1, K, 2]"""
    return lambda step, count: to_device([span_noise(keys, seed, step, count)], device)[0]
