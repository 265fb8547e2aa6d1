"""Weights stored in fewer bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from diffusionner import DiffusionNER
from diffusionner.errors import CheckpointError, SettingsError
from diffusionner.storage.packing import pack, unpack
from models import lively_model


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    large = torch.randn(80, 100) * torch.logspace(-3, 1, 80)[:, None]  # rows of different scales
    large[3] = 0
    return {"large": large, "small": torch.randn(5, 6), "bias": torch.randn(80)}


def test_int8_is_a_quarter_and_close_in_every_row():
    packed = pack(weights(), "int8")
    assert packed["large"].dtype == torch.int8
    assert packed["small"].dtype == packed["bias"].dtype == torch.float16
    found = unpack(packed, "here")
    assert found.keys() == weights().keys()
    for name, expected in weights().items():
        assert found[name].dtype == torch.float32
        rows = expected.abs().amax(-1, keepdim=True)
        assert ((found[name] - expected).abs() <= rows / 253 + 1e-12).all()  # half a step of 127


@pytest.mark.parametrize(("precision", "error"), [("float32", 0), ("float16", 1e-2)])
def test_other_precisions_round_less(precision, error):
    found = unpack(pack(weights(), precision), "here")
    for name, expected in weights().items():
        assert torch.allclose(found[name], expected, atol=error, rtol=0)


def test_an_unknown_precision_is_refused():
    with pytest.raises(SettingsError, match="unknown precision 'int4'"):
        pack(weights(), "int4")


def test_a_missing_scale_is_named():
    packed = pack(weights(), "int8")
    del packed["large.scale"]
    with pytest.raises(CheckpointError, match="here: 'large' lacks a scale"):
        unpack(packed, "here")


def test_a_packed_model_predicts_almost_the_same(encoder_folder: Path, tmp_path: Path):
    ner = lively_model(encoder_folder)
    ner.save_pretrained(tmp_path / "whole")
    ner.save_pretrained(tmp_path / "packed", precision="int8")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "packed")]
    assert sizes[1] < 0.5 * sizes[0]
    stored = load_file(tmp_path / "packed" / "model.safetensors")
    assert any(tensor.dtype == torch.int8 for tensor in stored.values())
    packed = DiffusionNER.from_pretrained(tmp_path / "packed")
    text = "Ada Lovelace met Charles Babbage in London ."
    one, other = ner(text, phi=0.0), packed(text, phi=0.0)
    assert one and abs(len(one) - len(other)) <= 2
    assert abs(one[0].score - other[0].score) < 0.05
