"""Tagging: linear-chain CRFs over BIOES tags, one for each level of nesting.

Level 0 has the outermost entities, level 1 those directly inside them, and so on. A flat corpus has
one level, an ordinary CRF. All chains of a batch run in parallel, word by word.

Shapes: B sentences, L levels, M words, C types, T = 4 C + 1 tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from diffusionner.batching import Batch
from diffusionner.corpus import Sentence
from diffusionner.diffusion import Candidates
from diffusionner.errors import SettingsError
from diffusionner.model.encoder import SentenceEncoding, Transformer
from diffusionner.model.initializer import IMPOSSIBLE
from diffusionner.settings import Settings
from diffusionner.training.objective import Objective
from reproduce.rivals.base import EVEN, Rival, perceptron, single_step
from reproduce.rivals.chains import Chains
from reproduce.rivals.tags import BEGIN, END, OUTSIDE, PARTS, SINGLE, deepest, tags_of

MAX_LEVELS = 4  # if the number follows from the data


class TaggingNetwork(Rival):
    phi = EVEN
    type_weights = ("emissions.3.", "chains.")

    def __init__(self, transformer: Transformer, labels: Sequence[str], settings: Settings) -> None:
        super().__init__(transformer, labels, settings)
        self.levels = settings.options.get("levels", 1)
        self.chains = Chains(self.levels, len(self.labels))
        self.emissions = perceptron(
            self.encoder.hidden_size, self.levels * self.chains.tags, settings.decoder.dropout
        )

    @classmethod
    def resolve_settings(cls, settings: Settings, sentences: Sequence[Sentence]) -> Settings:
        """Set `options.levels` to the nesting depth of the data, unless it is given."""
        settings = super().resolve_settings(settings, sentences)
        levels = settings.options.get("levels", min(MAX_LEVELS, deepest(sentences)))
        if not isinstance(levels, int) or levels < 1:
            raise SettingsError(f"options.levels={levels!r} must be a positive number")
        return replace(settings, options={**settings.options, "levels": levels})

    def emit(self, states: Tensor) -> Tensor:
        """H_S [B, M, h] → scores of the tags [B, L, M, T]"""
        batch, words, _ = states.shape
        scores: Tensor = self.emissions(states).float()
        return scores.view(batch, words, self.levels, -1).transpose(1, 2)

    def propose(self, encoding: SentenceEncoding) -> Candidates[Tensor]:
        """Return the entities of the best tags, each at the position of its last word."""
        emissions, mask = self.emit(encoding.states), encoding.mask
        tags = self.chains.best(emissions, mask)  # [B, L, M]
        type_id = (tags - 1).div(PARTS, rounding_mode="floor").clamp(min=0)
        part = torch.where(tags == OUTSIDE, -1, (tags - 1) % PARTS)
        starts = (part == BEGIN) | (part == SINGLE)
        ends = ((part == END) | (part == SINGLE)) & mask[:, None]
        right = torch.arange(tags.shape[2], device=tags.device).expand_as(tags)
        left = torch.where(starts, right, 0).cummax(-1).values
        probability = self.chains.probability(emissions, mask, left, right, type_id)
        columns = (left, right, type_id, 3 * probability, ends)
        return single_step(*(column.flatten(1) for column in columns))


@dataclass
class Tagged:
    """Scores and gold tags of a training step."""

    emissions: Tensor  # [B, L, M, T]
    mask: Tensor  # [B, M] true for words
    gold: Tensor  # [B, L, M] tags


class TaggingObjective(Objective[Tagged]):
    network: TaggingNetwork

    def denominator(self, counts: np.ndarray) -> int:
        """Return the number of sentences."""
        return len(counts)

    def inputs(self, batch: Batch[np.ndarray], keys: np.ndarray) -> list[np.ndarray]:
        return [tags_of(batch, self.network.levels)]

    def predict(self, batch: Batch[Tensor], *inputs: Tensor) -> Tagged:
        encoding = self.network.encode(batch, self.freeze_encoder)
        return Tagged(self.network.emit(encoding.states), encoding.mask, *inputs)

    def loss(self, predicted: Tagged, batch: Batch[Tensor], assigned: Tensor) -> Tensor:
        """Return the negative log-likelihood of the gold tags."""
        emissions, gold = predicted.emissions, predicted.gold
        # A word outside of entities may belong to one of a type that is not annotated.
        unannotated = ~batch.annotated_types[..., None].expand(-1, -1, PARTS).flatten(1)
        unannotated = F.pad(unannotated, (1, 0))  # [B, T]
        right = F.one_hot(gold, emissions.shape[-1]).bool()
        right = right | ((gold == OUTSIDE)[..., None] & unannotated[:, None, None])
        both = torch.cat([emissions, emissions.masked_fill(~right, IMPOSSIBLE)])
        sums = self.network.chains.log_sums(both, predicted.mask.repeat(2, 1))  # [2 B, L]
        of_all, of_right = sums.chunk(2)
        return (of_all - of_right).sum()
