"""Adapting an encoder to a domain by guessing masked subwords."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from corpora import EXCERPT
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoTokenizer, ElectraConfig, ElectraModel, GPT2Config, GPT2Model

from diffusionner import formats
from diffusionner.corpus import Sentence
from diffusionner.errors import DataError, EncoderError, SettingsError, TrainingDiverged, WriteError
from diffusionner.model.pretrained import load_encoder, load_tokenizer
from diffusionner.training.adaptation import (
    IGNORED,
    AdaptationSettings,
    Guesser,
    Masking,
    adapt,
    pack_blocks,
    with_head,
)
from diffusionner.training.trainer import train

QUICK = AdaptationSettings(epochs=1, batch_size=8)
CLS, SEP, MASK = 2, 3, 4


@pytest.fixture(scope="module")
def sentences() -> list[Sentence]:
    return formats.read(EXCERPT)[:30]


@pytest.fixture(scope="module")
def subwords(encoder_folder):
    return load_tokenizer(encoder_folder, 128)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def differ(one: Path, other: Path) -> bool:
    ours, theirs = weights(one), weights(other)
    return any(not torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_text_is_learned_by_heart(still_encoder, tmp_path):
    verse = [Sentence("the cat sat on the mat and the dog ran off".split())] * 60
    settings = AdaptationSettings(epochs=30, batch_size=4, learning_rate=5e-3)
    epochs = adapt(tmp_path / "out", str(still_encoder), verse, settings)
    assert epochs[0].perplexity > 10
    assert epochs[-1].perplexity < 2
    assert epochs[-1].loss < epochs[0].loss
    lines = (tmp_path / "out" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["perplexity"] for line in lines] == [e.perplexity for e in epochs]


def test_the_command_writes_an_encoder_to_train_on(
    cli, encoder_folder, tiny_settings, sentences, tmp_path
):
    corpora = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, part in zip(corpora, (sentences[:15], sentences[15:]), strict=True):
        formats.write(path, part)
    out = tmp_path / "out"
    texts = [argument for path in corpora for argument in ("--text", path)]
    done = cli("adapt", out, "--encoder", encoder_folder, *texts, "--epochs", 2)
    assert done.status == 0, done.err
    assert "perplexity on held-out text: " in done.out
    assert [line[:8] for line in done.err.splitlines()] == ["epoch 1:", "epoch 2:"]
    assert not list(tmp_path.glob(".*"))  # no partial folder is left

    loaded = load_encoder(str(out)).state_dict()
    assert loaded.keys() == load_encoder(str(encoder_folder)).state_dict().keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights(out).items())
    old = load_tokenizer(encoder_folder, 128).pieces_of_each(["Ada"])[0]
    assert load_tokenizer(out, 128).pieces_of_each(["Ada"])[0].tolist() == old.tolist()
    train(tiny_settings.override([f"encoder.name={out}", "training.epochs=1"]))
    assert (Path(tiny_settings.training.output) / "model.safetensors").exists()


def test_a_trained_model_has_an_encoder_to_adapt(folder, sentences, tmp_path):
    adapt(tmp_path / "out", str(folder), sentences, QUICK)
    names = {name.removeprefix("encoder.transformer.") for name in weights(folder)}
    assert weights(tmp_path / "out").keys() <= names


def test_the_seed_decides_everything(encoder_folder, sentences, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        settings = AdaptationSettings(epochs=1, batch_size=8, seed=seed)
        adapt(tmp_path / name, str(encoder_folder), sentences, settings)
    assert not differ(tmp_path / "a", tmp_path / "b")
    assert differ(tmp_path / "a", tmp_path / "c")


def test_blocks_hold_the_whole_text_in_order(subwords):
    letters = {"a": 60, "b": 60, "c": 300, "d": 10, "e": 120}  # one subword each
    blocks = pack_blocks([Sentence([letter] * n) for letter, n in letters.items()], subwords)
    assert blocks.ids.shape == (5, 128)
    known = {letter: int(subwords.pieces_of_each([letter])[0][0]) for letter in letters}
    expected = ["a" * 60 + "b" * 60, "c" * 126, "c" * 126, "c" * 48 + "d" * 10, "e" * 120]
    for row, text in zip(blocks.ids.tolist(), expected, strict=True):
        full = [CLS, *(known[letter] for letter in text), SEP]
        assert row == full + [subwords.pad] * (128 - len(full))
    assert blocks.attention().sum(1).tolist() == [len(text) + 2 for text in expected]
    assert blocks.text.sum(1).tolist() == [len(text) for text in expected]


def test_masks_spare_what_is_no_text(sentences, subwords):
    blocks = pack_blocks([*sentences, Sentence(["a", "b", "日", "c"])], subwords)
    masking = Masking.of(subwords, 0.15, "tiny")
    masked = masking.apply(blocks, torch.Generator().manual_seed(0))
    special = ~blocks.text
    assert special.sum() > 2 * len(blocks)
    assert torch.equal(masked.ids[special], blocks.ids.long()[special])
    assert set(blocks.ids[special].tolist()) == {subwords.pad, subwords.unknown, CLS, SEP}
    guessed = masked.targets != IGNORED
    picked = masked.positions[guessed]
    rows = torch.arange(len(blocks))[:, None].expand_as(masked.positions)[guessed]
    assert blocks.text[rows, picked].all()
    assert torch.equal(blocks.ids.long()[rows, picked], masked.targets[guessed])
    changed = masked.ids != blocks.ids
    changed[rows, picked] = False
    assert not changed.any()  # nothing but what is to be guessed
    other = masking.apply(blocks, torch.Generator().manual_seed(1))
    assert not torch.equal(other.ids, masked.ids)


@pytest.mark.parametrize("share", [0.15, 0.4])
def test_the_share_of_masks_is_right(share, sentences, subwords):
    blocks = pack_blocks(sentences * 20, subwords)
    masked = Masking.of(subwords, share, "tiny").apply(blocks, torch.Generator().manual_seed(0))
    guessed = masked.targets != IGNORED
    assert guessed.sum() / blocks.text.sum() == pytest.approx(share, abs=0.005)
    now = masked.ids.gather(1, masked.positions)[guessed]
    assert (now == MASK).float().mean() == pytest.approx(0.8, abs=0.03)
    assert (now == masked.targets[guessed]).float().mean() == pytest.approx(0.1, abs=0.02)


def test_only_guessed_positions_meet_the_head(encoder_folder, sentences, subwords):
    """The loss is that of the whole model's own forward pass, with an untied width too."""
    blocks = pack_blocks(sentences, subwords)
    masked = Masking.of(subwords, 0.15, "tiny").apply(blocks, torch.Generator().manual_seed(0))
    narrow = ElectraConfig(
        vocab_size=200, embedding_size=16, hidden_size=32, num_hidden_layers=1,
        num_attention_heads=4, intermediate_size=64,
    )  # fmt: skip
    for encoder in (load_encoder(str(encoder_folder)), ElectraModel(narrow)):
        model = with_head(encoder, "tiny").eval()
        assert model.get_output_embeddings().weight is encoder.get_input_embeddings().weight
        with torch.no_grad():
            logits = model(input_ids=masked.ids, attention_mask=masked.attention).logits
            targets = torch.full_like(masked.ids, IGNORED).scatter(
                1, masked.positions, masked.targets
            )
            whole = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="sum")
            assert torch.isclose(Guesser(model)(masked), whole, rtol=1e-4)


