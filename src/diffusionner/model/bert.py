"""BERT: computes what transformers' BertModel does, with the same weight names.

Importing transformers' models takes twice as long as everything else in loading a trained model,
and a third of the memory. Nearly all small encoders are BERTs, which do without it. Training uses
transformers, except for models that read labels with the text, which is done here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Queries, keys and values [..., heads, head size] → attended values in the same shape.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

# Everything else in a config only matters to training, a decoder or a head.
_AS_IMPLEMENTED = {
    "model_type": ("bert",),
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
}


def is_supported(config: Any) -> bool:
    """Return whether this module implements the encoder of a config."""
    return isinstance(config, dict) and all(
        config.get(key) in values for key, values in _AS_IMPLEMENTED.items()
    )


class BertConfig:
    """The part of transformers' BertConfig that is used here; the rest is kept to be saved."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.model_type: str = values["model_type"]
        self.vocab_size = _size(values, "vocab_size")
        self.hidden_size = _size(values, "hidden_size")
        self.num_hidden_layers = _size(values, "num_hidden_layers")
        self.num_attention_heads = _size(values, "num_attention_heads")
        self.intermediate_size = _size(values, "intermediate_size")
        self.max_position_embeddings = _size(values, "max_position_embeddings")
        self.type_vocab_size = _size(values, "type_vocab_size")
        self.layer_norm_eps: float = values["layer_norm_eps"]
        self.hidden_dropout_prob: float = values.get("hidden_dropout_prob", 0.0)
        self.attention_probs_dropout_prob: float = values.get("attention_probs_dropout_prob", 0.0)
        if not 0 < self.layer_norm_eps < 1:
            raise ValueError(f"layer_norm_eps is {self.layer_norm_eps}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError("num_attention_heads does not divide hidden_size")

    def to_dict(self) -> dict[str, Any]:
        return dict(self.values)


def _size(values: dict[str, Any], name: str) -> int:
    size = values[name]
    if type(size) is not int or size < 1:  # True is an int, too
        raise ValueError(f"{name} is {str(size)[:50]}, expected a positive number")
    return size


class BertOutput(NamedTuple):
    last_hidden_state: Tensor  # [B, L, h]


class Bert(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = BertConfig(config)
        self.embeddings = _Embeddings(self.config)
        layers = (_Layer(self.config) for _ in range(self.config.num_hidden_layers))
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(layers)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> BertOutput:
        """input_ids [B, L]; attention_mask [B, L], or [B, 1, 1, L] of bool."""
        mask = attention_mask
        if mask.dim() == 2:
            mask = mask.bool()[:, None, None]
        return BertOutput(self.run(self.embed(input_ids), mask))

    def embed(self, input_ids: Tensor, places: Tensor | None = None) -> Tensor:
        """Return the inputs of the first layer: [B, L] → [B, L, h]. places: positions, if given."""
        table = self.embeddings.position_embeddings
        positions = table.weight[: input_ids.shape[1]] if places is None else table(places)
        states: Tensor = self.embeddings(input_ids, positions)
        return states

    def run(self, states: Tensor, mask: Tensor) -> Tensor:
        """Run all layers: states [B, L, h], mask [B, 1, 1 or L, L] of bool."""
        dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
        attend = partial(_attend, mask, dropout)
        for layer in self.encoder.get_submodule("layer").children():
            states = layer(states, attend)
        return states

    def packed(self, ids: Tensor, boundaries: Tensor, longest: int) -> Tensor:
        """Encode concatenated sentences on a GPU, in 16 bits: ids [T] → [T, h].

        boundaries: [B + 1] int32, where each sentence starts and the last one ends; longest:
        maximum length of a sentence. The states after the last sentence are undefined.
        """
        place = torch.arange(len(ids), dtype=torch.int32, device=ids.device)
        sentence = torch.searchsorted(boundaries, place, right=True) - 1
        place = (place - boundaries[sentence]).clamp(max=self.config.max_position_embeddings - 1)
        states: Tensor = self.embeddings(ids, self.embeddings.position_embeddings(place))
        attend = partial(_attend_packed, boundaries, longest)
        for layer in self.encoder.get_submodule("layer").children():
            states = layer(states, attend)
        return states


def _attend(mask: Tensor, dropout: float, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """[B, L, heads, head size], mask [B, 1, 1 or L, L]"""
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    return attended.transpose(1, 2)


def _attend_packed(
    boundaries: Tensor, longest: int, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """[T, heads, head size]"""
    from torch.nn.attention.varlen import varlen_attn  # needs CUDA

    attended = varlen_attn(query, key, value, boundaries, boundaries, longest, longest)
    assert isinstance(attended, Tensor)
    return attended


class _Embeddings(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size)
        self.LayerNorm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """ids [B, L] with positions [L, h] or [B, L, h], or [T] with [T, h] → [..., h]"""
        states = self.word_embeddings(ids) + self.token_type_embeddings.weight[0]
        states = states + positions
        normed: Tensor = self.dropout(self.LayerNorm(states))
        return normed


class _Layer(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self.heads = config.num_attention_heads
        of_self = {name: nn.Linear(size, size) for name in ("query", "key", "value")}
        self.attention = nn.ModuleDict(
            {"self": nn.ModuleDict(of_self), "output": _Output(size, config)}
        )
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(size, inner)})
        self.output = _Output(inner, config)

    def forward(self, states: Tensor, attend: Attend) -> Tensor:
        """[..., h] → [..., h]"""
        projections = self.attention["self"]
        query, key, value = (
            projections[name](states).unflatten(-1, (self.heads, -1))  # type: ignore[index]
            for name in ("query", "key", "value")
        )
        states = self.attention["output"](attend(query, key, value).flatten(-2), states)
        inner = F.gelu(self.intermediate["dense"](states))
        closed: Tensor = self.output(inner, states)
        return closed


class _Output(nn.Module):
    """Projection, residual and norm."""

    def __init__(self, inner: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(inner, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, inner: Tensor, states: Tensor) -> Tensor:
        normed: Tensor = self.LayerNorm(self.dropout(self.dense(inner)) + states)
        return normed
