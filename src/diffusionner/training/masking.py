"""Subword masking: hide random subwords from the encoder in training, as regularisation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.diffusion import mix_keys, uniform_noise
from diffusionner.errors import EncoderError

_SALT = 8  # differs from the salts of the span noise


@dataclass(frozen=True)
class SubwordMasking:
    rate: float
    mask: int
    special: np.ndarray  # ids that are never masked

    @classmethod
    def for_tokenizer(cls, tokenizer: SubwordTokenizer, rate: float) -> SubwordMasking:
        mask = tokenizer.hf.mask_token_id
        if mask is None:
            raise EncoderError(
                "the encoder's tokenizer has no mask token; set training.subword_masking=0"
            )
        return cls(rate, mask, np.array([tokenizer.pad, *tokenizer.hf.all_special_ids]))

    def apply(self, subwords: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return the subwords [R, L] with some replaced by the mask token.

        keys: [R], unique to row and epoch. The choice does not depend on padding.
        """
        chosen = uniform_noise(mix_keys(keys, _SALT), subwords.shape[1]) < self.rate
        return np.where(chosen & ~np.isin(subwords, self.special), self.mask, subwords)