def test_what_is_there_stays(encoder_folder, sentences, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    with pytest.raises(WriteError, match="exists already"):
        adapt(tmp_path / "out", str(encoder_folder), sentences, QUICK)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "mine"]


def test_too_little_text(encoder_folder, tmp_path):
    with pytest.raises(DataError, match=r"too little text .* 1 sentences, 3 subwords"):
        adapt(tmp_path / "out", str(encoder_folder), [Sentence(["Ada"])], QUICK)
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_without_masks(encoder_folder, sentences, tmp_path):
    shutil.copytree(encoder_folder, tmp_path / "encoder")
    tokenizer = AutoTokenizer.from_pretrained(encoder_folder)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(tmp_path / "encoder")
    with pytest.raises(EncoderError, match="has no mask token"):
        adapt(tmp_path / "out", str(tmp_path / "encoder"), sentences, QUICK)


def test_an_architecture_that_guesses_no_masks():
    config = GPT2Config(vocab_size=200, n_embd=32, n_layer=1, n_head=4)
    with pytest.raises(EncoderError, match="encoder 'gpt' cannot be adapted"):
        with_head(GPT2Model(config), "gpt")


def test_divergence_is_told(encoder_folder, sentences, tmp_path):
    settings = AdaptationSettings(epochs=3, batch_size=4, learning_rate=1e30)
    with pytest.raises(TrainingDiverged, match="lower --learning-rate"):
        adapt(tmp_path / "out", str(encoder_folder), sentences, settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change", [{"epochs": 0}, {"batch_size": 0}, {"learning_rate": 0}, {"masked": 1}, {"seed": -1}]
)
def test_settings_are_checked(change):
    with pytest.raises(SettingsError, match=next(iter(change))):
        AdaptationSettings(**change)


def test_errors_of_the_command(refused, encoder_folder, make, tmp_path):
    start = ("adapt", tmp_path / "out", "--encoder")
    assert "no such file" in refused(*start, encoder_folder, "--text", tmp_path / "none.jsonl")
    assert "no sentences" in refused(*start, encoder_folder, "--text", make("a.jsonl", ""))
    assert "unknown format" in refused(
        *start, encoder_folder, "--text", EXCERPT, "--format", "jsonn"
    )
    assert "cannot load the encoder" in refused(*start, tmp_path / "none", "--text", EXCERPT)
    assert "device 'gpu' cannot be used" in refused(
        *start, encoder_folder, "--text", EXCERPT, "--device", "gpu"
    )
