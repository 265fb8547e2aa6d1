"""Encoders of other architectures, exported: with their own masks, or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from architectures import SENTENCES, write_encoder
from safetensors.torch import save_file

from diffusionner.batching import EncodedCorpus
from diffusionner.corpus import Sentence, Span
from diffusionner.export import ExportError, export
from diffusionner.export.graphs import INPUTS, write_graphs
from diffusionner.inference.onnx_engine import encoder_inputs
from diffusionner.inference.onnx_graph import Graph
from diffusionner.storage.config import ENCODER_FILE, WEIGHTS
from diffusionner.storage.initializers import Initializers
from models import lively_model


@pytest.mark.parametrize("name", ["mpnet", "modernbert"])
def test_exported_encoders_equal_the_network(name, tmp_path):
    """With sentences longer than those of the export, and than the window of ModernBERT."""
    ner = lively_model(
        write_encoder(name, tmp_path / "encoder"),
        "encoder.max_subwords=64",
        "encoder.pooling=first",
        "encoder.lstm_layers=0",
        "encoder.character_filters=0",
        "decoder.initializer=none",
        "decoder.layers=0",
    )
    write_graphs(ner, tmp_path)
    corpus = EncodedCorpus([Sentence(s) for s in SENTENCES], ner.subwords, ner.settings.encoder)
    batch = corpus.batch(np.arange(len(corpus)))
    with torch.no_grad():
        expected = ner.network.encode(batch.map(torch.from_numpy)).states.numpy()
    save_file(ner.network.state_dict(), tmp_path / WEIGHTS)
    encoder = Graph(tmp_path / ENCODER_FILE, Initializers(tmp_path / WEIGHTS))
    found = encoder.run(encoder_inputs(batch))["states"]
    assert set(encoder.inputs) <= set(INPUTS)
    real = np.arange(expected.shape[1]) < batch.lengths[:, None]
    assert np.abs(found - expected)[real].max() < 1e-4 * expected.std()


def test_an_encoder_that_torch_cannot_export_is_refused(tmp_path):
    ner = lively_model(
        write_encoder("longformer", tmp_path / "encoder"),
        "encoder.max_subwords=64",
        "encoder.lstm_layers=0",
        "decoder.layers=0",
    )
    found = ner.predict_tokens(SENTENCES)
    dev = [
        Sentence(words, [Span(e.start, e.end, e.label) for e in entities])
        for words, entities in zip(SENTENCES, found, strict=True)
    ]
    with pytest.raises(ExportError, match="encoder is a longformer, to ONNX; nothing was written"):
        export(ner, tmp_path / "exported", dev)
    assert not (tmp_path / "exported").exists()
