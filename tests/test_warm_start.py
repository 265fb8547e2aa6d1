"""Training that starts from a trained model instead of an encoder alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from diffusionner import DiffusionNER, formats
from diffusionner.corpus import Sentence
from diffusionner.errors import EncoderError
from diffusionner.training.trainer import Trainer


@pytest.fixture
def trained(tiny_settings) -> Path:
    Trainer(tiny_settings.override(["training.epochs=1", "training.frozen_epochs=0"])).run()
    return Path(tiny_settings.training.output)


def initial(settings, folder: Path, *changes: str) -> dict[str, torch.Tensor]:
    """Return the weights before the first update."""
    output = f"training.output={folder.parent / 'again'}"
    again = settings.override([f"encoder.name={folder}", output, *changes])
    return Trainer(again, resume=False).network.state_dict()


def test_all_weights_are_reused(tiny_settings, trained):
    weights = load_file(trained / "model.safetensors")
    found = initial(tiny_settings, trained)
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_weights_of_types_are_not_reused_if_labels_differ(tiny_settings, trained, tmp_path):
    sentences = formats.read(tiny_settings.data.train)
    for sentence in sentences:
        sentence.entities = [e._replace(label=e.label[::-1]) for e in sentence.entities]
    other = tmp_path / "other.jsonl"
    formats.write(other, sentences)
    weights = load_file(trained / "model.safetensors")
    found = initial(tiny_settings, trained, f"data.train={other}")
    differing = {name for name in weights if not torch.equal(found[name], weights[name])}
    assert differing == {"decoder.classifier.3.weight", "decoder.classifier.3.bias"}


def test_weights_of_other_shapes_are_not_reused(tiny_settings, trained):
    weights = load_file(trained / "model.safetensors")
    found = initial(tiny_settings, trained, "decoder.feedforward=48", "decoder.layers=2")
    assert set(found) > set(weights)
    for name in weights:
        same_shape = found[name].shape == weights[name].shape
        assert same_shape != (".feedforwards." in name and "3.bias" not in name), name
        assert not same_shape or torch.equal(found[name], weights[name]), name


def test_start_from_an_int8_model(tiny_settings, trained, tmp_path):
    DiffusionNER.from_pretrained(trained).save_pretrained(tmp_path / "packed", precision="int8")
    weights = load_file(trained / "model.safetensors")
    found = initial(tiny_settings, tmp_path / "packed")
    name = "encoder.transformer.embeddings.word_embeddings.weight"
    assert torch.allclose(found[name], weights[name], atol=0.01)
    assert not torch.equal(found[name], weights[name])


def test_the_run_saves_a_model(tiny_settings, trained):
    output = trained.parent / "again"
    Trainer(tiny_settings.override([f"encoder.name={trained}", f"training.output={output}"])).run()
    assert DiffusionNER.from_pretrained(output).predict_sentences([Sentence(["Ada"])])


def test_a_damaged_model_is_an_error(tiny_settings, trained):
    (trained / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(EncoderError, match="cannot load the encoder of"):
        initial(tiny_settings, trained)
