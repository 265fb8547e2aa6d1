"""Subwords hidden from the encoder in training: what is left of a sentence must do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.diffusion import mix_keys, uniform_noise
from diffusionner.errors import EncoderError

_SALT = 8  # the noise of spans has those before


@dataclass(frozen=True)
class Hiding:
    share: float
    mask: int
    untouched: np.ndarray  # ids that stand for no text

    @classmethod
    def of(cls, subwords: SubwordTokenizer, share: float) -> Hiding:
        mask = subwords.hf.mask_token_id
        if mask is None:
            raise EncoderError(
                "the encoder's tokenizer has no mask token to hide subwords behind; "
                "set training.hidden_subwords=0"
            )
        return cls(share, mask, np.array([subwords.pad, *subwords.hf.all_special_ids]))

    def apply(self, subwords: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """subwords: [B, L]; keys: [B], unique to sentence and epoch. How far a batch is padded
        changes nothing.
        """
        chosen = uniform_noise(mix_keys(keys, _SALT), subwords.shape[1]) < self.share
        return np.where(chosen & ~np.isin(subwords, self.untouched), self.mask, subwords)
