"""The sentence encoder: pretrained transformer, character features, BiLSTM → H_S (paper, 4.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffusionner.batching import Batch
from diffusionner.batching.subwords import CHARACTER_CODES
from diffusionner.model.bert import Bert
from diffusionner.settings import EncoderSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# A string: transformers takes seconds to import, and inference can do without it (see bert.py).
Transformer: TypeAlias = "PreTrainedModel | Bert"


def position_limit(transformer: Transformer) -> int:
    """Return how many subwords an encoder has positions for."""
    for name, module in transformer.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # The positions of RoBERTa and others start after that of padding.
            before = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - before
    return int(getattr(transformer.config, "max_position_embeddings", None) or 512)


@dataclass
class SentenceEncoding:
    """H_S and the words it covers."""

    states: Tensor  # [B, M, h], zero for padding
    mask: Tensor  # [B, M] true for words
    lengths: Tensor  # [B]
    types: Tensor | None = None  # [B, C, size of the transformer], if types are vectors


@dataclass
class LabelVectors:
    """The labels of each row of a batch, as T more inputs of the encoder for C labels."""

    vectors: Tensor  # [R, T, size of the transformer], one for each subword of a label
    belongs: Tensor  # [R, C, T] true for the vectors of a label

    @classmethod
    def of_table(cls, table: Tensor) -> LabelVectors:
        """Make one row from a table [C, K, h], which has zeros where a label has fewer vectors."""
        present = table.detach().abs().amax(-1) > 0  # [C, K]
        return cls.owned(table[present][None], present.nonzero()[None, :, 0], len(table))

    @classmethod
    def owned(cls, vectors: Tensor, owner: Tensor, count: int) -> LabelVectors:
        """owner: [R, T] place of the label of each vector, -1 for padding; count: C."""
        label = torch.arange(count, device=owner.device)
        return cls(vectors, owner[:, None] == label[:, None])

    def expand(self, rows: int) -> LabelVectors:
        """Give the same labels to all rows."""
        return LabelVectors(*(tensor.expand(rows, -1, -1) for tensor in vars(self).values()))

    def average(self, states: Tensor) -> Tensor:
        """Return the mean state of each label: [R, T, h] → [R, C, h]."""
        weights = self.belongs.to(states.dtype)
        return weights @ states / weights.sum(-1, keepdim=True).clamp(min=1)


CHARACTER_SIZE = 48  # of a character embedding
# Encoders whose layers all attend to everything but padding. They can do with one mask made here;
# the others make theirs from a 2-D mask: a sliding window, or numbers added to the scores.
_ONE_MASK = ("bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")


class CharacterFeatures(nn.Module):
    """Max-pooled convolution over the characters of the cased word: shape, affixes, capitals."""

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
        # The clamp gives padding, which has no characters, a harmless value.
        return features.masked_fill(blank, -1e4).amax(-2).clamp(min=-1.0)


# Runs two LSTMs on their inputs at once: (first, its input, second, its input) → both outputs.
RunInParallel: TypeAlias = Callable[[nn.Module, Tensor, nn.Module, Tensor], tuple[Tensor, Tensor]]


class BiLSTM(nn.Module):
    """Stacked bidirectional LSTM over padded sentences.

    The backward direction reads each sentence reversed within its own length. Padding is never read
    before a word, as with packed sequences, but all shapes are static.
    """

    def __init__(self, size: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        sizes = [size] + [hidden] * (layers - 1)
        half = hidden // 2
        self.ahead = nn.ModuleList(nn.LSTM(s, half, batch_first=True) for s in sizes)
        self.behind = nn.ModuleList(nn.LSTM(s, hidden - half, batch_first=True) for s in sizes)
        self.dropout = nn.Dropout(dropout)
        self.run_in_parallel: RunInParallel | None = None  # set by a GPU engine

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """[B, M, size] → [B, M, hidden]"""
        given = states.dtype
        if states.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):  # only some CPUs have an LSTM in bf16
                return self(states.float(), lengths).to(given)
        # In a bf16 network the LSTM is in float16, for which cuDNN has faster kernels.
        if not torch.is_autocast_enabled(states.device.type):
            states = states.to(self.ahead[0].weight_ih_l0.dtype)  # type: ignore[arg-type]
        position = torch.arange(states.shape[1], device=states.device)
        reverse = lengths[:, None] - 1 - position
        reverse = torch.where(reverse >= 0, reverse, position)[..., None]  # its own inverse
        for number, (ahead, behind) in enumerate(zip(self.ahead, self.behind, strict=True)):
            if number:
                states = self.dropout(states)
            reversed_states = states.gather(1, reverse.expand(-1, -1, states.shape[-1]))
            if self.run_in_parallel is not None and not torch.is_grad_enabled():
                first, second = self.run_in_parallel(ahead, states, behind, reversed_states)
            else:
                first, second = ahead(states)[0], behind(reversed_states)[0]
            second = second.gather(1, reverse.expand(-1, -1, second.shape[-1]))
            states = torch.cat([first, second], -1)
        return states.to(given)


class SentenceEncoder(nn.Module):
    """Encodes a sentence once for all denoising steps."""

    def __init__(self, transformer: Transformer, settings: EncoderSettings) -> None:
        super().__init__()
        self.transformer = transformer
        config = transformer.config
        attention = getattr(config, "_attn_implementation", None)  # sdpa takes a mask of bool
        self.one_mask = config.model_type in _ONE_MASK and attention == "sdpa"
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

    def forward(self, batch: Batch[Tensor], labels: LabelVectors | None = None) -> SentenceEncoding:
        if labels is None:
            words, types = self.pooled(batch), None
        else:
            words, types = self.pooled_with(batch, labels)
        return self.contextualise(words, batch.lengths, batch.characters, types)

    def pooled(self, batch: Batch[Tensor]) -> Tensor:
        """Run the pretrained part: return word states [B, M, size of the transformer]."""
        mask = batch.attention
        if self.one_mask and (mask.is_cuda or torch.compiler.is_exporting()):
            # For a 2-D mask, transformers would synchronise to see if it masks anything.
            mask = mask.bool()[:, None, None]
        subwords = self.transformer(input_ids=batch.subwords, attention_mask=mask).last_hidden_state
        return pool_subwords(subwords, batch.first, batch.word_of, batch.row, self.pooling)

    def pooled_with(self, batch: Batch[Tensor], labels: LabelVectors) -> tuple[Tensor, Tensor]:
        """Run the pretrained part on text and labels: return states of words and of labels.

        The text sees the labels and they see the text, but no label sees another, and all have the
        same positions, so their order cannot matter.

        [B, M, h], [B, C, h]
        """
        assert isinstance(self.transformer, Bert)
        text = batch.attention.bool()
        states = self.transformer.embed(batch.subwords)
        states = torch.cat([states, labels.vectors.to(states.dtype)], 1)
        states = self.transformer.run(states, joint_mask(text, labels.belongs)[:, None])
        subwords, types = states[:, : text.shape[1]], states[:, text.shape[1] :]
        words = pool_subwords(subwords, batch.first, batch.word_of, batch.row, self.pooling)
        return words, labels.average(types)[batch.row]

    def embed_labels(self, subwords: Tensor, places: Tensor) -> Tensor:
        """Return the vectors of labels: subwords and their positions, [R, T] → [R, T, h]."""
        assert isinstance(self.transformer, Bert)
        return self.transformer.embed(subwords, places)

    def contextualise(
        self, states: Tensor, lengths: Tensor, characters: Tensor, types: Tensor | None = None
    ) -> SentenceEncoding:
        """Run the part trained from scratch: characters, BiLSTM, projection."""
        mask = torch.arange(states.shape[1], device=states.device) < lengths[:, None]
        # Max pooling leaves large numbers in padding, which would widen the range of int8.
        states = states.masked_fill(~mask[..., None], 0.0)
        if self.characters is not None:
            states = torch.cat([states, self.characters(characters).to(states.dtype)], -1)
        states = self.dropout(states)
        if self.lstm is not None:
            states = self.dropout(self.lstm(states, lengths))
        states = self.projection(states).masked_fill(~mask[..., None], 0.0)
        return SentenceEncoding(states, mask, lengths, types)


def joint_mask(text: Tensor, belongs: Tensor) -> Tensor:
    """Return what sees what: subwords of text, then of labels → [R, L + T, L + T].

    text: [R, L] true for real subwords; belongs: [R, C, T] true for the subwords of a label.
    """
    length, count = text.shape[1], belongs.shape[2]
    number = belongs.float()
    same = number.transpose(1, 2) @ number > 0
    of_labels = torch.cat([belongs.any(1)[:, None].expand(-1, length, -1), same], 1)
    return torch.cat([text[:, None].expand(-1, length + count, -1), of_labels], 2)


def pool_subwords(
    subwords: Tensor,
    first: Tensor,
    word_of: Tensor,
    row: Tensor,
    pooling: str,
    starts: Tensor | None = None,
) -> Tensor:
    """Pool subword states [R, L, h] into word states [B, M, h]. first, word_of, row: as in `Batch`.

    starts: [R] first subword of each row, if rows are concatenated in [T, h].
    """
    batch, words = first.shape
    size = subwords.shape[-1]
    places = first
    if pooling != "first":
        # Leave out the context, which is most of L with two sentences on each side.
        places = first[:, :1] + torch.arange(word_of.shape[1], device=subwords.device)
    if starts is None:
        places = row[:, None] * subwords.shape[1] + places.clamp(max=subwords.shape[1] - 1)
        subwords = subwords.flatten(0, 1)
    else:
        places = (starts[row][:, None] + places).clamp(max=subwords.shape[0] - 1)
    own = subwords.index_select(0, places.flatten()).view(*places.shape, size)  # [B, P, h]
    if pooling == "first":
        return own
    # One extra row collects the padding.
    index = word_of[..., None].expand(-1, -1, size)
    if pooling == "max":
        lowest = own.new_full((batch, words + 1, size), -1e4)
        return lowest.scatter_reduce(1, index, own, "amax")[:, :words]
    sums = own.new_zeros(batch, words + 1, size).scatter_add(1, index, own)
    counts = own.new_zeros(batch, words + 1).scatter_add(1, word_of, torch.ones_like(own[..., 0]))
    return sums[:, :words] / counts[:, :words, None].clamp(min=1)
