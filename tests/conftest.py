"""A tiny encoder with random weights: real transformers code, no download, milliseconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from diffusionner import formats
from diffusionner.corpus import Sentence
from diffusionner.settings import Settings

EXCERPT = Path(__file__).parent / "excerpt" / "litbank.jsonl"


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """The tensors here are so small that threads cost more than they save."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers and 32 dimensions whose WordPiece vocabulary is single characters."""
    folder = tmp_path_factory.mktemp("encoder")
    characters = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {
        token: i for i, token in enumerate(special + characters + ["##" + c for c in characters])
    }
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
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def nested_sentences() -> list[Sentence]:
    """32 sentences of the LitBank excerpt, every one with entities, many nested."""
    chosen = [s for s in formats.read(EXCERPT) if len(s.entities) > 1]
    return [s for s in chosen if len(s.words) <= 25][:32]


@pytest.fixture
def tiny_settings(encoder_folder: Path, tmp_path: Path) -> Settings:
    """A run of seconds on the excerpt: override what a test is about."""
    train = tmp_path / "train.jsonl"
    lines = EXCERPT.read_text(encoding="utf-8").splitlines()[:24]
    train.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Settings.from_dict(
        {
            "data": {"train": str(train), "dev_from_train": 8},
            "encoder": {
                "name": str(encoder_folder),
                "character_filters": 8,
                "lstm_layers": 1,
                "max_subwords": 128,
            },
            "diffusion": {"spans": 12, "timesteps": 100},
            "decoder": {"heads": 4, "feedforward": 32},
            "training": {
                "output": str(tmp_path / "run"),
                "epochs": 2,
                "frozen_epochs": 1,
                "batch_size": 4,
                "encoder_learning_rate": 1e-3,
                "learning_rate": 1e-3,
            },
            "inference": {"steps": 2, "spans": 12},
        }
    )


def entities_of(path: Path) -> list[list[dict[str, object]]]:
    """The `entities` of every line of a JSONL file."""
    return [json.loads(line)["entities"] for line in path.read_text(encoding="utf-8").splitlines()]
