"""Folders of pretrained encoders: unusable ones, and those that leave questions open."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from architectures import BERT_TOKENS, unigrams, word_pieces, write_encoder
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModel
from transformers.convert_slow_tokenizer import import_protobuf
from transformers.utils import is_sentencepiece_available

from diffusionner.errors import EncoderError
from diffusionner.settings import EncoderSettings, Settings
from diffusionner.storage.encoders import load_encoder, load_pretrained, load_tokenizer

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 200}


def tokens(folder: Path, words: list[str], cased: bool | None = None) -> list[list[str]]:
    tokenizer = load_tokenizer(folder, 64, cased=cased)
    return [
        tokenizer.hf.convert_ids_to_tokens(one.tolist())
        for one in tokenizer.subwords_of_each(words)
    ]


# Models that are not encoders


@pytest.mark.parametrize(
    "model_type", ["gpt2", "llama", "t5", "bart", "vit", "canine", "clip", "wav2vec2", "xlnet"]
)
def test_other_models_are_refused_before_their_weights_are_read(tmp_path, model_type):
    AutoConfig.for_model(model_type).save_pretrained(tmp_path)
    with pytest.raises(EncoderError, match=rf"\({model_type}\) is not an encoder that reads text"):
        load_encoder(str(tmp_path))


def test_a_causal_bert_is_refused(tmp_path):
    AutoConfig.for_model("bert", is_decoder=True).save_pretrained(tmp_path)
    with pytest.raises(EncoderError, match=r"\(bert\) is not an encoder that reads text in both"):
        load_encoder(str(tmp_path))


@pytest.mark.parametrize(
    ("model_type", "changes", "reason"),
    [
        ("fnet", {"intermediate_size": 32}, "depend on the padding"),
        ("perceiver", {"d_model": 16, "d_latents": 16, "num_latents": 4}, "cannot read subwords"),
    ],
)
def test_unsuitable_states_are_refused(tmp_path, model_type, changes, reason):
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **SMALL, **changes)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(EncoderError, match=rf"\({model_type}\) cannot be used .*{reason}"):
        load_encoder(str(tmp_path))


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    write_encoder("roberta", tmp_path / "roberta")
    folder = write_encoder("bert", tmp_path / "bert")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "roberta" / name, folder)
    with pytest.raises(EncoderError, match="belong to different models"):
        load_pretrained(EncoderSettings(str(folder)))


# Tokenizers


def test_a_character_tokenizer_is_refused(tmp_path):
    AutoConfig.for_model("canine").save_pretrained(tmp_path)
    with pytest.raises(EncoderError, match=r"\(CanineTokenizer\) has no fast version"):
        load_tokenizer(tmp_path, 64)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "deberta-v2", "xlm-roberta", "mpnet"])
def test_a_folder_without_a_vocabulary_is_refused(tmp_path, model_type):
    """Transformers would make a tokenizer for which every word is unknown."""
    AutoConfig.for_model(model_type).save_pretrained(tmp_path)
    with pytest.raises(EncoderError, match=r"(has no vocabulary; add|cannot load) the tokenizer"):
        load_tokenizer(tmp_path, 64)


def test_a_sentencepiece_model_is_converted_or_says_what_to_install(tmp_path):
    """DeBERTa-v3 is published with spm.model and without tokenizer.json."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    proto = import_protobuf().ModelProto()
    for token, score in unigrams(special, "[UNK]"):
        kind = 2 if token == "[UNK]" else 3 if token in special else 1  # unknown, control, normal
        proto.pieces.add(piece=token, score=score, type=kind)
    proto.trainer_spec.model_type, proto.trainer_spec.unk_id = 1, 3
    proto.normalizer_spec.name = "identity"
    (tmp_path / "spm.model").write_bytes(proto.SerializeToString())
    AutoConfig.for_model("deberta-v2").save_pretrained(tmp_path)
    if is_sentencepiece_available():
        assert tokens(tmp_path, ["met", "Ada"])[0][0].startswith("▁m")
    else:
        with pytest.raises(EncoderError, match="to convert it, run: pip install sentencepiece"):
            load_tokenizer(tmp_path, 64)


# Case


def bert_folder(folder: Path, cased: bool, **stated: object) -> Path:
    """Write vocab.txt and config.json only."""
    vocabulary = word_pieces([*BERT_TOKENS, "[unused1]", "<S>"], cased)
    lines = sorted(vocabulary, key=vocabulary.__getitem__)
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    AutoConfig.for_model("bert").save_pretrained(folder)
    if stated:
        (folder / "tokenizer_config.json").write_text(json.dumps(stated))
    return folder


def test_a_vocabulary_tells_its_case(tmp_path):
    for cased, said, expected in (
        (True, r"so words keep their case\. .*set encoder\.cased=false", "Ada"),
        (False, r"0% .* are lower-cased\. .*set encoder\.cased=true", "ada"),
    ):
        folder = bert_folder(tmp_path, cased)
        with pytest.warns(UserWarning, match=said):
            assert tokens(folder, ["Ada"]) == [[expected]]


@pytest.mark.parametrize("lower", [True, False])
def test_what_the_files_say_about_case_is_done(tmp_path, lower):
    folder = bert_folder(tmp_path, True, do_lower_case=lower)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = tokens(folder, ["London"])
    assert "".join(found).startswith("l" if lower else "L")


@pytest.mark.parametrize("name", ["bert", "mpnet", "roberta", "deberta-v3", "modernbert"])
@pytest.mark.parametrize("cased", [True, False])
def test_case_can_be_chosen(tmp_path, name, cased):
    """Whatever the tokenizer is; the files of the tokenizer keep the choice."""
    folder = write_encoder(name, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, tokenizer = load_pretrained(EncoderSettings(str(folder), cased=cased))
    upper, lower = (one.tolist() for one in tokenizer.subwords_of_each(["MET", "met"]))
    assert (upper == lower) != cased
    stored = Tokenizer.from_str(tokenizer.hf.backend_tokenizer.to_str())
    single = stored.encode(["MET"], is_pretokenized=True, add_special_tokens=False)
    assert single.ids == upper
    plain = load_tokenizer(folder, 64)  # punctuation, digits and the start of words stay
    for word in ("met", "1,234.5"):
        (one,), (other,) = (t.subwords_of_each([word]) for t in (plain, tokenizer))
        assert one.tolist() == other.tolist()


def test_settings_without_a_case_are_stored_as_before(tmp_path):
    assert "cased" not in Settings().to_dict()["encoder"]
    chosen = Settings().override(["encoder.cased=true"])
    assert chosen.to_dict()["encoder"]["cased"] is True
    assert Settings.from_dict(chosen.to_dict()).override(["encoder.cased=null"]) == Settings()
