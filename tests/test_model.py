"""The encoder against loops, the network's independence of batches, and its training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from plain import plain_encoder, plain_inference
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from diffusionner.batching import Batch, EncodedCorpus
from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.corpus import Sentence, collect_labels
from diffusionner.diffusion import ReverseStart, ReverseStep, gaussian_noise, mix_keys
from diffusionner.diffusion.sampler import ddim_step
from diffusionner.errors import SettingsError
from diffusionner.inference.stream import PredictionTask, predict
from diffusionner.inference.torch_engine import TorchEngine
from diffusionner.model.decoder import Prediction
from diffusionner.model.encoder import BiLSTM, pool_subwords
from diffusionner.model.network import DenoisingNetwork
from diffusionner.model.tensors import batch_to_device, to_device
from diffusionner.settings import EncoderSettings, InferenceSettings, Settings
from diffusionner.storage.encoders import load_encoder, load_tokenizer
from diffusionner.training.graphs import GraphedStep
from diffusionner.training.objective import DenoisingObjective
from diffusionner.training.optimisation import build_optimizer, set_rate
from models import everything

Build = Callable[..., DenoisingNetwork]
CPU = torch.device("cpu")


@pytest.fixture
def build(tiny_settings: Settings, encoder_folder: Path) -> Build:
    """Networks over the tiny encoder with overridden settings, in evaluation mode."""

    def make(*overrides: str, labels: tuple[str, ...] = ("A", "B", "C")) -> DenoisingNetwork:
        torch.manual_seed(0)
        settings = tiny_settings.override(overrides)
        return DenoisingNetwork(load_encoder(str(encoder_folder)), labels, settings).eval()

    return make


@pytest.fixture
def tokenizer(encoder_folder: Path) -> SubwordTokenizer:
    return load_tokenizer(encoder_folder, limit=128)


def as_tensors(
    corpus: EncodedCorpus, multiples: tuple[int, ...] = (1, 1, 1, 1, 1)
) -> Batch[torch.Tensor]:
    """Return all windows as one batch."""
    return batch_to_device(corpus.batch(np.arange(len(corpus)), multiples), CPU)


def same_spans(count: int, spans: int) -> ReverseStart[torch.Tensor]:
    """Start with the same number of spans for every sentence."""
    return ReverseStart(torch.ones(count, spans, dtype=torch.bool))


@torch.no_grad()
def reverse_steps(
    network: DenoisingNetwork,
    batch: Batch[torch.Tensor],
    settings: InferenceSettings,
    start: ReverseStart[torch.Tensor],
) -> list[ReverseStep[Prediction]]:
    state = network.start_reverse(network.encode(batch), start, settings)
    return list(network.reverse(state, batch.keys, settings, start.timestep))


# Tensors

no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, no_gpu])]


@pytest.mark.parametrize("name", [*DEVICES, "meta"])  # meta: shapes and types without content
@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_arrays_keep_their_shapes_and_types_on_a_device(name, dtype):
    shapes = [(2, 3), (4,), (2, 3, 0), (1, 2, 3, 2), ()]
    random = np.random.default_rng(0)
    arrays = [random.integers(-(2**20), 2**20, shape).astype(dtype) for shape in shapes]
    arrays.append(np.arange(12, dtype=dtype).reshape(3, 4)[:, ::2].T)  # not contiguous
    moved = to_device(arrays, torch.device(name))
    for tensor, array in zip(moved, arrays, strict=True):
        assert tensor.device.type == name
        assert tensor.shape == array.shape
        assert tensor.dtype == {np.int64: torch.int64, np.float32: torch.float32}[dtype]
        if name != "meta":
            assert np.array_equal(tensor.cpu().numpy(), array)


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_on_a_device_equals_that_of_the_host(tokenizer, nested_sentences, device):
    labels = collect_labels(nested_sentences)
    settings = plain_encoder(character_filters=4, context=1)
    corpus = EncodedCorpus(nested_sentences[:6], tokenizer, settings, labels)
    batch = corpus.batch(np.arange(len(corpus)))
    assert batch.gold_counts.sum() > 6 and batch.characters.shape[-1] > 0
    moved = batch_to_device(batch, torch.device(device))
    for f in fields(Batch):
        before, after = getattr(batch, f.name), getattr(moved, f.name)
        if f.name in ("keys", "gold_counts", "labels", "gap_cells"):  # the last two are None here
            assert after is before, "noise and matching are computed on the host"
        else:
            assert after.device.type == device and after.dtype in (torch.int64, torch.bool), f.name
            assert after.shape == before.shape, f.name
            assert np.array_equal(after.cpu().numpy(), before), f.name


# Encoder


@pytest.mark.parametrize("pooling", ["max", "mean", "first"])
@pytest.mark.parametrize("passage_words", [0, 9])
def test_subword_pooling_equals_a_loop(tokenizer, nested_sentences, pooling, passage_words):
    settings = plain_encoder(context=1, max_subwords=60, passage_words=passage_words)
    sentences = [Sentence(s.words[:count], doc="d") for count, s in enumerate(nested_sentences[:7])]
    sentences = sentences[1:]
    batch = as_tensors(EncodedCorpus(sentences, tokenizer, settings))
    assert (len(batch.subwords) < len(batch.lengths)) == (passage_words > 0)
    states = torch.randn(*batch.subwords.shape, 5, generator=torch.Generator().manual_seed(0))
    pooled = pool_subwords(states, batch.first, batch.word_of, batch.row, pooling)
    reduce = {"max": lambda x: x.amax(0), "mean": lambda x: x.mean(0), "first": lambda x: x[0]}
    for row, length in enumerate(batch.lengths.tolist()):
        for word in range(length):
            start = int(batch.first[row, 0])
            own = states[batch.row[row], start:][: batch.word_of.shape[1]]
            own = own[batch.word_of[row, : len(own)] == word]
            assert torch.allclose(pooled[row, word], reduce[pooling](own), atol=1e-6)


def sample(sentences: list[Sentence]) -> list[Sentence]:
    """Return sentences of very different lengths, one too long for the encoder."""
    joined = Sentence([word for s in sentences[:6] for word in s.words])
    return [Sentence(["Ann"]), Sentence(["Hm", "."]), *sentences[:4], joined]


def test_the_sentence_is_encoded_once(build, tokenizer, nested_sentences):
    network = build()
    corpus = EncodedCorpus(nested_sentences[:3], tokenizer, network_settings(network))
    batch = as_tensors(corpus)
    calls = {"encoder": 0, "decoder": 0}

    def count(name: str) -> None:
        calls[name] += 1

    network.encoder.transformer.register_forward_hook(lambda *_: count("encoder"))
    network.decoder.register_forward_hook(lambda *_: count("decoder"))
    for steps in (1, 2, 9):
        calls.update(encoder=0, decoder=0)
        encoding, settings = network.encoder(batch), plain_inference(steps=steps)
        network.candidates(encoding, batch.keys, same_spans(3, 6), settings)
        assert calls == {"encoder": 1, "decoder": steps}


@pytest.mark.parametrize("layers", [1, 3])
def test_lstm_equals_a_packed_lstm(layers):
    ours = BiLSTM(5, 8, layers, 0.0)
    reference = nn.LSTM(5, 4, layers, batch_first=True, bidirectional=True)
    for number in range(layers):
        for part, suffix in ((ours.ahead[number], ""), (ours.behind[number], "_reverse")):
            for name, value in part.named_parameters():
                own = getattr(reference, name.replace("l0", f"l{number}") + suffix)
                own.data.copy_(value.data)
    lengths = torch.tensor([3, 6, 1])
    states = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(0))
    packed = pack_padded_sequence(states, lengths, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(reference(packed)[0], batch_first=True)
    inside = torch.arange(6) < lengths[:, None]
    assert torch.allclose(ours(states, lengths)[inside], expected[inside], atol=1e-6)


@pytest.mark.parametrize("layers", [0, 2])
def test_word_states_are_zero_beyond_the_sentence(build, tokenizer, nested_sentences, layers):
    network = build(f"encoder.lstm_layers={layers}", "encoder.hidden_size=20")
    corpus = EncodedCorpus(sample(nested_sentences), tokenizer, network_settings(network))
    encoding = network.encoder(as_tensors(corpus))
    assert encoding.states.shape[-1] == 20
    assert (encoding.states[~encoding.mask] == 0).all()
    assert (encoding.states[encoding.mask] != 0).any(-1).all()
    assert torch.equal(encoding.mask.sum(1), encoding.lengths)


def test_a_stacked_lstm_of_odd_size():
    lstm = BiLSTM(6, 5, layers=2, dropout=0.0)
    assert lstm(torch.zeros(1, 3, 6), torch.tensor([3])).shape == (1, 3, 5)


def network_settings(network: DenoisingNetwork) -> EncoderSettings:
    filters = network.encoder.characters.filters.out_features if network.encoder.characters else 0
    return plain_encoder(character_filters=filters, max_subwords=128)


def test_only_character_features_see_capitals(build, tokenizer):
    sentences = [Sentence(["may", "came"]), Sentence(["May", "came"])]
    for filters in (0, 8):
        network = build(f"encoder.character_filters={filters}", "encoder.lstm_layers=0")
        corpus = EncodedCorpus(sentences, tokenizer, network_settings(network))
        states = network.encoder(as_tensors(corpus)).states
        assert torch.allclose(states[0, 0], states[1, 0], atol=1e-6) == (filters == 0)
        assert torch.allclose(states[0, 1], states[1, 1], atol=1e-6)


def test_heads_must_divide_the_encoder(build):
    with pytest.raises(SettingsError, match=r"decoder\.heads=5 does not divide .* size 32"):
        build("decoder.heads=5")


# The reverse process


@pytest.mark.parametrize("kind", ["left-right", "left-width"])
@pytest.mark.parametrize("pooling", ["mean", "endpoints"])
@pytest.mark.parametrize(("steps", "eta"), [(1, 0.0), (4, 0.0), (4, 1.0)])
def test_predictions_do_not_depend_on_the_batch(
    build, tokenizer, nested_sentences, kind, pooling, steps, eta
):
    network = build(f"diffusion.coordinates={kind}", f"decoder.span_pooling={pooling}")
    engine = TorchEngine(network)
    sentences = sample(nested_sentences)
    options = plain_inference(steps=steps, spans=15, eta=eta, overlap="all", batch_size=1)

    def found(order: list[int], size: int) -> dict[int, list]:
        corpus = EncodedCorpus([sentences[i] for i in order], tokenizer, network_settings(network))
        assert len(corpus) > len(order), "one sentence takes several windows"
        results = predict(
            engine,
            PredictionTask(corpus, range(len(order))),
            replace(options, batch_size=size),
            everything(network.labels),
        )
        return dict(zip(order, results, strict=True))

    order = list(range(len(sentences)))
    alone = found(order, 1)
    assert sum(len(entities) for entities in alone.values()) > len(order)
    for other in (found(order, 100), found(order[::-1], 3), found([3, 6, 0, 5, 1, 2, 4], 4)):
        for number, entities in alone.items():
            assert [e[:3] for e in other[number]] == [e[:3] for e in entities]
            scores = [e.score for e in entities]
            assert [e.score for e in other[number]] == pytest.approx(scores, abs=1e-4)


def test_steps_seed_and_noise_matter(build, tokenizer, nested_sentences):
    network = build()
    corpus = EncodedCorpus(nested_sentences[:4], tokenizer, network_settings(network))
    batch = as_tensors(corpus)
    base = plain_inference(steps=4)

    def types(options: InferenceSettings) -> torch.Tensor:
        return reverse_steps(network, batch, options, same_spans(4, 12))[-1].prediction.types

    scores = types(base)
    assert torch.equal(scores, types(base))
    for other in (replace(base, steps=2), replace(base, seed=1), replace(base, eta=1.0)):
        assert not torch.allclose(scores, types(other), atol=1e-4)


@pytest.mark.parametrize("eta", [0.0, 0.7])
def test_every_step_has_its_own_noise(build, tokenizer, nested_sentences, eta):
    """Noise depends on the sentence, the seed and the number of the step alone."""
    network = build()
    corpus = EncodedCorpus(nested_sentences[:3], tokenizer, network_settings(network))
    batch = as_tensors(corpus)
    options = plain_inference(steps=4, eta=eta, seed=5)
    steps = reverse_steps(network, batch, options, same_spans(3, 7))
    assert len(steps) == 4

    def noise(step: int) -> torch.Tensor:
        return torch.from_numpy(gaussian_noise(mix_keys(batch.keys, 5, step), 1, 7, 2))

    assert torch.equal(steps[0].x, noise(0))
    alpha_bar = network.schedule.alpha_bar.tolist()
    timesteps = pairwise([100, 75, 50, 25, 0])
    for number, (step, (t, later)) in enumerate(zip(steps, timesteps, strict=True), start=1):
        left, right = step.prediction.left.argmax(-1), step.prediction.right.argmax(-1)
        spans = torch.stack([left, torch.maximum(left, right)], -1)
        expected = x0 = network.coordinates.encode(spans, batch.lengths[:, None])
        if later:
            expected = ddim_step(step.x, x0, alpha_bar[t], alpha_bar[later], eta, noise(number))
            assert torch.equal(steps[number].x, step.next_x)
        assert torch.allclose(step.next_x, expected, atol=1e-6)


def test_given_spans_replace_the_noise(build, tokenizer, nested_sentences):
    network = build()
    corpus = EncodedCorpus(nested_sentences[:2], tokenizer, network_settings(network))
    batch = as_tensors(corpus)
    given = torch.tensor([[[0, 2], [1, 1]], [[2, 4], [0, 0]]])
    none = same_spans(2, 0)
    slots = torch.ones(2, 2, dtype=torch.bool)
    start = replace(none, given=given, given_slots=slots, timestep=40)
    (step,) = reverse_steps(network, batch, plain_inference(steps=1), start)
    prediction = step.prediction
    with torch.no_grad():
        t = torch.full((2, 1), 40)
        direct = network.decoder(network.prepare(batch), given[:, None], t)
    assert torch.allclose(prediction.types, direct.types, atol=1e-5)
    assert torch.allclose(prediction.left, direct.left, atol=1e-5)


@pytest.mark.parametrize("multiple", [1, 8])
def test_batches_are_padded_as_the_engine_says(build, tokenizer, nested_sentences, multiple):
    network = build()
    corpus = EncodedCorpus(nested_sentences[:5], tokenizer, network_settings(network))
    engine = TorchEngine(network)
    lengths: list[int] = []

    class WatchedEngine:
        labels = network.labels
        subword_multiple, prefetch, beliefs = multiple, 0, None

        def launch(self, batch, start, settings):
            lengths.append(batch.subwords.shape[1])
            return engine.launch(batch, start, settings)

    options, rule = plain_inference(steps=1, spans=9, batch_size=1), everything(network.labels)
    found, expected = (
        predict(one, PredictionTask(corpus, range(5)), options, rule)
        for one in (WatchedEngine(), engine)
    )
    windows = corpus.windows
    sizes = windows.subword_end - windows.subword_start + tokenizer.special_count
    assert lengths == [-(-size // multiple) * multiple for size in sorted(sizes.tolist())]
    assert [[e[:3] for e in own] for own in found] == [[e[:3] for e in own] for own in expected]


@pytest.mark.parametrize("training", [True, False])
def test_predicting_restores_the_training_mode(build, tokenizer, nested_sentences, training):
    corpus = EncodedCorpus(nested_sentences[:2], tokenizer, plain_encoder())
    network = build("encoder.character_filters=0").train(training)
    calls: list[tuple[int, int]] = []
    predict(
        TorchEngine(network),
        PredictionTask(corpus, [1, 0]),
        plain_inference(steps=1),
        everything(network.labels),
        progress=lambda done, total: calls.append((done, total)),
    )
    assert network.training == network.decoder.training == training
    assert calls[-1] == (2, 2)


# Training


def test_padding_for_cuda_graphs_changes_nothing(build, tokenizer, nested_sentences):
    multiples = GraphedStep.multiples
    network = build()
    corpus = EncodedCorpus(nested_sentences[:4], tokenizer, network_settings(network))
    plain, padded = as_tensors(corpus), as_tensors(corpus, multiples)
    assert padded.subwords.shape[1] % multiples[0] == 0
    assert padded.first.shape[1] % multiples[1] == 0
    assert padded.gold.shape[1] == multiples[2]
    assert padded.characters.shape[2] > plain.characters.shape[2]
    spans = torch.tensor([[0, 0], [1, 2], [0, 3]]).expand(4, 2, 3, 2)
    t = torch.tensor([5, 50]).expand(4, 2)
    with torch.no_grad():
        expected, found = (
            network.decoder(network.prepare(batch), spans, t) for batch in (plain, padded)
        )
    words = plain.first.shape[1]
    assert torch.allclose(found.left[..., :words], expected.left, atol=1e-4)
    assert torch.allclose(found.right[..., :words], expected.right, atol=1e-4)
    assert torch.allclose(found.types, expected.types, atol=1e-5)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_encoder_gets_no_gradient(
    build, tiny_settings, tokenizer, nested_sentences, frozen
):
    labels = collect_labels(nested_sentences)
    network = build(labels=tuple(labels)).train()
    objective = DenoisingObjective(network, tiny_settings)
    objective.freeze_encoder = frozen
    corpus = EncodedCorpus(nested_sentences[:3], tokenizer, network_settings(network), labels)
    batch = corpus.batch(np.arange(3))
    noisy = objective.noise(batch, batch.keys)
    objective(batch_to_device(batch, CPU), noisy, 1.0).backward()
    pretrained = set(network.encoder.transformer.parameters())
    for name, parameter in network.named_parameters():
        has_gradient = parameter.grad is not None and bool((parameter.grad != 0).any())
        expected = not frozen if parameter in pretrained else True
        # A bias added to all keys alike changes no softmax.
        assert has_gradient == expected or (expected and name.endswith("key.bias")), name


def test_each_parameter_is_optimised_once_at_its_rate(build, tiny_settings):
    network = build()
    settings = replace(
        tiny_settings.training, encoder_learning_rate=1e-5, learning_rate=3e-4, weight_decay=0.02
    )
    optimizer = build_optimizer(network, settings)
    group_of = {p: group for group in optimizer.param_groups for p in group["params"]}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(group_of)
    assert set(group_of) == set(network.parameters())
    for name, parameter in network.named_parameters():
        group = group_of[parameter]
        assert group["lr"] == (1e-5 if name.startswith("encoder.transformer.") else 3e-4), name
        assert group["weight_decay"] == (0.02 if parameter.dim() > 1 else 0.0), name
    set_rate(optimizer, 0.5)
    set_rate(optimizer, 0.25)  # of the peak, not of the current rate
    assert {group["lr"] for group in optimizer.param_groups} == {2.5e-6, 7.5e-5}


def test_lower_layers_learn_more_slowly(build, tiny_settings):
    network = build()
    training = replace(tiny_settings.training, encoder_learning_rate=1.0, layer_decay=0.5)
    optimizer = build_optimizer(network, replace(training, learning_rate=3.0))
    rate_of = {p: group["peak"] for group in optimizer.param_groups for p in group["params"]}
    transformer = network.encoder.transformer
    layers = transformer.encoder.layer
    assert rate_of[transformer.embeddings.word_embeddings.weight] == 0.5 ** len(layers)
    for number, layer in enumerate(reversed(layers)):
        assert {rate_of[p] for p in layer.parameters()} == {0.5**number}
    assert rate_of[network.decoder.left.output.weight] == 3.0
