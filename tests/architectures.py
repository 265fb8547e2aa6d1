"""A tiny encoder with random weights and a tokenizer of its own for each supported architecture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertTokenizer,
    DebertaV2Tokenizer,
    MPNetTokenizer,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)
from transformers.models import auto

TEXT = (
    "Ada Lovelace met Charles Babbage in London , didn't she ? The Émile Zola of New-York paid "
    "1,234.5 francs to naïve Zürich bankers . She was a met ada man in a lane near Paris again"
).split()
# Prefix spaces, accents, combining marks, other scripts, unknown characters, special tokens, a word
# without subwords, a space inside a word, and words that are too long.
WORDS = [
    *TEXT[:12], "Ada", "Émile", "E\u0301mile", "ﬁn", "漢字", "Ωmega", "🙂", "👩\u200d🚀", "x" * 30,
    "don't", "a b", "--", "U.S.A.", "İstanbul", "ß", "1,234.5", "\u00ad", "и́", "#tag", "@x",
    "▁", "Ġ", "[MASK]", "</s>",
]  # fmt: skip
SENTENCES = [TEXT[:3], TEXT[3:12], ["Ada"], TEXT[13:17]]
BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.3,
}


def word_pieces(special: list[str], cased: bool = True) -> dict[str, int]:
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=special)
    backend.train_from_iterator(TEXT * 3, trainer)
    return backend.get_vocab()


def byte_pairs(special: list[str], text: list[str]) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    backend.train_from_iterator(text, trainer)
    return backend


def unigrams(special: list[str], unknown: str) -> list[tuple[str, float]]:
    """Return pieces and scores, special tokens first."""
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token=unknown)
    backend.train_from_iterator(TEXT * 3, trainer)
    return [tuple(pair) for pair in json.loads(backend.to_str())["model"]["vocab"]]


def bert_tokenizer() -> Any:
    return BertTokenizer(vocab=word_pieces(BERT_TOKENS, cased=False))


def mpnet_tokenizer() -> Any:
    special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    return MPNetTokenizer(vocab=word_pieces(special, cased=False))


def roberta_tokenizer() -> Any:
    model = json.loads(byte_pairs(ROBERTA_TOKENS, [" ".join(TEXT)] * 3).to_str())["model"]
    return RobertaTokenizer(vocab=model["vocab"], merges=[tuple(m) for m in model["merges"]])


def xlm_roberta_tokenizer() -> Any:
    return XLMRobertaTokenizer(vocab=unigrams(ROBERTA_TOKENS, "<unk>"))


def deberta_tokenizer() -> Any:
    vocabulary = unigrams(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"], "[UNK]")
    return DebertaV2Tokenizer(vocab=vocabulary, unk_id=3)


def modernbert_tokenizer() -> Any:
    """As published: no class of its own, no prefix space and no attribute that says so."""
    backend = byte_pairs(BERT_TOKENS, [" ".join(TEXT)] * 3)
    backend.normalizer = normalizers.NFC()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(t, BERT_TOKENS.index(t)) for t in ("[CLS]", "[SEP]")],
    )
    names = {f"{t[1:-1].lower()}_token": t for t in BERT_TOKENS}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "pad_token_id": 0}
# By name: model type, tokenizer, settings of the config.
ARCHITECTURES: dict[str, tuple[str, Callable[[], Any], dict[str, Any]]] = {
    "bert": ("bert", bert_tokenizer, {"max_position_embeddings": 64}),
    "electra": (
        "electra", bert_tokenizer, {"max_position_embeddings": 64, "embedding_size": 16}
    ),
    "roberta": (
        "roberta",
        roberta_tokenizer,
        {"max_position_embeddings": 66, "pad_token_id": 1, "type_vocab_size": 1},
    ),
    "xlm-roberta": (
        "xlm-roberta",
        xlm_roberta_tokenizer,
        {"max_position_embeddings": 66, "pad_token_id": 1, "type_vocab_size": 1},
    ),
    "mpnet": ("mpnet", mpnet_tokenizer, {"max_position_embeddings": 66, "pad_token_id": 1}),
    "deberta-v2": (
        "deberta-v2",
        deberta_tokenizer,
        {**RELATIVE, "max_position_embeddings": 64, "conv_kernel_size": 3, "conv_act": "gelu"},
    ),
    "deberta-v3": (
        "deberta-v2",
        deberta_tokenizer,
        {
            **RELATIVE,
            "max_position_embeddings": 64,
            "position_biased_input": False,
            "position_buckets": 8,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "type_vocab_size": 0,
        },
    ),
    "modernbert": (
        "modernbert",
        modernbert_tokenizer,
        {
            "max_position_embeddings": 64,
            "local_attention": 8,  # four subwords to each side, in two layers of three
            "global_attn_every_n_layers": 3,
            "pad_token_id": 0,
            "cls_token_id": 2,
            "bos_token_id": 2,
            "sep_token_id": 3,
            "eos_token_id": 3,
        },
    ),
}  # fmt: skip


# Usable, but torch cannot export it.
LONGFORMER = (
    "longformer",
    roberta_tokenizer,
    {"attention_window": 8, "max_position_embeddings": 66, "pad_token_id": 1},
)


def write_encoder(name: str, folder: Path) -> Path:
    """Write an encoder and its tokenizer as Hugging Face does."""
    model_type, make_tokenizer, own = ARCHITECTURES.get(name, LONGFORMER)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    sizes = dict(SIZES)
    if model_type == "modernbert":
        del sizes["hidden_dropout_prob"], sizes["attention_probs_dropout_prob"]
    config = auto.AutoConfig.for_model(model_type, vocab_size=len(tokenizer), **sizes, **own)
    torch.manual_seed(0)
    auto.AutoModel.from_config(config).save_pretrained(folder)
    return folder
