"""Networks of a given size with random weights, such as the paper's BERT-large."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from diffusionner.corpus import Sentence, collect_labels
from diffusionner.errors import DataError, SettingsError, nearest
from diffusionner.inference.pipeline import DiffusionNER
from diffusionner.inference.torch_engine import TorchEngine
from diffusionner.methods import network_class
from diffusionner.model.encoder import position_limit
from diffusionner.settings import Settings
from diffusionner.storage.encoders import load_encoder, load_tokenizer

# Layers, hidden size, attention heads, feed-forward size, vocabulary.
SHAPES = {
    "bert-large": (24, 1024, 16, 4096, 28_996),
    "bert-base": (12, 768, 12, 3072, 28_996),
    "e5-small": (12, 384, 12, 1536, 30_522),
    "minilm": (6, 384, 12, 1536, 30_522),
}
SUBWORDS_PER_WORD = 1.3  # approximately that of these encoders' tokenizers on English
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write(shape: str, sentences: Sequence[Sentence], settings: Settings, to: Path) -> Path:
    """Write a model of that shape with random weights, and its encoder; return its folder."""
    write_encoder(shape, sentences, to / "encoder")
    write_model(to / "encoder", sentences, settings, to / "model")
    return to / "model"


def write_encoder(shape: str, sentences: Sequence[Sentence], folder: Path) -> None:
    """Write a random encoder of that shape, with a tokenizer trained on the sentences."""
    if shape not in SHAPES:
        raise SettingsError(f"unknown shape '{shape}'; {nearest(shape, SHAPES)}")
    layers, hidden, heads, feedforward, vocabulary = SHAPES[shape]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=feedforward,
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(sentences, vocabulary),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    write_pretrained(BertModel(config, add_pooling_layer=False), tokenizer, folder)


def write_pretrained(transformer: PreTrainedModel, tokenizer: Any, folder: Path) -> None:
    """Write an encoder folder, without progress bars."""
    transformers_logging.disable_progress_bar()
    try:
        transformer.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    finally:
        transformers_logging.enable_progress_bar()


def write_model(encoder: Path, sentences: Sequence[Sentence], settings: Settings, to: Path) -> None:
    """Write a model with that encoder, for the labels of the sentences."""
    labels = collect_labels(sentences)
    if not labels:
        raise DataError("the corpus has no entities, so a model would have no types; use another")
    transformer = load_encoder(str(encoder))
    method = network_class(settings.method)
    settings = method.resolve_settings(settings, sentences)
    network = method(transformer, labels, settings)
    tokenizer = load_tokenizer(encoder, position_limit(transformer))
    DiffusionNER(TorchEngine(network), tokenizer, settings).save_pretrained(to)


def _tokenizer(sentences: Sequence[Sentence], most: int) -> Tokenizer:
    """Return a WordPiece tokenizer with about SUBWORDS_PER_WORD, found by bisection."""
    few, many = 200, most
    tokenizer = _trained(sentences, few)
    while many - few > 200:
        middle = (few + many) // 2
        tokenizer = _trained(sentences, middle)
        if subwords_per_word(tokenizer, sentences) > SUBWORDS_PER_WORD:
            few = middle
        else:
            many = middle
    return tokenizer


def _trained(sentences: Sequence[Sentence], size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator((" ".join(s.words) for s in sentences), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def subwords_per_word(tokenizer: Tokenizer, sentences: Sequence[Sentence]) -> float:
    encoded = tokenizer.encode_batch(
        [s.words for s in sentences], is_pretokenized=True, add_special_tokens=False
    )
    return sum(len(one.ids) for one in encoded) / max(1, sum(len(s.words) for s in sentences))
