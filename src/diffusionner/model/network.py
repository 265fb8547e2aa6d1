"""The denoising network f_θ(x_t, S, t) and the reverse process that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffusionner.batching import Batch
from diffusionner.corpus import Sentence
from diffusionner.diffusion import (
    AUTO,
    BeliefDenoiser,
    BeliefWeights,
    Candidates,
    Coordinates,
    ReverseStart,
    ReverseStep,
    Schedule,
    absent,
    likely_candidates,
    reverse_process,
    span_noise,
    timestep_sequence,
)
from diffusionner.model.base import Network
from diffusionner.model.beliefs import BeliefNetwork
from diffusionner.model.decoder import EntityDecoder, Prediction, PreparedSentence, read_out
from diffusionner.model.encoder import SentenceEncoding, Transformer
from diffusionner.model.fragments import FragmentScores
from diffusionner.model.initializer import SpanScores, best_spans
from diffusionner.model.tensors import to_device
from diffusionner.settings import InferenceSettings, Settings


@dataclass
class ReverseState:
    """Inputs shared by all steps of a reverse process, and the spans it starts from."""

    sentence: PreparedSentence
    slots: Tensor  # [B, K] true where a sentence has a span
    mask: Tensor | None  # the same, if spans must not attend to empty slots
    x: Tensor | None  # [B, 1, K, 2]; None starts from noise
    given: int = 0  # how many of the K the caller gives: the first ones


class DenoisingNetwork(Network):
    """Sentence encoder and entity decoder, with the schedule and coordinates of the diffusion."""

    type_weights = (
        *(f"decoder.{name}" for name in EntityDecoder.type_weights),
        *(f"fragments.{name}" for name in FragmentScores.type_weights),
    )

    def __init__(self, transformer: Transformer, labels: Sequence[str], settings: Settings) -> None:
        super().__init__(transformer, labels, settings)
        self.schedule = Schedule(settings.diffusion.schedule, settings.diffusion.timesteps)
        self.coordinates = Coordinates(settings.diffusion.coordinates, settings.diffusion.scale)
        self.decoder = EntityDecoder(
            self.encoder.hidden_size,
            len(self.labels),
            settings.diffusion.timesteps,
            settings.decoder,
            transformer.config.hidden_size,
        )
        self.fragments = None
        if settings.decoder.discontinuous:
            self.fragments = FragmentScores(
                self.encoder.hidden_size,
                len(self.labels),
                settings.decoder.dropout,
                transformer.config.hidden_size if settings.decoder.joins_labels else None,
            )
        self.beliefs = BeliefNetwork() if settings.decoder.beliefs else None
        if self.beliefs is not None:
            self.beliefs.requires_grad_(False)  # it is added last, already fitted

    def load_beliefs(self, weights: BeliefWeights) -> None:
        """Load a fitted belief network; before that, it changes nothing."""
        assert self.beliefs is not None
        self.beliefs.load_weights(weights)

    def belief_denoiser(self) -> BeliefDenoiser | None:
        if self.beliefs is None:
            return None
        return BeliefDenoiser(self.beliefs.weights(), self.schedule)

    @classmethod
    def resolve_settings(cls, settings: Settings, sentences: Sequence[Sentence]) -> Settings:
        """Find discontinuous entities if the training data has some, unless the settings say."""
        found = any(sentence.discontinuous for sentence in sentences)
        if settings.decoder.discontinuous is not None or not found:
            return settings
        return replace(settings, decoder=replace(settings.decoder, discontinuous=True))

    def fragment_scores(self, encoding: SentenceEncoding) -> Tensor | None:
        """Return the scores of the parts of discontinuous entities, [B, M, M, C + 2]."""
        if self.fragments is None:
            return None
        scores: Tensor = self.fragments(encoding.states, encoding.mask, encoding.types)
        return scores

    def prepare(self, batch: Batch[Tensor], freeze_encoder: bool = False) -> PreparedSentence:
        """Encode a batch; the only part whose cost does not depend on the number of steps."""
        encoding = self.encode(batch, freeze_encoder)
        sentence = self.decoder.prepare(encoding)
        sentence.fragments = self.fragment_scores(encoding)
        return sentence

    def denoise(
        self, sentence: PreparedSentence, x: Tensor, t: Tensor | int, mask: Tensor | None = None
    ) -> tuple[Tensor, Prediction]:
        """Run one denoising step: return x̂_0 and the prediction it was read from.

        x: [B, D, K, 2] noisy spans; t: [B, D], or one timestep for all; mask: [B, K] true for spans
        that others may see.
        """
        lengths = sentence.lengths[:, None]
        if isinstance(t, int):
            t = torch.full_like(lengths, t)
        prediction = self.decoder(sentence, self.coordinates.decode(x, lengths), t, mask)
        left, right = prediction.left.argmax(-1), prediction.right.argmax(-1)
        spans = torch.stack([left, torch.maximum(left, right)], -1)
        return self.coordinates.encode(spans, lengths), prediction

    @torch.inference_mode()
    def candidates(
        self,
        encoding: SentenceEncoding,
        keys: np.ndarray,
        start: ReverseStart[Tensor],
        settings: InferenceSettings,
    ) -> Candidates[Tensor]:
        # With a belief network, the boundaries of candidates stay: a better span is another one.
        own = self.beliefs is not None and start.given is None and settings.start == "candidates"
        if settings.steps == 0 or own:
            initial = self.decoder.initial(encoding)
            assert initial is not None
            spans, slots, _ = self._choose_spans(initial, start, settings)
            assert spans is not None
            return initial.candidates(spans, slots)
        state = self.start_reverse(encoding, start, settings)
        initial = state.sentence.initial
        steps = list(self.reverse(state, keys, settings, start.timestep))
        counted = steps if settings.average_steps else steps[-1:]
        parts = [read_out(step.prediction, state.slots, initial) for step in counted]
        if self.beliefs is not None and initial is not None:
            for part in parts:
                part.logits = initial.type_logits(part.left, part.right)
            if state.x is not None:  # the spans that were given are candidates, too
                spans = self.coordinates.decode(state.x, encoding.lengths[:, None])[:, 0]
                parts.append(initial.candidates(spans, state.slots))
        return parts[0] if len(parts) == 1 else Candidates.combine(parts, lambda x: torch.cat(x, 1))

    def start_reverse(
        self, encoding: SentenceEncoding, start: ReverseStart[Tensor], settings: InferenceSettings
    ) -> ReverseState:
        """Prepare the sentence and choose the spans of the first step."""
        sentence = self.decoder.prepare(encoding)
        spans, slots, given = self._choose_spans(sentence.initial, start, settings)
        # If every sentence has all spans, attention is faster without a mask.
        masked = settings.spans == AUTO or given > 0 or start.is_ragged
        x = None
        if spans is not None:
            x = self.coordinates.encode(spans[:, None], encoding.lengths[:, None])
        return ReverseState(sentence, slots, slots if masked else None, x, given)

    def _choose_spans(
        self, initial: SpanScores | None, start: ReverseStart[Tensor], settings: InferenceSettings
    ) -> tuple[Tensor | None, Tensor, int]:
        """Return spans [B, G + K, 2] (None: noise), slots [B, G + K] and the number G of given."""
        slots, given = start.slots, start.given
        spans = None
        if settings.start == "candidates" and slots.shape[1]:
            assert initial is not None
            spans, scores = best_spans(initial.spans, slots.shape[1])
            if settings.spans == AUTO:
                slots = likely_candidates(slots, scores)
                if not slots.is_cuda:  # reading the number of slots would stall a GPU
                    count = max(1, int(slots.sum(1).max()))
                    spans, slots = spans[:, :count], slots[:, :count]
        if given is not None:
            assert start.given_slots is not None
            own = given[:, :0] if spans is None else spans
            slots = torch.cat([start.given_slots & absent(given, own, slots), slots], 1)
            spans = torch.cat([given, own], 1)
        return spans, slots, 0 if given is None else given.shape[1]

    def reverse(
        self,
        state: ReverseState,
        keys: np.ndarray,
        settings: InferenceSettings,
        timestep: int | None = None,
        denoise: Callable[[Tensor, int], tuple[Tensor, Any]] | None = None,
    ) -> Iterator[ReverseStep[Any]]:
        """Run γ denoising steps from Gaussian spans at T or from the spans of the state.

        keys: [B] noise keys of the sentences; timestep: replaces that of the settings;
        denoise: replaces the method `denoise`.
        """
        device, given = state.slots.device, state.given
        own = state.slots.shape[1] - given

        def noise(step: int) -> Tensor:
            return to_device([span_noise(keys, settings.seed, step, own, given)], device)[0]

        if timestep is None:
            timestep = self.schedule.timesteps
            if state.x is not None:
                timestep = max(self.schedule.candidate_start, settings.steps)
        return reverse_process(
            denoise or (lambda x, t: self.denoise(state.sentence, x, t, state.mask)),
            noise(0) if state.x is None else state.x,
            self.schedule.alpha_bar,
            timestep_sequence(timestep, settings.steps),
            settings.eta,
            noise,
        )
