"""Rivals run by recordings: on any machine with a stand-in, CUDA graphs on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from corpus_files import EXCERPT
from test_recorded_decoding import on_gpu, recordings, with_recordings

from diffusionner import DiffusionNER, formats
from diffusionner.batching import EncodedCorpus
from diffusionner.inference.refining import RefinementTask
from diffusionner.inference.stream import predict
from diffusionner.inference.torch_engine import TorchEngine
from diffusionner.methods import network_class
from diffusionner.refinement import PlacedSpan
from diffusionner.storage.encoders import load_encoder, load_tokenizer
from diffusionner.training.trainer import Trainer
from models import LABELS, assert_same, by_heart, lively_generator, lively_settings
from reproduce.rivals.autoregressive import ROUND, GeneratingNetwork

SENTENCES = formats.read(EXCERPT)
WORDS = [s.words for s in SENTENCES]
METHODS = ["crf", "biaffine", "queries", "autoregressive"]


def lively_rival(encoder_folder: Path, method: str, stop: float = -12.0) -> DiffusionNER:
    """Return a rival whose random weights find many entities.

    stop: log-odds that generation ends.
    """
    levels = ["options.levels=2"] if method == "crf" else []
    settings = lively_settings(encoder_folder, f"method={method}", *levels)
    torch.manual_seed(0)
    network = network_class(method)(load_encoder(str(encoder_folder)), LABELS, settings)
    if isinstance(network, GeneratingNetwork):
        lively_generator(network.generator, 3)
        with torch.no_grad():
            network.generator.stop.bias.fill_(stop)
    tokenizer = load_tokenizer(encoder_folder, limit=128)
    return DiffusionNER(TorchEngine(network.eval()), tokenizer, settings)


@pytest.mark.parametrize("method", METHODS)
def test_recordings_find_the_same_entities(encoder_folder, method):
    plain = lively_rival(encoder_folder, method)
    recorded, again = with_recordings(plain, lanes=2)
    for first in (0, 40):  # batches of the same shapes, with other sentences
        words = WORDS[first : first + 37]
        expected = plain.predict_tokens(words, batch_size=8)
        assert sum(map(len, expected)) > 37
        for _ in range(3):
            assert_same(recorded.predict_tokens(words, batch_size=8), expected)
    assert again.replays > again.recordings > 0
    assert all(lane.method.count for lane in recorded.engine.lanes)


@pytest.fixture
def one_by_one(encoder_folder) -> DiffusionNER:
    """A generator whose next span is the first possible one, and which stops at once."""
    ner = lively_rival(encoder_folder, "autoregressive", stop=1e4)
    assert isinstance(ner.network, GeneratingNetwork)
    with torch.no_grad():
        for pointer in (ner.network.generator.left, ner.network.generator.right):
            pointer.output.weight.zero_()
    return ner


def test_the_rounds_a_batch_needed_are_recorded_for_the_next(one_by_one):
    recorded, _ = with_recordings(one_by_one)
    bias = one_by_one.network.generator.stop.bias
    rounds = []
    for stop in (1e4, 1e4, -1e3, 1e4, -1e3):
        with torch.no_grad():
            bias.fill_(stop)
        expected = one_by_one.predict_tokens(WORDS[:1])
        assert_same(recorded.predict_tokens(WORDS[:1]), expected)
        assert (len(expected[0]) > 3 * ROUND) == (stop < 0)
        rounds.append(recorded.engine.lanes[0].method.count)
    assert rounds[:3] == [0, 2, 2], "what a batch needs is recorded for the next"
    assert rounds[3] == rounds[4] > 4


def test_the_number_of_generated_entities_can_be_given(one_by_one):
    with torch.no_grad():
        one_by_one.network.generator.stop.bias.fill_(-1e3)  # or it would never stop
    recorded, again = with_recordings(one_by_one)
    settings, rule = recorded.settings, recorded.score_rule(recorded.settings.inference)
    corpus = EncodedCorpus(SENTENCES[:5], recorded.subwords, settings.encoder)
    counts = [0, 3, 9, 1, 2]
    for _ in range(3):
        given = [[PlacedSpan(word, word, word) for word in range(count)] for count in counts]
        task = RefinementTask(corpus, range(5), given=given, only=True)
        found = predict(recorded.engine, task, settings.inference, rule)
        assert [len(one) for one in found] == counts
    assert again.replays


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("method", METHODS)
def test_cuda_graphs_find_the_same_entities(
    still_encoder, nested_sentences, tmp_path: Path, monkeypatch, method
):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    few = nested_sentences[:8]
    settings = by_heart(few, still_encoder, tmp_path).override(
        [f"method={method}", "training.epochs=40", "training.matches_per_entity=1"]
    )
    Trainer(settings).run()
    plain, recorded = (
        DiffusionNER.from_pretrained(
            settings.training.output, "cuda", precision="float32", cuda_graphs=graphed
        )
        for graphed in (False, True)
    )
    words = [s.words for s in few] * 20
    expected = plain.predict_tokens(words, batch_size=16)
    assert sum(map(len, expected)) > len(words) / 2
    for _ in range(4):
        assert_same(recorded.predict_tokens(words, batch_size=16), expected)
    assert all(recordings(recorded))
    assert all(lane.method.count for lane in recorded.engine.lanes)
