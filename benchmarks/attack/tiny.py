"""A tiny encoder with random weights, a corpus, and settings of a run that takes a second."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import yaml

NAMES = ("Ada Lovelace", "Charles Babbage", "Mary", "Grace Hopper", "Alan Turing")
PLACES = ("London", "Paris", "New York", "Turin")


def make_encoder(folder: Path) -> None:
    """Write a BERT of one layer whose vocabulary is single characters."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    characters = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    symbols = [*special, *characters, *("##" + c for c in characters)]
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    BertModel(config).save_pretrained(folder)


def write_settings(folder: Path, output: str, sentences: int = 24) -> Path:
    """Write a corpus, an encoder and the settings of a run; return the path of the settings.

    The state is saved after every update, and every span is an entity, so that outputs have some.
    """
    if not (folder / "encoder").exists():
        make_encoder(folder / "encoder")
        _write_corpus(folder / "train.jsonl", sentences)
    values: dict[str, dict[str, Any]] = {
        "data": {"train": str(folder / "train.jsonl"), "dev": str(folder / "train.jsonl")},
        "encoder": {"name": str(folder / "encoder"), "context": 2, "max_subwords": 100},
        "diffusion": {"spans": 8, "timesteps": 100},
        "decoder": {"heads": 4, "feedforward": 32, "layers": 1},
        "training": {
            "output": output,
            "epochs": 2,
            "frozen_epochs": 1,
            "batch_size": 4,
            "learning_rate": 5e-3,
            "checkpoint_minutes": 0,
        },
        "inference": {"phi": 0.0, "overlap": "all", "spans": 6},
    }
    path = folder / f"{Path(output).name}.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def _write_corpus(path: Path, sentences: int) -> None:
    draw = random.Random(0)
    lines = []
    for _ in range(sentences):
        name, place = draw.choice(NAMES).split(), draw.choice(PLACES).split()
        tokens = [*name, "went", "to", *place, "."]
        entities = [
            {"start": 0, "end": len(name), "label": "PER"},
            {"start": len(name) + 2, "end": len(tokens) - 1, "label": "LOC"},
        ]
        lines.append(json.dumps({"tokens": tokens, "entities": entities}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def write_texts(path: Path, count: int) -> None:
    """Write texts to annotate, in documents of one to nine."""
    draw = random.Random(1)
    doc, left = 0, 0
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            if not left:
                doc, left = doc + 1, draw.randint(1, 9)
            left -= 1
            text = f"{draw.choice(NAMES)} met {draw.choice(NAMES)} in {draw.choice(PLACES)}."
            file.write(json.dumps({"id": number, "text": text, "doc": doc}) + "\n")
