"""The encoder as a GPU runs it, without padding and recorded; the logic anywhere."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import EXCERPT
from test_recorded_decoding import Again
from torch import Tensor
from torch.nn import functional as F

import reproduce.rivals  # noqa: F401  (registers the rivals)
from benchmarks.subjects import Subject
from benchmarks.throughput import Loaded, encoder_task
from diffusionner import DiffusionNER, formats
from diffusionner.batching import Batch, EncodedCorpus
from diffusionner.inference.gpu.encoding import PackedTransformer, can_pack
from diffusionner.inference.torch_engine import Lane, TorchEngine
from diffusionner.methods import network_class
from diffusionner.model import bert
from diffusionner.model.tensors import batch_to_device
from models import assert_same, lively_model

SENTENCES = formats.read(EXCERPT)
WORDS = [s.words for s in SENTENCES]
ENTITIES_OF_TYPES = "decoder.initializer=types"
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="flash attention needs a GPU")


def attend_by_mask(
    boundaries: Tensor, longest: int, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """Stands for flash attention: the same with a mask over all sentences, and nothing sensible
    behind the last of them."""
    assert boundaries.dtype == torch.int32 and longest >= boundaries.diff().max()
    place = torch.arange(len(query), dtype=torch.int32)
    sentence = torch.searchsorted(boundaries, place, right=True)
    behind = (place >= boundaries[-1])[:, None, None]
    parts = (x.masked_fill(behind, 0.0).transpose(0, 1)[None] for x in (query, key, value))
    mask = sentence[:, None] == sentence
    attended = F.scaled_dot_product_attention(*parts, attn_mask=mask)[0].transpose(0, 1)
    return attended.masked_fill(behind, torch.nan)


@pytest.fixture
def on_a_cpu(monkeypatch) -> None:
    monkeypatch.setattr(bert, "_attend_packed", attend_by_mask)


def trained(encoder_folder: Path, folder: Path, *settings: str) -> Path:
    lively_model(encoder_folder, *settings).save_pretrained(folder)
    return folder


def some_batches(ner: DiffusionNER) -> list[Batch[np.ndarray]]:
    corpus = EncodedCorpus(SENTENCES[:40], ner.subwords, ner.settings.encoder)
    return [corpus.batch(chosen, 8) for chosen in corpus.sorted_batches(8, range(40), 8)]


@pytest.mark.parametrize("pooling", ["max", "mean", "first"])
@pytest.mark.parametrize("context", [0, 1])
def test_words_are_those_of_padded_sentences(encoder_folder, tmp_path, on_a_cpu, pooling, context):
    folder = trained(
        encoder_folder, tmp_path, f"encoder.pooling={pooling}", f"encoder.context={context}"
    )
    ner = DiffusionNER.from_pretrained(folder, "cpu")
    again = Again()
    plain, recorded = (PackedTransformer(ner.encoder, record) for record in (None, again))
    with torch.inference_mode():
        for _ in range(3):
            for batch in some_batches(ner):
                tensors = batch_to_device(batch, torch.device("cpu"))
                real = torch.arange(batch.first.shape[1]) < tensors.lengths[:, None]
                expected = ner.encoder.pooled(tensors)[real]
                assert expected.std() > 0.1
                for packed in (plain, recorded):
                    assert torch.allclose(packed(batch)[real], expected, atol=1e-5)
    assert again.replays > again.recordings > 0


def test_what_is_found_is_the_same(encoder_folder, tmp_path, on_a_cpu):
    folder = trained(encoder_folder, tmp_path, *ENTITIES_OF_TYPES)
    plain, packed = (DiffusionNER.from_pretrained(folder, "cpu") for _ in range(2))
    engine, again = packed.engine, Again()
    engine.transformer = PackedTransformer(engine.running.encoder, again)
    engine.lanes = [Lane.recorded(engine.running, again, seen) for seen in [Counter()] * 2]
    for options in ({"steps": 3}, {"start": "noise", "spans": 9, "steps": 2, "eta": 0.5}):
        expected = plain.predict_tokens(WORDS, batch_size=16, **options)
        assert sum(map(len, expected)) > len(WORDS)
        for _ in range(3):
            assert_same(packed.predict_tokens(WORDS, batch_size=16, **options), expected)
    assert all(lane.recordings for lane in engine.lanes) and len(engine.transformer.recordings)


def test_a_rival_is_packed_and_recorded_too(encoder_folder, tmp_path, on_a_cpu):
    ner = DiffusionNER.from_pretrained(trained(encoder_folder, tmp_path), "cpu")
    settings = ner.settings.override(["method=biaffine"])
    torch.manual_seed(0)
    network = network_class("biaffine")(ner.encoder.transformer, ner.labels, settings).eval()
    plain, packed = (
        DiffusionNER(TorchEngine(network, "cpu"), ner.subwords, settings) for _ in range(2)
    )
    engine = packed.engine
    engine.transformer = PackedTransformer(network.encoder, Again())
    engine.lanes = [Lane.recorded(network, Again(), Counter())]
    expected = plain.predict_tokens(WORDS[:40], batch_size=8)
    assert sum(map(len, expected))
    for _ in range(3):
        assert_same(packed.predict_tokens(WORDS[:40], batch_size=8), expected)
    assert engine.lanes[0].context.count and engine.lanes[0].graphs.count


def test_the_bench_measures_the_encoder_that_runs(encoder_folder, tmp_path, on_a_cpu):
    subject = Subject("tiny", trained(encoder_folder, tmp_path), "cpu")
    loaded = Loaded(subject, "float32", subject.load())
    again = Again()
    loaded.ner.engine.transformer = PackedTransformer(loaded.ner.encoder, again)
    run = encoder_task(loaded, SENTENCES[:40], batch_size=8)
    for _ in range(3):
        run()
    assert again.replays > again.recordings > 0


def test_a_cpu_pads(encoder_folder, tmp_path):
    ner = DiffusionNER.from_pretrained(trained(encoder_folder, tmp_path), "cpu")
    assert not can_pack(ner.encoder) and ner.engine.transformer is None


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("graphed", [False, True])
def test_a_gpu_finds_the_same_words(graphed):
    """In 16 bits, so nearly."""
    ner = DiffusionNER.from_pretrained("bio", "cuda", cuda_graphs=graphed)
    packed, encoder = ner.engine.transformer, ner.engine.running.encoder
    assert packed is not None
    with torch.inference_mode():
        for _ in range(3):
            for batch in some_batches(ner):
                tensors = batch_to_device(batch, torch.device("cuda"))
                real = torch.arange(batch.first.shape[1]).cuda() < tensors.lengths[:, None]
                expected, found = encoder.pooled(tensors)[real], packed(batch)[real]
                difference = (found - expected).float().abs().mean(-1)  # of each word
                assert difference.max() < 0.1 * expected.float().std()
                assert difference.mean() < 0.02 * expected.float().std()
    assert bool(len(packed.recordings)) == graphed
