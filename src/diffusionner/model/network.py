"""The whole denoising network and the reverse process that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from diffusionner.batching import Batch
from diffusionner.diffusion import (
    Coordinates,
    Schedule,
    gaussian_noise,
    mix_keys,
    reverse_process,
    timestep_sequence,
)
from diffusionner.diffusion.span_counts import AUTO, likely
from diffusionner.errors import SettingsError
from diffusionner.model.decoder import EntityDecoder, Prediction, PreparedSentence
from diffusionner.model.encoder import SentenceEncoder
from diffusionner.model.initializer import candidates
from diffusionner.model.tensors import to_device
from diffusionner.settings import InferenceSettings, Settings


@dataclass
class Restored:
    """What the reverse process ends with."""

    predictions: list[Prediction]  # of the steps that count: all, or the last
    slots: Tensor  # [B, K] true where a sentence has a span
    initial: Tensor | None  # [B, M, M] scores of the initializer


class DenoisingNetwork(nn.Module):
    """f_θ(x_t, S, t) with its schedule and coordinates."""

    def __init__(
        self, transformer: PreTrainedModel, labels: Sequence[str], settings: Settings
    ) -> None:
        super().__init__()
        self.labels = list(labels)
        self.schedule = Schedule(settings.diffusion.schedule, settings.diffusion.timesteps)
        self.coordinates = Coordinates(settings.diffusion.coordinates, settings.diffusion.scale)
        self.encoder = SentenceEncoder(transformer, settings.encoder)
        size, heads = self.encoder.hidden_size, settings.decoder.heads
        if size % heads:
            raise SettingsError(
                f"decoder.heads={heads} does not divide the encoder's size {size}; "
                f"set encoder.hidden_size to a multiple of {heads}, or other heads"
            )
        self.decoder = EntityDecoder(
            size, len(self.labels), settings.diffusion.timesteps, settings.decoder
        )

    def start_from(self, weights: Mapping[str, Tensor], same_labels: bool) -> None:
        """Take over what fits of a trained model: all but the types where its labels are others."""
        own = self.state_dict()
        types = f"decoder.classifier.{len(self.decoder.classifier) - 1}."
        fitting = {
            name: tensor
            for name, tensor in weights.items()
            if name in own
            and own[name].shape == tensor.shape
            and (same_labels or not name.startswith(types))
        }
        self.load_state_dict(fitting, strict=False)

    def encode(self, batch: Batch[Tensor]) -> PreparedSentence:
        """The part that is paid once per sentence."""
        return self.decoder.prepare(self.encoder(batch))

    def encode_in_training(self, batch: Batch[Tensor], freeze: bool) -> PreparedSentence:
        """The same, with no gradients for the pretrained part while that is frozen."""
        with torch.no_grad() if freeze else nullcontext():
            words = self.encoder.pooled(batch)
        return self.decoder.prepare(self.encoder.contextualise(words, batch))

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

    @torch.inference_mode()
    def reverse(
        self,
        batch: Batch[Tensor],
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
        sentence = self.encode(batch)
        keys = mix_keys(batch.keys, settings.seed)
        lengths = batch.lengths[:, None]
        # A fixed number is all there is: attention is faster without a mask.
        masked = settings.spans == AUTO or given is not None

        def noise(step: int, count: int) -> Tensor:  # [B, 1, K, 2]
            (made,) = to_device([gaussian_noise(mix_keys(keys, step), 1, count, 2)], lengths.device)
            return made

        if given is None and settings.start == "candidates":
            assert sentence.initial is not None
            given, scores = candidates(sentence.initial, slots.shape[1])
            start = max(self.schedule.start, settings.steps)
            if settings.spans == AUTO:
                slots = likely(slots, scores)
                if not slots.is_cuda:  # a GPU would have to be waited for
                    most = max(1, int(slots.sum(1).max()))
                    given, slots = given[:, :most], slots[:, :most]
        if given is None:
            x = noise(0, slots.shape[1])
        else:
            x = self.coordinates.encode(given[:, None], lengths)

        def denoise(x: Tensor, t: int) -> tuple[Tensor, Prediction]:
            seen = slots if masked else None
            prediction = self.denoise(sentence, x, torch.full_like(lengths, t), seen)
            return self.restored(prediction, lengths), prediction

        sequence = timestep_sequence(start or self.schedule.timesteps, settings.steps)
        predictions = reverse_process(
            denoise, x, self.schedule, sequence, settings.eta, lambda step: noise(step, x.shape[2])
        )
        counting = predictions if settings.average_steps else predictions[-1:]
        return Restored(counting, slots, sentence.initial)
