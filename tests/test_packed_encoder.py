"""The encoder of a GPU, without padding and recorded: on any machine with stand-ins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from corpus_files import EXCERPT
from test_recorded_decoding import Again, gpu_model_on_cpu
from torch import Tensor
from torch.nn import functional as F

import reproduce.rivals  # noqa: F401  (registers the rivals)
from benchmarks.subjects import Subject
from benchmarks.throughput import Loaded, encoder_task
from diffusionner import DiffusionNER, formats
from diffusionner.batching import Batch, EncodedCorpus
from diffusionner.inference.gpu.encoding import PackedTransformer, can_pack
from diffusionner.inference.torch_engine import TorchEngine
from diffusionner.methods import network_class
from diffusionner.model import bert
from diffusionner.model.tensors import batch_to_device
from models import assert_same, lively_model

SENTENCES = formats.read(EXCERPT)
WORDS = [s.words for s in SENTENCES]
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="flash attention needs a GPU")


def attend_by_mask(
    boundaries: Tensor, longest: int, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """Stand-in for flash attention: masked over all sentences, NaN after the last of them."""
    assert boundaries.dtype == torch.int32 and longest >= boundaries.diff().max()
    position = torch.arange(len(query), dtype=torch.int32)
    sentence = torch.searchsorted(boundaries, position, right=True)
    after_last = (position >= boundaries[-1])[:, None, None]
    parts = (x.masked_fill(after_last, 0.0).transpose(0, 1)[None] for x in (query, key, value))
    mask = sentence[:, None] == sentence
    attended = F.scaled_dot_product_attention(*parts, attn_mask=mask)[0].transpose(0, 1)
    return attended.masked_fill(after_last, torch.nan)


@pytest.fixture
def packed_on_cpu(monkeypatch) -> None:
    monkeypatch.setattr(bert, "_attend_packed", attend_by_mask)


def saved(encoder_folder: Path, folder: Path, *settings: str) -> Path:
    lively_model(encoder_folder, *settings).save_pretrained(folder)
    return folder


def some_batches(ner: DiffusionNER) -> list[Batch[np.ndarray]]:
    corpus = EncodedCorpus(SENTENCES[:40], ner.subwords, ner.settings.encoder)
    return [
        corpus.batch(chosen, (8, 1, 1, 1, 1)) for chosen in corpus.sorted_batches(8, range(40), 8)
    ]


@pytest.mark.parametrize("pooling", ["max", "mean", "first"])
@pytest.mark.parametrize("context", [0, 1])
def test_packed_words_equal_padded_words(encoder_folder, tmp_path, packed_on_cpu, pooling, context):
    folder = saved(
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


def packed(plain: DiffusionNER, lanes: int) -> DiffusionNER:
    """Return the model with the engine of a GPU, packed and recorded by stand-ins."""
    ner = gpu_model_on_cpu(plain, Again(), lanes)
    ner.engine.transformer = PackedTransformer(ner.encoder, Again())
    return ner


def test_packed_sentences_have_the_same_entities(encoder_folder, tmp_path, packed_on_cpu):
    folder = saved(encoder_folder, tmp_path, "decoder.initializer=types")
    plain = DiffusionNER.from_pretrained(folder, "cpu")
    ner = packed(plain, lanes=2)
    words = WORDS[:80]
    for options in ({"steps": 3}, {"start": "noise", "spans": 9, "steps": 2, "eta": 0.5}):
        expected = plain.predict_tokens(words, batch_size=16, **options)
        assert sum(map(len, expected)) > len(words)
        for _ in range(3):
            assert_same(ner.predict_tokens(words, batch_size=16, **options), expected)
    assert all(lane.recordings for lane in ner.engine.lanes)
    assert len(ner.engine.transformer.recordings)


def test_a_rival_is_packed_and_recorded_too(encoder_folder, tmp_path, packed_on_cpu):
    model = DiffusionNER.from_pretrained(saved(encoder_folder, tmp_path), "cpu")
    settings = model.settings.override(["method=biaffine"])
    torch.manual_seed(0)
    network = network_class("biaffine")(model.encoder.transformer, model.labels, settings).eval()
    plain = DiffusionNER(TorchEngine(network), model.subwords, settings)
    ner = packed(plain, lanes=1)
    expected = plain.predict_tokens(WORDS[:40], batch_size=8)
    assert sum(map(len, expected))
    for _ in range(3):
        assert_same(ner.predict_tokens(WORDS[:40], batch_size=8), expected)
    (lane,) = ner.engine.lanes
    assert len(lane.context.recordings) and len(lane.method.recordings)


def test_the_benchmark_measures_the_packed_encoder(encoder_folder, tmp_path, packed_on_cpu):
    subject = Subject("tiny", saved(encoder_folder, tmp_path), "cpu")
    loaded = Loaded(subject, "float32", packed(subject.load(), lanes=1))
    again = loaded.ner.engine.transformer.record
    run = encoder_task(loaded, SENTENCES[:40], batch_size=8)
    for _ in range(3):
        run()
    assert again.replays > again.recordings > 0


def test_a_cpu_cannot_pack(encoder_folder):
    assert not can_pack(lively_model(encoder_folder).encoder)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("graphed", [False, True])
def test_packed_words_are_close_to_padded_words_in_bf16(graphed):
    ner = DiffusionNER.from_pretrained("bio", "cuda", cuda_graphs=graphed)
    packed, encoder = ner.engine.transformer, ner.engine.running.encoder
    assert packed is not None
    with torch.inference_mode():
        for _ in range(3):
            for batch in some_batches(ner):
                tensors = batch_to_device(batch, torch.device("cuda"))
                real = torch.arange(batch.first.shape[1]).cuda() < tensors.lengths[:, None]
                expected, found = encoder.pooled(tensors)[real], packed(batch)[real]
                difference = (found - expected).float().abs().mean(-1)  # for each word
                assert difference.max() < 0.1 * expected.float().std()
                assert difference.mean() < 0.02 * expected.float().std()
    assert bool(len(packed.recordings)) == graphed
