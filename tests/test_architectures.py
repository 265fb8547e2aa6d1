"""Encoders of every supported architecture: tokenised, masked, trained and saved.

The oracle is transformers: its tokenizers on split words, its models on the same padded inputs.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES, SENTENCES, TEXT, WORDS, write_encoder
from plain import plain_encoder, plain_settings
from test_recorded_decoding import Again, gpu_model_on_cpu
from transformers import AutoModel, AutoTokenizer

from diffusionner import DiffusionNER
from diffusionner.batching import EncodedCorpus
from diffusionner.batching.subwords import MAX_SUBWORDS_PER_WORD, SubwordTokenizer
from diffusionner.corpus import Sentence, Span
from diffusionner.inference.gpu.encoding import can_pack
from diffusionner.inference.torch_engine import TorchEngine
from diffusionner.model.bert import Bert
from diffusionner.model.encoder import SentenceEncoder
from diffusionner.settings import EncoderSettings, Settings
from diffusionner.storage.encoders import load_pretrained, load_tokenizer
from diffusionner.training.trainer import Trainer
from models import assert_same, lively_model

BYTE_LEVEL = ("roberta", "modernbert")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write_encoder(name, tmp_path_factory.mktemp(name)) for name in ARCHITECTURES}


@pytest.fixture(params=ARCHITECTURES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def encoder(name: str, folders: dict[str, Path]) -> Path:
    return folders[name]


def by_word(encoding: object, words: int) -> list[list[int]]:
    """Group the subwords of a batch encoding of transformers by their word."""
    groups: list[list[int]] = [[] for _ in range(words)]
    for subword, word in zip(encoding.input_ids, encoding.word_ids(), strict=True):
        if word is not None:
            groups[word].append(subword)
    return groups


def test_the_documentation_lists_the_tested_architectures():
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "train.md").read_text(encoding="utf-8")
    table = page.partition("| encoder | `model_type` |")[2].partition("\n\n")[0]
    listed = [row.split("`")[1] for row in table.splitlines() if "`" in row]
    assert set(listed) == {model_type for model_type, _, _ in ARCHITECTURES.values()}


# Subwords


def test_subwords_equal_those_of_the_library(name, encoder):
    tokenizer = load_tokenizer(encoder, 64)
    theirs = AutoTokenizer.from_pretrained(encoder, add_prefix_space=True)
    expected = by_word(theirs(WORDS, is_split_into_words=True), len(WORDS))
    if name == "modernbert":  # its class has no such argument: each word after a space
        texts = [word if word in theirs.all_special_tokens else f" {word}" for word in WORDS]
        expected = theirs(texts, add_special_tokens=False).input_ids
    assert max(map(len, expected)) > 4
    # A word that the tokenizer deletes becomes the unknown token: every word needs a state.
    expected = [subwords or [theirs.unk_token_id] for subwords in expected]
    assert [one.tolist() for one in tokenizer.subwords_of_each(WORDS)] == expected
    long = [one.tolist() for one in tokenizer.subwords_of_each(["ab" * 200, "." * 200])]
    whole = by_word(tokenizer.hf(["ab" * 200, "." * 200], is_split_into_words=True), 2)
    assert long == [one[:MAX_SUBWORDS_PER_WORD] for one in whole] and len(long[1]) == 100


def test_words_of_running_text_have_the_same_subwords(name, encoder):
    """The only difference: in byte-level BPE, the first word of a text has no space before it."""
    tokenizer = load_tokenizer(encoder, 64)
    theirs = AutoTokenizer.from_pretrained(encoder)
    words = [word for word in TEXT if word.isalpha()]
    text = theirs(" ".join(words), add_special_tokens=False).input_ids
    single = [one.tolist() for one in tokenizer.subwords_of_each(words)]
    if name in BYTE_LEVEL:
        assert single[0] != theirs(words[0], add_special_tokens=False).input_ids
        text = theirs(" " + " ".join(words), add_special_tokens=False).input_ids
    assert [subword for word in single for subword in word] == text


def test_batches_equal_those_of_the_library(name, encoder):
    tokenizer = load_tokenizer(encoder, 64)
    corpus = EncodedCorpus([Sentence(words) for words in SENTENCES], tokenizer, plain_encoder())
    batch = corpus.batch(np.arange(len(SENTENCES)))
    theirs = tokenizer.hf(SENTENCES, is_split_into_words=True, padding=True, return_tensors="np")
    assert np.array_equal(batch.subwords, theirs["input_ids"])
    assert np.array_equal(batch.attention, theirs["attention_mask"])
    assert not theirs.get("token_type_ids", np.zeros(1)).any()  # the models' default
    assert tokenizer.limit == 64


def test_a_sequence_of_pre_tokenizers_gets_one_space_for_each_word(folders, tmp_path):
    """As in Llama 3 and EuroBERT, where the byte level follows a split into parts of words."""
    for file in folders["modernbert"].glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    parts = json.loads((tmp_path / "tokenizer.json").read_text())
    split = {"type": "Punctuation", "behavior": "Isolated"}
    byte_level = parts["pre_tokenizer"] | {"use_regex": False}
    parts["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(parts))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    found = load_tokenizer(tmp_path, 64).subwords_of_each(["Ada", "New-York", "didn't"])
    for word, subwords in zip(("Ada", "New-York", "didn't"), found, strict=True):
        assert subwords.tolist() == theirs(f" {word}", add_special_tokens=False).input_ids


# States


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_states_equal_those_of_the_library(name, encoder, device, monkeypatch):
    """cuda: with the mask of a GPU, which an export gets too."""
    transformer, tokenizer = load_pretrained(EncoderSettings(str(encoder)))
    settings = plain_encoder(pooling="first", lstm_layers=0)
    ours = SentenceEncoder(transformer, settings).eval()
    theirs = AutoModel.from_pretrained(encoder).eval()
    corpus = EncodedCorpus([Sentence(words) for words in SENTENCES], tokenizer, settings)
    batch = corpus.batch(np.arange(len(SENTENCES))).map(torch.from_numpy)
    inputs = tokenizer.hf(SENTENCES, is_split_into_words=True, padding=True, return_tensors="pt")
    given: list[torch.Tensor] = []
    transformer.register_forward_pre_hook(
        lambda _, args, kwargs: given.append(kwargs["attention_mask"]), with_kwargs=True
    )
    with torch.no_grad():
        expected = theirs(**inputs).last_hidden_state
        monkeypatch.setattr(torch.compiler, "is_exporting", lambda: device == "cuda")
        found = ours.pooled(batch)
    one_mask = device == "cuda" and name in ("bert", "electra", "roberta", "xlm-roberta")
    assert given[0].dim() == (4 if one_mask else 2)
    for i, words in enumerate(SENTENCES):
        first = batch.first[i, : len(words)]
        assert torch.allclose(found[i, : len(words)], expected[i, first], atol=1e-5)
    assert expected.std() > 0.5


def test_the_sliding_window_matters(folders):
    """Otherwise the tests above would pass without it."""
    theirs = AutoModel.from_pretrained(folders["modernbert"]).eval()
    wide = AutoModel.from_pretrained(folders["modernbert"], local_attention=64).eval()
    ids = torch.arange(10, 30)[None]
    with torch.no_grad():
        apart = theirs(input_ids=ids)[0] - wide(input_ids=ids)[0]
    assert apart.abs().max() > 0.1


def test_a_gpu_packs_bert_only(name, encoder, tmp_path):
    """Other encoders run padded, and find the same entities."""
    ner = lively_model(encoder, "encoder.max_subwords=64")
    ner.save_pretrained(tmp_path)
    plain = DiffusionNER.from_pretrained(tmp_path, "cpu")
    assert isinstance(plain.encoder.transformer, Bert) == (name == "bert")
    assert not can_pack(plain.encoder)
    expected = plain.predict_tokens(SENTENCES)
    assert any(expected)
    assert_same(gpu_model_on_cpu(plain, Again(), 1).predict_tokens(SENTENCES), expected)


# Training, saving, loading


def one_update(encoder: Path, folder: Path, *changes: str) -> Settings:
    return plain_settings(
        {
            "encoder": {
                "name": str(encoder),
                "character_filters": 8,
                "lstm_layers": 1,
                "max_subwords": 64,
            },
            "diffusion": {"spans": 8, "timesteps": 100},
            "decoder": {"heads": 4, "feedforward": 32},
            "training": {
                "output": str(folder / "run"),
                "epochs": 1,
                "frozen_epochs": 0,
                "batch_size": 4,
                "ema": 0,
                "encoder_learning_rate": 1e-2,
                "learning_rate": 1e-2,
            },
            "inference": {"steps": 1, "spans": 8, "phi": 0, "overlap": "all"},
        }
    ).override(changes)


def run_data() -> object:
    from diffusionner.training.data import RunData

    train = [Sentence(words, [Span(0, 1, "PER")]) for words in SENTENCES]
    return RunData(train, [], [], ["PER"])


def test_a_trained_model_is_loaded_as_it_was(encoder, tmp_path):
    settings = one_update(encoder, tmp_path)
    before = AutoModel.from_pretrained(encoder).state_dict()
    trainer = Trainer(settings, data=run_data())
    trainer.run()
    changed = trainer.network.encoder.transformer.state_dict()
    assert sum(not torch.equal(before[key], changed[key]) for key in changed) > len(changed) / 2
    with torch.no_grad():
        trainer.network.decoder.classifier[-1].bias[-1] = -1000  # never "no entity"
    trained = DiffusionNER(TorchEngine(trainer.network.eval()), trainer.tokenizer, settings)
    trained.save_pretrained(tmp_path / "saved")
    loaded = DiffusionNER.from_pretrained(tmp_path / "saved", "cpu")
    expected = trained.predict_tokens([*SENTENCES, WORDS])
    assert any(expected)
    assert_same(loaded.predict_tokens([*SENTENCES, WORDS]), expected)
    for part in ("prefix", "suffix", "pad", "unknown", "limit"):
        assert getattr(loaded.subwords, part) == getattr(trainer.tokenizer, part)
    # The tokenizer of a further training, and the one that users see.
    for other in (
        load_tokenizer(tmp_path / "saved", 64),
        SubwordTokenizer.from_hf(loaded.tokenizer, 64),
    ):
        for one, two in zip(
            other.subwords_of_each(WORDS), loaded.subwords.subwords_of_each(WORDS), strict=True
        ):
            assert one.tolist() == two.tolist()
