"""The sentence encoder: pretrained transformer, character features, BiLSTM → H_S."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffusionner.batching import Batch
from diffusionner.batching.subwords import CHARACTER_CODES
from diffusionner.settings import EncoderSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from diffusionner.model.bert import Bert

# In words: transformers takes seconds to import, and inference may do without (see bert.py).
Transformer: TypeAlias = "PreTrainedModel | Bert"


@dataclass
class SentenceEncoding:
    """H_S and which of its rows are words."""

    states: Tensor  # [B, M, h], zero where there is no word
    mask: Tensor  # [B, M] true for words
    lengths: Tensor  # [B]


CHARACTER_SIZE = 48  # of a character embedding


class CharacterFeatures(nn.Module):
    """Convolution over the characters of the cased word, max-pooled: shape, affixes, capitals."""

    def __init__(self, filters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTER_CODES, CHARACTER_SIZE, padding_idx=0)
        self.filters = nn.Linear(3 * CHARACTER_SIZE, filters)

    def forward(self, characters: Tensor) -> Tensor:
        """[B, M, C] → [B, M, filters]"""
        width = characters.shape[-1]
        padded = F.pad(self.embedding(characters), (0, 0, 1, 1))
        # A convolution of width 3 as one matrix product: cuDNN would plan anew for every shape.
        trigrams = torch.cat([padded[..., i : i + width, :] for i in range(3)], -1)
        features = self.filters(trigrams)
        blank = (characters == 0)[..., None]
        # The clamp gives padding, which has no characters at all, a harmless value.
        return features.masked_fill(blank, -1e4).amax(-2).clamp(min=-1.0)


class BiLSTM(nn.Module):
    """Stacked bidirectional LSTM over padded sentences.

    The backward direction reads each sentence turned round within its own length, so padding is
    never read before a word, as with packed sequences, but all shapes are static.
    """

    def __init__(self, size: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        sizes = [size] + [hidden] * (layers - 1)
        half = hidden // 2
        self.ahead = nn.ModuleList(nn.LSTM(s, half, batch_first=True) for s in sizes)
        self.behind = nn.ModuleList(nn.LSTM(s, hidden - half, batch_first=True) for s in sizes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """[B, M, size] → [B, M, hidden]"""
        given = states.dtype
        if states.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):  # only some CPUs have an LSTM in bf16
                return self(states.float(), lengths).to(given)
        # Beside bf16 it is in float16, for which cuDNN has the faster kernels.
        if not torch.is_autocast_enabled(states.device.type):
            states = states.to(self.ahead[0].weight_ih_l0.dtype)  # type: ignore[arg-type]
        position = torch.arange(states.shape[1], device=states.device)
        turned = lengths[:, None] - 1 - position
        turned = torch.where(turned >= 0, turned, position)[..., None]  # its own inverse

        def turn(x: Tensor) -> Tensor:
            return x.gather(1, turned.expand(-1, -1, x.shape[-1]))

        for number, (ahead, behind) in enumerate(zip(self.ahead, self.behind, strict=True)):
            if number:
                states = self.dropout(states)
            with _beside(states) as joined:
                second = turn(behind(turn(states))[0])
            first = ahead(states)[0]
            joined()
            states = torch.cat([first, second], -1)
        return states.to(given)


class SentenceEncoder(nn.Module):
    """Runs once per sentence; its output serves every denoising step."""

    def __init__(self, transformer: Transformer, settings: EncoderSettings) -> None:
        super().__init__()
        self.transformer = transformer
        self.pooling = settings.pooling
        size = transformer.config.hidden_size
        self.hidden_size = settings.hidden_size or size
        self.characters = None
        if settings.character_filters:
            self.characters = CharacterFeatures(settings.character_filters)
            size += settings.character_filters
        self.dropout = nn.Dropout(settings.dropout)
        self.lstm = None
        if settings.lstm_layers:
            self.lstm = BiLSTM(size, self.hidden_size, settings.lstm_layers, settings.dropout)
            size = self.hidden_size
        self.projection = (
            nn.Identity() if size == self.hidden_size else nn.Linear(size, self.hidden_size)
        )

    def forward(self, batch: Batch[Tensor]) -> SentenceEncoding:
        return self.contextualise(self.pooled(batch), batch.lengths, batch.characters)

    def pooled(self, batch: Batch[Tensor]) -> Tensor:
        """The pretrained part: word states [B, M, size of the transformer]."""
        mask = batch.attention
        if mask.is_cuda and mask.dim() == 2:
            # In its final form: the host would wait for a 2-D one, to see whether it masks at all.
            mask = mask.bool()[:, None, None]
        subwords = self.transformer(input_ids=batch.subwords, attention_mask=mask).last_hidden_state
        return pool_subwords(subwords, batch.first, batch.word_of, self.pooling)

    def contextualise(
        self, states: Tensor, lengths: Tensor, characters: Tensor
    ) -> SentenceEncoding:
        """The part trained from scratch: characters, BiLSTM, projection."""
        most = states.shape[1]
        mask = torch.arange(most, device=states.device) < lengths[:, None]
        if self.characters is not None:
            states = torch.cat([states, self.characters(characters).to(states.dtype)], -1)
        states = self.dropout(states)
        if self.lstm is not None:
            states = self.dropout(self.lstm(states, lengths))
        states = self.projection(states).masked_fill(~mask[..., None], 0.0)
        return SentenceEncoding(states, mask, lengths)


def pool_subwords(
    subwords: Tensor, first: Tensor, word_of: Tensor, pooling: str, starts: Tensor | None = None
) -> Tensor:
    """Subword states [B, L, h] → word states [B, M, h]; first, word_of: as a `Batch` has them.

    starts: [B] where each sentence begins, if they lie one behind the other in [T, h].
    """
    count, most = first.shape
    size = subwords.shape[-1]

    def at(place: Tensor) -> Tensor:
        """[B, Q] → [B, Q, h]"""
        if starts is not None:
            return subwords[(starts[:, None] + place).clamp(max=subwords.shape[0] - 1)]
        place = place.clamp(max=subwords.shape[1] - 1)[..., None]
        return subwords.gather(1, place.expand(-1, -1, size))

    if pooling == "first":
        return at(first)
    # Without the context, which with two sentences on each side is most of L.
    own = at(first[:, :1] + torch.arange(word_of.shape[1], device=subwords.device))  # [B, P, h]
    # One row more than there are words collects what is padding.
    index = word_of[..., None].expand(-1, -1, size)
    if pooling == "max":
        lowest = own.new_full((count, most + 1, size), -1e4)
        return lowest.scatter_reduce(1, index, own, "amax")[:, :most]
    sums = own.new_zeros(count, most + 1, size).scatter_add(1, index, own)
    pieces = own.new_zeros(count, most + 1).scatter_add(1, word_of, torch.ones_like(own[..., 0]))
    return sums[:, :most] / pieces[:, :most, None].clamp(min=1)


@contextmanager
def _beside(states: Tensor) -> Iterator[Callable[[], None]]:
    """On a GPU, in inference, beside what follows, until the function given is called.

    One direction of an LSTM alone keeps few processors busy, word after word. Memory is safe: what
    is made here is used again only behind the same stream, by what first waits for this one.
    """
    if not states.is_cuda or torch.is_grad_enabled():
        yield lambda: None
        return
    main = torch.cuda.current_stream(states.device)
    side = _side_stream(main)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        yield lambda: main.wait_stream(side)


@cache
def _side_stream(main: torch.cuda.Stream) -> torch.cuda.Stream:
    return torch.cuda.Stream(main.device)  # type: ignore[no-untyped-call]
